"""Pictures of what a method predicts of held-out images, along the training."""

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from raysl.benchmarks.suite.pictures import reconstructions
from raysl.config.load import load_config
from raysl.data.stream.loader import LocalBatches
from raysl.errors import DamagedData
from raysl.losses import patchify
from raysl.runs.worker import _callbacks
from raysl.storage.folder import Folder
from raysl.train import LocalReporter, fit
from raysl.train.callbacks.callback import Callback
from raysl.train.callbacks.reconstructions import Reconstructions, whole_images
from raysl.train.prepare import Prepared, prepare
from raysl.train.state import TrainState
from tests.train.problem import StopAt, differing, tensors_of

SMALL = (
    "backbone.width=8",
    "backbone.depth=1",
    "backbone.heads=2",
    "method.decoder_width=8",
    "method.decoder_depth=1",
    "method.decoder_heads=2",
    "data.limit=40",
    "train.batch_size=20",
    "train.epochs=5",
    "train.online_knn_every=null",
    "train.precision=fp32",
    "benchmarks=[]",
    "optim.warmup=0ep",
)


def prepared(*words: str, name: str = "digits/mae") -> Prepared:
    return prepare(load_config(name, [*SMALL, *words]))


def train(run: Prepared, folder: Path, *more: Callback, state: TrainState | None = None) -> TrainState:
    """Train ten steps with the pictures of a run, or on from a state."""
    state = state or TrainState.create(run.setup, classes=run.classes)
    every = run.config.train.reconstruct_every
    pictures = [] if every is None else [Reconstructions(run.loader, run.test or run.loader.split, True, every)]
    reporter = LocalReporter(folder, show_progress=False)
    fit(state, state.method, run.setup.plan, LocalBatches(run.loader), callbacks=[*pictures, *more], reporter=reporter)
    return state


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "reconstructions").iterdir())


@pytest.mark.thorough
def test_each_fifth_of_the_run_leaves_a_picture_and_a_resume_ends_in_the_same_bits(tmp_path: Path) -> None:
    run = prepared()
    whole = train(run, tmp_path / "whole")
    steps = [f"{step:09d}.png" for step in (0, 2, 4, 6, 8, 10)]
    assert names(tmp_path / "whole") == [*steps, "held_out.png"]
    plain = train(prepared("train.reconstruct_every=null"), tmp_path / "plain")
    assert not (tmp_path / "plain" / "reconstructions").exists()
    assert differing(tensors_of(plain), tensors_of(whole)) == []
    first = train(run, tmp_path / "parts", StopAt(5))
    assert names(tmp_path / "parts") == [*steps[:3], "held_out.png"]
    resumed = TrainState.create(run.setup, classes=run.classes, is_new=False)
    assert first.step == 5
    resumed.load(tmp_path / "parts" / "checkpoint_000000005")
    train(run, tmp_path / "parts", state=resumed)
    assert differing(tensors_of(resumed), tensors_of(whole)) == []
    for name in names(tmp_path / "whole"):
        parts, once = ((tmp_path / folder / "reconstructions" / name).read_bytes() for folder in ("parts", "whole"))
        assert parts == once, name


@pytest.mark.thorough
def test_pictures_are_whole_images_their_visible_patches_and_the_predictions(tmp_path: Path) -> None:
    run = prepared()
    state = train(run, tmp_path)
    assert run.test is not None
    batch = whole_images(run.loader, run.test, torch.device("cpu"))
    images = batch.views["global"][:, 0]
    data = run.config.data
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (data.mean, data.std))
    pixels = ((images * std + mean) * 255).round()
    rows = np.arange(10) * run.test.num_samples // 10
    read = run.test.read(rows)
    assert len(images) == 10
    assert batch.label.tolist() == read.labels.tolist()
    found = reconstructions(Folder(str(tmp_path)), 10)
    assert found is not None
    assert found.images.shape == (10, 16, 16, 3)
    assert found.is_held_out
    assert (torch.from_numpy(found.images).permute(0, 3, 1, 2) == pixels).all()
    mask = batch.extras["global.mask"][:, 0].flatten(1)
    seen = patchify(torch.from_numpy(found.seen).permute(0, 3, 1, 2), 4)
    assert (seen[mask] == 128).all()
    assert (seen[~mask] == patchify(pixels, 4)[~mask]).all()
    with torch.no_grad():
        expected = state.method.eval().reconstruct(batch)
    assert expected is not None
    last = ((expected.predicted * std + mean).clamp(0, 1) * 255).round()
    assert sorted(found.predicted) == [0, 2, 4, 6, 8, 10]
    assert (torch.from_numpy(found.predicted[10]).permute(0, 3, 1, 2) == last).all()
    assert (found.predicted[0] != found.predicted[10]).any()


def test_a_report_of_an_earlier_checkpoint_shows_no_later_pictures_and_leaves_damaged_ones_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "reconstructions"
    folder.mkdir()
    home = Folder(str(tmp_path))
    assert reconstructions(home, 10) is None
    grey = np.full((4, 12, 3), 9, np.uint8)
    for name, rows in (("training.png", 2), ("000000000.png", 1), ("000000004.png", 1), ("000000008.png", 1)):
        Image.fromarray(grey.repeat(rows, axis=0)).save(folder / name)
    found = reconstructions(home, 4)
    assert found is not None
    assert (list(found.predicted), found.is_held_out, found.images.shape) == ([0, 4], False, (3, 4, 4, 3))
    Image.fromarray(grey[:2]).save(folder / "000000004.png")
    (folder / "000000008.png").write_bytes(b"no picture")
    with caplog.at_level(logging.WARNING):
        assert reconstructions(home, 4) is None
        assert reconstructions(home, 8) is None
    assert caplog.text.count("the report has no reconstructions") == 2


@pytest.mark.parametrize(
    ("name", "words", "is_there"),
    [
        ("digits/mae", (), True),
        ("digits/mae", ("train.reconstruct_every=null",), False),
        ("digits/mae", ("train.parallel=fsdp", "train.workers=2"), False),
        ("digits/maskfeat", (), False),
    ],
)
def test_runs_of_methods_that_predict_pixels_have_them(name: str, words: tuple[str, ...], is_there: bool) -> None:
    left_out = [word for word in SMALL if "decoder" not in word or "mae" in name.split("/")[1].split("_")]
    run = prepare(load_config(name, [*left_out, *words]))
    assert run.has_reconstructions == is_there
    assert (run.test is not None) == is_there


def test_a_worker_shows_training_images_where_none_are_held_out() -> None:
    run = replace(prepared("train.reconstruct_every=3st"), test=None)
    job: Any = SimpleNamespace(run=run, is_alone=True)
    folder: Any = SimpleNamespace(look_every_s=1.0)
    batches: Any = SimpleNamespace(chosen=None)
    made = [one for one in _callbacks(job, folder, None, batches) if isinstance(one, Reconstructions)]  # type: ignore[arg-type]
    (callback,) = made
    assert (callback.split, callback.is_held_out, str(callback.every)) == (run.loader.split, False, "3st")


@pytest.mark.thorough
def test_images_that_cannot_be_read_cost_the_pictures_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = prepared()

    def broken(*_: object) -> Any:
        raise DamagedData("all are broken")

    monkeypatch.setattr("raysl.train.callbacks.reconstructions.whole_images", broken)
    assert train(run, tmp_path).step == 10
    assert (tmp_path / "events.jsonl").read_text().count("reconstructions are not shown: all are broken") == 1
