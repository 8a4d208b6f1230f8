"""A folder with some broken images trains and tells of them; with too many it stops and lists them."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from raysl import distributed as dist
from raysl.checkpoint.checkpoint_folder import newest_whole
from raysl.config.load import load_config
from raysl.data.decode.corrupt import CorruptLog, Replaced
from raysl.data.stream.loader import LocalBatches
from raysl.errors import RunFailed
from raysl.methods.method import StepOutput
from raysl.runs.folder import RunFolder
from raysl.runs.run import _check_corrupt
from raysl.schedule import Step
from raysl.storage.folder import Folder
from raysl.train import LocalReporter, fit
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.callbacks.corrupt_images import CorruptImages
from raysl.train.disk import Disk
from raysl.train.prepare import Prepared, prepare
from raysl.train.state import TrainState
from tests.rank_processes import RunRanks
from tests.runs.runs import SMALL
from tests.train.problem import batches, problem

NUM, BROKEN = 300, (7, 123, 250)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for number in range(NUM):
        path = folder / f"{number:03}.jpg"
        pixels = random.integers(0, 256, (24, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path, quality=80)
        if number in BROKEN:
            path.write_bytes(path.read_bytes()[:200])
    return folder


def _listed(logs: Path) -> list[str]:
    return [json.loads(line)["image"] for line in (logs / "corrupt.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_one_percent_of_broken_images_is_trained_through_and_told_of(tmp_path: Path, folder: Path) -> None:
    words = [*SMALL, "data=image_folder", f"data.path={folder}", "data.limit=null", "data.image_size=16"]
    words += ["train.epochs=2", "train.batch_size=30", f"storage={tmp_path}", "name=größe"]
    command = [sys.executable, "-m", "raysl", "pretrain", "quickstart", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    metrics = [json.loads(line) for line in (tmp_path / "größe" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == list(range(1, 21))
    assert metrics[-1]["corrupt_images"] == len(BROKEN)
    listed = _listed(tmp_path / "größe")
    assert sorted(Path(line.split(": ")[0]).name for line in listed) == ["007.jpg", "123.jpg", "250.jpg"]
    assert "replaced a broken image, listed in corrupt.jsonl" in done.stderr
    assert "3 broken images" in done.stdout


@pytest.mark.thorough
def test_more_broken_images_than_allowed_stop_the_run_at_that_step_with_the_list(tmp_path: Path, folder: Path) -> None:
    words = ["data=image_folder", f"data.path={folder}", "train.batch_size=30", "train.log_every=1000st"]
    config = load_config("quickstart", [*SMALL, *words])
    run = prepare(config)
    state, plan = TrainState.create(run.setup), run.setup.plan
    found = CorruptLog()
    broken = CorruptImages(found, Disk(tmp_path), limit=1)
    batches = LocalBatches(run.loader, corrupt=found)
    metrics = fit(state, state.method, plan, batches, callbacks=[broken], reporter=LocalReporter(tmp_path))
    assert 0 < state.step < plan.total_steps
    assert metrics["corrupt_images"] >= 2
    assert broken.failure is not None
    assert "images are broken, data.max_corrupt allows 1: " in broken.failure
    assert all(Path(line.split(": ")[0]).name in broken.failure for line in _listed(tmp_path))
    found = newest_whole(Folder(str(tmp_path)))
    assert found.step == state.step, "a checkpoint of that step remembers it, so that no start goes on"
    with pytest.raises(RunFailed, match=r"data\.max_corrupt allows 1: .* a larger data\.max_corrupt lets it go on"):
        _check_corrupt(_allowing(run, 1.5 / NUM), RunFolder(str(tmp_path)), found)
    _check_corrupt(_allowing(run, 0.5), RunFolder(str(tmp_path)), found)


@pytest.mark.thorough
def test_a_restarted_run_knows_the_broken_images_of_its_checkpoint_of_the_same_images(
    tmp_path: Path,
) -> None:
    state, plan = problem("train.epochs=2")
    images = [Replaced("a.png: broken", 3, 4), "b.png: broken, without its row"]

    def known(stored: dict[str, Any], met: list[str]) -> tuple[dict[int, int], dict[str, Any]]:
        found = CorruptLog()
        callback = CorruptImages(found, Disk(tmp_path), limit=10)
        callback.load_state_dict(stored)
        found.add(met)
        fit(state, state.method, plan, batches(plan), callbacks=[callback], reporter=LocalReporter(tmp_path))
        state.step = 0
        assert list(callback.images) == images
        return {row: image.other for row, image in found.known.items()}, callback.state_dict()

    first, stored = known({}, images)
    assert first == {3: 4}
    assert known(stored, []) == ({3: 4}, stored)
    assert known({"images": stored["images"]}, [])[0] == {}, "as stored by version 0.1"
    state.setup = replace(state.setup, data=replace(state.setup.data, fingerprint="other"))
    assert known(stored, [])[0] == {}


def _allowing(run: Prepared, share: float) -> Prepared:
    config = replace(run.config, data=replace(run.config.data, max_corrupt=share))
    return replace(run, setup=replace(run.setup, config=config))


def _one_rank(logs: Path) -> tuple[int, str | None, list[str]]:
    """Train where rank 1 alone meets a broken image, at the third step; the step of the end and what was listed."""
    state, plan = problem("train.epochs=4")
    found = CorruptLog()
    broken = CorruptImages(found, Disk(logs), limit=0)

    class Meet(Callback):
        def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
            if step.index == 3 and dist.rank() == 1:
                found.add(["a.png: broken"])

    fit(
        state,
        dist.data_parallel(state.method),
        plan,
        batches(plan),
        callbacks=[Meet(), broken],
        reporter=LocalReporter(logs),
    )
    return state.step, broken.failure, list(broken.images)


def test_all_ranks_stop_at_the_step_at_which_one_has_met_too_many(tmp_path: Path, run_ranks: RunRanks) -> None:
    first, second = run_ranks(2, _one_rank, tmp_path)
    assert first == second
    assert first[0] == 3
    assert first[2] == ["a.png: broken"]
    assert _listed(tmp_path) == ["a.png: broken"]


@pytest.mark.thorough
def test_what_is_odd_about_the_files_is_told_before_training(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "usr").mkdir()
    for number in range(40):
        os.symlink(folder / f"{number // 2:03}.jpg", tmp_path / "usr" / f"{number}.jpg")
    words = [*SMALL, "data=image_folder", f"data.path={tmp_path}", "train.batch_size=20", "data.label_type=zero"]
    prepare(load_config("quickstart", words))
    told = sorted(record.message for record in caplog.records if record.module == "parts")
    assert len(told) == 2
    assert told[0].startswith("20 of the 40 images of ")
    assert told[1] == f"all 40 images are one class, 'usr'; did you mean data.path={tmp_path}/usr?"


def test_a_restart_remembers_which_images_were_broken(tmp_path: Path) -> None:
    first = CorruptImages(CorruptLog(), Disk(tmp_path), limit=1)
    first.images = {"a: broken": None}
    second = CorruptImages(CorruptLog(), Disk(tmp_path), limit=1)
    second.load_state_dict(first.state_dict())
    assert second.images == first.images
