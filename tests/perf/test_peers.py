"""Other libraries beside raysl on the same images."""

import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from perf.cli import app
from perf.peers.by_raysl import prepared
from perf.peers.measure import LIBRARIES, installed, numbers_in, table
from perf.peers.task import METHODS, Task
from raysl.data.stream.loader import LocalBatches
from raysl.plan.setup import Setup
from raysl.train.state import TrainState
from tests.tiers import each

IMAGES = 256


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Coloured noise in CIFAR-10's layout, a colour for each class."""
    folder = tmp_path_factory.mktemp("cifar")
    draws = np.random.default_rng(0)
    colours = draws.integers(0, 200, (10, 3))
    for split in ("train", "test"):
        labels = draws.integers(0, 10, IMAGES).tolist()
        rows = []
        for label in labels:
            pixels = (colours[label] + draws.integers(0, 55, (32, 32, 3))).astype(np.uint8)
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "PNG")
            rows.append(file.getvalue())
        pq.write_table(pa.table({"image": rows, "label": labels}), folder / f"{split}-00000-of-00001.parquet")
    return folder


def task_of(library: str, method: str, data: Path) -> Task:
    return Task(library, method, 0, str(data), images=IMAGES, epochs=1, batch_size=128, test_images=100)


@pytest.mark.parametrize("method", METHODS)
def test_all_take_the_numbers_of_one_configuration(method: str, data: Path) -> None:
    task = task_of("lightly", method, data)
    assert task.plan.total_steps == 2
    assert task.config.method.name == method
    assert task.lr(0) > 0
    assert task.config.data.limit == IMAGES
    network = "vit" if method == "mae" else "resnet"
    assert task.config.backbone.name == network


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["simclr", "byol", "dino", "mae"])
def test_lightly_learns_and_is_measured(method: str, data: Path) -> None:
    from perf.peers.by_lightly import train
    from perf.peers.task import knn_k20_top1

    task = task_of("lightly", method, data)
    features, times = train(task)
    assert times["images_s"] > 0
    assert 10 < knn_k20_top1(task, features) <= 100


@pytest.mark.cluster
def test_a_result_of_each_run_is_kept_and_not_made_again(data: Path, tmp_path: Path) -> None:
    words = ["peers", "--data", str(data), "--out", str(tmp_path), "--only", "simclr", "--library", "raysl"]
    words += ["--seeds", "1", "--images", str(IMAGES), "--epochs", "1"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    path = tmp_path / "simclr-raysl-0.json"
    first = json.loads(path.read_text())
    assert first["knn_k20_top1"] > 20
    assert "`simclr`" in result.output
    path.write_text(json.dumps(first | {"knn_k20_top1": 12.25}))
    again = CliRunner().invoke(app, words)
    assert "12.2" in again.output, "what is there stays"
    assert numbers_in(tmp_path)["runs"][0]["knn_k20_top1"] == 12.25


def test_the_table_has_seeds_ratios_and_memory() -> None:
    runs = [
        {
            "method": "simclr",
            "library": library,
            "knn_k20_top1": 40.0 + seed,
            "memory_gb": 1.5 + seed / 10,
            "cpu_s_1000": (1.0 if library == "raysl" else 2.0) + seed,
        }
        for library in LIBRARIES[:2]
        for seed in range(2)
    ]
    line = table({"runs": runs}).splitlines()[2]
    assert line == "| `simclr` | 40.0, 41.0 | 40.0, 41.0 |  | 1.67 |  | 1.60 | 1.60 |  |"


@pytest.mark.parametrize("method", ["simclr", "moco", "lejepa"])
def test_biases_and_normalisation_decay_in_lightly_where_they_do_in_raysl(method: str, data: Path) -> None:
    from perf.peers.by_lightly import MODELS, optimizer_of

    task = task_of("lightly", method, data)
    optimizer = optimizer_of(task, MODELS[method](task).trained)
    shapes = {p.ndim for group in optimizer.param_groups if group["weight_decay"] > 0 for p in group["params"]}
    assert (1 in shapes) == (not task.config.optim.exclude_norm_and_bias)


def trained(optimizer: torch.optim.Optimizer) -> Counter[tuple[tuple[int, ...], float]]:
    """Count the shapes of the matrices that an optimizer moves, each with its weight decay."""
    return Counter(
        (tuple(parameter.shape), group["weight_decay"])
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.squeeze().ndim > 1  # without a ViT's single tokens; lightly's has one that it does not use
    )


@pytest.mark.parametrize("method", METHODS)
def test_lightly_trains_the_same_weights_with_the_same_decay(method: str, data: Path) -> None:
    from perf.peers.by_lightly import MODELS, optimizer_of

    task = replace(task_of("lightly", method, data), images=10_000)
    setup = Setup.of(task.config, task.images, 10, plan=task.plan)
    ours = trained(TrainState.create(setup).optimizer)
    assert ours == trained(optimizer_of(task, MODELS[method](task).trained))


@pytest.mark.thorough
def test_raysl_learns_from_the_first_images_as_the_others_do(data: Path) -> None:
    task = replace(task_of("raysl", "simclr", data), images=IMAGES // 2)
    batches = list(LocalBatches(prepared(task).loader).plain())
    pixels = torch.cat([batch.views["image"].flatten(1) for batch in batches])
    expected, labels = task.normalised("train", task.images)
    assert torch.equal(torch.cat([batch.label for batch in batches]), labels)
    assert torch.allclose(pixels, expected.flatten(1), atol=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "simcrl"], "--only simcrl is none of"),
        (["--library", "solo"], "--library solo is none of"),
        (["--data", "/nowhere"], "has no train-*.parquet"),
    ],
)
def test_what_cannot_be_run_is_refused(words: list[str], message: str, data: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["peers", "--data", str(data), "--out", str(tmp_path), *words])
    assert result.exit_code != 0
    assert message in str(result.exception)


@pytest.mark.thorough
@pytest.mark.skipif("stable_pretraining" not in installed(), reason="the extra peers is not installed")
@pytest.mark.parametrize("method", each(METHODS, now=("simclr",)))
def test_stable_pretraining_learns(method: str, data: Path) -> None:
    from perf.peers.by_stable_pretraining import train

    features, _ = train(replace(task_of("stable_pretraining", method, data), epochs=1))
    assert callable(features)
