"""Whole runs on a storage that fails, with folders that were damaged, and with a dataset that changed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from raysl.config.load import load_config
from raysl.data.stream.loader import LocalBatches
from raysl.train import LocalReporter, fit
from raysl.train.callbacks.logs import MetricsLog, parse_metrics
from raysl.train.prepare import prepare
from raysl.train.state import TrainState
from tests.faults import Faults
from tests.runs.runs import (
    SMALL,
    assert_same,
    finish,
    kill_driver,
    kill_worker,
    logged_step,
    start,
    tensors,
    wait_for_step,
)


@pytest.fixture(autouse=True)
def children_know_the_faults(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in faults.environment().items():
        monkeypatch.setenv(name, value)


def events(run: Path) -> list[str]:
    return [json.loads(line)["event"] for line in (run / "events.jsonl").read_text().splitlines()]


def undisturbed(folder: Path, *words: str) -> None:
    """The same run in this process, without Ray: its checkpoints."""
    run = prepare(load_config("quickstart", [*SMALL, *words]))
    state = TrainState.create(run.setup)
    batches = LocalBatches(replace(run.loader, augment_in_task=True))
    fit(state, state.method, run.setup.plan, batches, callbacks=[MetricsLog(folder)], reporter=LocalReporter(folder))


def check_as_undisturbed(folder: Path, run: Path, starts: list[str], *words: str) -> None:
    """Fail unless a run has all its logs, and ended with the bits of the same run in this process."""
    found = [line.split()[0] for line in events(run) if "on 1 worker on " in line]
    assert found == starts
    assert len(list(run.glob("checkpoint_*"))) == 2
    undisturbed(folder, *words)
    assert_same(tensors(folder)["method"], tensors(run)["method"])
    calm, hit = (parse_metrics((path / "metrics.jsonl").read_bytes()) for path in (folder, run))
    assert [line["step"] for line in hit] == list(range(1, len(calm) + 1))
    assert [line["loss"] for line in calm] == [line["loss"] for line in hit]


@pytest.mark.slow
def test_a_remote_run_that_loses_its_worker_ends_as_one_in_a_notebook(tmp_path: Path) -> None:
    storage, run = f"faulty://{tmp_path}/bucket", tmp_path / "bucket" / "one"
    process = start(storage, "one", "train.epochs=10")
    wait_for_step(run, 10, process)
    kill_worker(process)
    finish(process)
    check_as_undisturbed(tmp_path / "calm", run, ["started", "going"], "train.epochs=10")


@pytest.mark.slow
def test_a_remote_run_that_loses_worker_driver_and_storage_ends_as_one_that_lost_nothing(
    tmp_path: Path, faults: Faults
) -> None:
    storage, run = f"faulty://{tmp_path}/bucket", tmp_path / "bucket" / "one"
    long = ("train.epochs=40", "train.checkpoint_every=10st")
    process = start(storage, "one", *long, "train.max_failures=1")
    wait_for_step(run, 20, process)
    kill_worker(process)
    wait_for_step(run, 40, process)
    faults.add("*", "bucket/one/", times=15)  # every poll, upload and lock renewal, as when a network is down
    while faults.num_left():
        assert process.poll() is None, process.communicate()[0]
    kill_driver(process)
    assert "resumed at step" in finish(start(storage, "one", *long))
    check_as_undisturbed(tmp_path / "calm", run, ["started", "going", "resumed"], *long)


@pytest.mark.slow
def test_a_dataset_that_changed_is_refused_and_then_accepted(tmp_path: Path) -> None:
    from PIL import Image

    images = tmp_path / "images"
    images.mkdir()
    for number in range(320):
        Image.new("RGB", (20, 20), (number % 256, 99, 7)).save(images / f"{number:03}.png")
    words = ["data=image_folder", f"data.path={images}", "data.limit=null", "data.image_size=16"]
    process = start(tmp_path, "one", *words)
    wait_for_step(tmp_path / "one", 16, process)
    kill_driver(process)
    for number in range(320, 384):
        Image.new("RGB", (20, 20), (7, 99, number % 256)).save(images / f"{number:03}.png")
    refused = start(tmp_path, "one", *words)
    output, _ = refused.communicate(timeout=120)
    assert refused.returncode == 2
    assert "training images: 320 -> 384" in output
    assert "Traceback" not in output
    output = finish(start(tmp_path, "one", *words, "data.changed=accept"))
    assert "goes on with a changed dataset" in output
    assert "resumed at step 12 of 60" in output
    assert logged_step(tmp_path / "one") == 60


@pytest.mark.slow
def test_too_many_broken_images_are_remembered_after_the_last_step(tmp_path: Path) -> None:
    from PIL import Image

    images = tmp_path / "images"
    images.mkdir()
    for number in range(64):
        Image.new("RGB", (20, 20), (number, 99, 7)).save(images / f"{number:02}.png")
    (images / "05.png").write_bytes(b"broken")
    words = ["data=image_folder", f"data.path={images}", "data.limit=null", "data.image_size=16", "train.epochs=1"]
    words += ["train.log_every=2st", "data.max_corrupt=0"]
    for _ in range(2):
        process = start(tmp_path, "one", *words)
        output, _ = process.communicate(timeout=150)
        assert process.returncode == 1, output
        assert "1 image is broken, data.max_corrupt allows 0: " in output
    finish(start(tmp_path, "one", *words, "data.max_corrupt=0.5"))
