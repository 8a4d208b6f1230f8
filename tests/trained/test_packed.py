"""What comes with raysl: each backbone, its card, and the command that packs one."""

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from raysl.benchmarks.benchmark import FeatureSet, by_name
from raysl.benchmarks.features.embedding import embed
from raysl.benchmarks.knn import KNN
from raysl.benchmarks.online_knn import MOST_TEST, MOST_TRAIN
from raysl.benchmarks.suite.settings import load_data
from raysl.checkpoint.backbone import Checkpoint
from raysl.checkpoint.checkpoint_folder import checkpoint_name, verify
from raysl.config.dump import differences
from raysl.config.load import load_config
from raysl.data.source import make_source
from raysl.data.sources.sample import sample_rows
from raysl.errors import ConfigError
from raysl.plan.setup import Setup
from raysl.storage.folder import Folder
from raysl.train.state import TrainState
from raysl.trained import FOLDER, trained_names
from tests.trained.card import PAGE, card, checkpoint_of, with_table
from tests.trained.pack import pack

MOST_BYTES = 5_000_000
MEASURES = "benchmarks={knn: {}, low_shot: {}}"
each = pytest.mark.parametrize("name", trained_names())


@each
def test_a_backbone_is_whole_small_and_has_nothing_of_its_training(name: str) -> None:
    (checkpoint,) = (FOLDER / name).glob("checkpoint_*")
    verify(Folder(str(checkpoint)))
    assert sorted(path.name for path in checkpoint.iterdir()) == ["backbone.safetensors", "meta.json", "run.yaml"]
    assert sorted(path.name for path in (FOLDER / name).iterdir()) == ["README.md", checkpoint.name]
    assert sum(path.stat().st_size for path in (FOLDER / name).rglob("*")) < MOST_BYTES
    texts = [
        path.read_text() for path in (FOLDER / name).rglob("*") if path.suffix != ".safetensors" and path.is_file()
    ]
    assert not any(": /" in text or "/tmp" in text or "/home" in text or "~/" in text for text in texts)


@each
def test_features_are_finite_and_tell_images_apart(name: str) -> None:
    loaded = checkpoint_of(name)
    side = loaded.config.data.image_size
    images = torch.randn(4, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        h = loaded.backbone(images)
    assert h.shape == (4, loaded.backbone.feature_dim)
    assert h.isfinite().all()
    assert torch.pdist(h).min() > 0
    assert not loaded.backbone.training


@each
def test_the_command_in_the_card_gives_the_settings_of_the_run(name: str) -> None:
    loaded = checkpoint_of(name)
    raysl, pretrain, recipe, images, *words = shlex.split(loaded.meta["trained"]["command"])
    assert (raysl, pretrain) == ("raysl", "pretrain")
    config = load_config(recipe, [f"data.path={images}", *words])
    assert differences(replace(config, data=loaded.config.data), loaded.config) == []
    assert config.benchmarks == loaded.config.benchmarks
    shared = ("mean", "std", "image_size", "eval_resize", "eval_interpolation", "channels")
    assert [getattr(config.data, key) for key in shared] == [getattr(loaded.config.data, key) for key in shared]


@each
def test_the_card_has_the_numbers_that_were_measured(name: str) -> None:
    assert (FOLDER / name / "README.md").read_text() == card(name), "write it by `python -m tests.trained`"
    metrics = checkpoint_of(name).meta["metrics"]
    for key in ("knn/k20/top1", "knn/k200/top1", "linear/top1", "low_shot/5_shot"):
        assert f"| {metrics[key]:.1f}" in card(name)
        assert metrics[f"{key}/untrained"] < metrics[key] <= 100, "it has learned"


def test_the_page_has_a_row_and_a_command_for_each() -> None:
    page = PAGE.read_text()
    assert page == with_table(page), "write it by `python -m tests.trained`"
    assert all(f"| `{name}` | " in page for name in trained_names())


@pytest.mark.thorough
@each
def test_the_knn_of_training_comes_out_again(name: str, cifar10: Path) -> None:
    loaded = checkpoint_of(name)
    config = KNN.Config()
    top1 = knn_k20_top1(loaded, cifar10, config, MOST_TRAIN, MOST_TEST)
    assert top1 == pytest.approx(loaded.meta["trained"]["online_knn"][-1][1], abs=1.0), "training was in bf16"


@each
@pytest.mark.slow
def test_the_knn_of_the_card_comes_out_again(name: str, cifar10: Path) -> None:
    loaded = checkpoint_of(name)
    config = loaded.config.benchmarks["knn"]
    assert isinstance(config, KNN.Config)
    top1 = knn_k20_top1(loaded, cifar10, config, 50_000, 10_000)
    assert top1 == pytest.approx(loaded.meta["metrics"]["knn/k20/top1"], abs=0.1)


def knn_k20_top1(loaded: Checkpoint, path: Path, config: KNN.Config, most_train: int, most_test: int) -> float:
    """The accuracy of the kNN on some of CIFAR-10's images."""
    data = load_data(loaded.config, ["data=parquet", f"data.path={path}"])
    sets = []
    for part, most in (("train", most_train), ("test", most_test)):
        split = make_source(data).required(part)
        rows = np.array_split(sample_rows(split, most), -(-most // 1000))
        embedded = [embed({"": loaded.backbone}, split, some, data, torch.device("cpu")) for some in rows]
        labels = torch.from_numpy(np.concatenate([one.labels for one in embedded]))
        sets.append(FeatureSet(torch.cat([one.features[""] for one in embedded]), labels))
    return by_name(KNN(config).run(*sets, 10, seed=0).metrics)["k20/top1"].value


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Makes the folder of a finished run on images at a local path, with a report; settings may be given."""
    (tmp_path / "images").mkdir()

    def make(*words: str) -> Path:
        folder = tmp_path / "runs" / "mine"
        given = [f"data.path={tmp_path}/images", "backbone.depth=10", "backbone.width=4", "train.epochs=3", *words]
        config = load_config("cifar10/simclr", [*given, f"storage={tmp_path}/runs", "name=mine", MEASURES])
        state = TrainState.create(Setup.of(config, 600, 10))
        state.step = 3
        state.save(folder / checkpoint_name(3), {"epoch": 3.0, "knn_k20_top1": 20.0})
        lines = [{"step": 0, "epoch": 0.0, "knn_k20_top1": 10.0}, {"step": 3, "epoch": 3.0, "knn_k20_top1": 20.0}]
        text = "".join(json.dumps(line | {"images_per_s": 50.0}) + "\n" for line in lines)
        (folder / "metrics.jsonl").write_text(text)
        (folder / "report.json").write_text('{"metrics": {"knn/k20/top1": 21.0}}')
        return folder

    return make


@pytest.mark.thorough
def test_packing_keeps_the_backbone_and_leaves_places_and_training_behind(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    run = make_run("data.limit=600")
    pack(str(run), "cifar10/mine", "cifar10/simclr", tmp_path / "packed")
    (target,) = (tmp_path / "packed" / "cifar10" / "mine").iterdir()
    meta = verify(Folder(str(target)))
    source = run / checkpoint_name(3)
    assert (target / "backbone.safetensors").read_bytes() == (source / "backbone.safetensors").read_bytes()
    assert set(meta["files"]) == {"backbone.safetensors", "run.yaml"}
    assert str(tmp_path) not in "".join((target / name).read_text() for name in ("run.yaml", "meta.json"))
    assert meta["metrics"] == {"epoch": 3.0, "knn_k20_top1": 20.0, "knn/k20/top1": 21.0}
    assert meta["trained"] == {
        "command": "raysl pretrain cifar10/simclr /path/to/cifar10 backbone.depth=10 backbone.width=4 data.limit=600 "
        "optim.warmup=10% train.epochs=3 'benchmarks={knn: {required: true, k: [200, 20], temperature: 0.1}, "
        "low_shot: {required: true}}'",
        "online_knn": [[0.0, 10.0], [3.0, 20.0]],
        "vote": "k = 20 and temperature 0.1",
        "images_per_s": 50,
    }


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["callbacks=[profiler]"], r"gives other settings: callbacks\.profiler"),
        (["data.subset=/somewhere/names.txt"], r"data\.subset=/somewhere/names\.txt is a local path"),
    ],
)
def test_settings_that_others_could_not_repeat_are_refused(
    make_run: Callable[..., Path], tmp_path: Path, words: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        pack(str(make_run(*words)), "cifar10/mine", "cifar10/simclr", tmp_path)


@pytest.mark.thorough
def test_a_run_that_has_not_ended_or_was_not_measured_is_refused(make_run: Callable[..., Path], tmp_path: Path) -> None:
    run = make_run()
    (run / "report.json").unlink()
    with pytest.raises(ConfigError, match=r"has no report\.json; measure it first"):
        pack(str(run), "cifar10/mine", "cifar10/simclr", tmp_path)
    meta = run / checkpoint_name(3) / "meta.json"
    meta.write_text(meta.read_text().replace('"epoch": 3.0', '"epoch": 2.0'))
    with pytest.raises(ConfigError, match="has not ended"):
        pack(str(run), "cifar10/mine", "cifar10/simclr", tmp_path)
