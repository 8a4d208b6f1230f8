"""Trackers of experiments get the lines of TensorBoard, go on with their run, and never end training."""

import importlib.util
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from raysl import load_config
from raysl.checkpoint.checkpoint_folder import checkpoint_name
from raysl.errors import ConfigError
from raysl.train.callbacks import tracking
from raysl.train.callbacks.callback import configured
from raysl.train.callbacks.mlflow_log import MLflow
from raysl.train.callbacks.tensorboard import TensorBoard
from raysl.train.callbacks.tracking import Tracking
from raysl.train.callbacks.wandb_log import WandB
from raysl.train.file_names import EVENTS_FILE, TRACKERS_FILE
from tests.train.callbacks.own import Logs, train
from tests.train.callbacks.test_pictures import summaries
from tests.train.problem import StopAt, problem

Lines = list[tuple[int, dict[str, float]]]
needs_wandb = pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="pip install -e '.[wandb]'")
needs_mlflow = pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="pip install -e '.[mlflow]'")


class _Kept(Tracking):
    """A tracker that keeps what it gets."""

    package, extra = "json", "kept"
    key = "callbacks.kept"

    def __init__(self) -> None:
        super().__init__(self.Config())
        self.ids: list[str] = []
        self.lines: Lines = []
        self.settings: dict[str, Any] = {}
        self.closed: list[str] = []

    def open(self, run_id: str, name: str, settings: dict[str, Any], folder: Path) -> None:
        self.ids.append(run_id)
        self.settings = settings

    def send(self, step: int, numbers: dict[str, float]) -> None:
        self.lines.append((step, numbers))

    def close(self, status: str) -> None:
        self.closed.append(status)


class _Failing(_Kept):
    def send(self, step: int, numbers: dict[str, float]) -> None:
        self.lines.append((step, numbers))
        raise ConnectionError("POST https://me:hunter22@host/log was refused")


class _Hanging(_Kept):
    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()

    def open(self, run_id: str, name: str, settings: dict[str, Any], folder: Path) -> None:
        self.release.wait()


def _events(folder: Path) -> list[str]:
    path = folder / EVENTS_FILE
    return [json.loads(line)["event"] for line in path.read_text().splitlines()] if path.exists() else []


def _twice(folder: Path, make: Any, *overrides: str) -> list[Any]:
    """A run of eight steps that is stopped after five and resumed, each with a tracker of its own."""
    first, second = make(), make()
    train(folder, first, StopAt(5), overrides=overrides)
    state, _ = problem("train.log_every=1st", *overrides)
    state.load(folder / checkpoint_name(5))
    train(folder, second, Logs("knn_k20_top1", {8: 50.0}), overrides=overrides, state=state)
    return [first, second]


@pytest.mark.thorough
def test_a_tracker_gets_the_numbers_of_tensorboard_with_their_names_and_steps(tmp_path: Path) -> None:
    tracker = _Kept()
    train(tmp_path, Logs("knn_k20_top1", {4: 50.0}), tracker, TensorBoard(tmp_path))
    seen = {(step, name): value for step, numbers in tracker.lines for name, value in numbers.items()}
    written = {at: value.simple_value for at, value in summaries(tmp_path).items()}
    assert len(seen) > 20
    assert seen[4, "train/knn_k20_top1"] == 50
    assert written == {at: pytest.approx(value, nan_ok=True) for at, value in seen.items()}
    assert tracker.closed == ["finished"]


@pytest.mark.thorough
def test_a_resume_goes_on_with_the_same_run_and_another_folder_has_another(tmp_path: Path) -> None:
    first, second = _twice(tmp_path / "a", _Kept)
    assert first.ids == second.ids
    assert [step for step, _ in first.lines + second.lines] == list(range(1, 9))
    assert first.closed + second.closed == ["interrupted", "finished"]
    assert json.loads((tmp_path / "a" / TRACKERS_FILE).read_text()) == {"callbacks.kept": first.ids[0]}
    other = _Kept()
    train(tmp_path / "b", other)
    assert other.ids != first.ids


def test_a_damaged_file_of_ids_gives_a_new_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / TRACKERS_FILE).write_text('{"callbacks.kept": 3}')
    assert len(tracking.own_id(tmp_path, "callbacks.kept")) == 16
    assert "is damaged" in caplog.text


@pytest.mark.thorough
def test_only_the_main_rank_tracks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = _Kept()
    monkeypatch.setattr(tracking.dist, "is_main", lambda: False)
    train(tmp_path, tracker)
    assert not tracker.ids
    assert not tracker.lines


@pytest.mark.thorough
def test_a_tracker_that_fails_is_told_once_without_its_password_and_ends_nothing(tmp_path: Path) -> None:
    tracker = _Failing()
    state, _, _ = train(tmp_path, tracker)
    assert state.step == 8
    assert len(tracker.lines) == 1
    (event,) = _events(tmp_path)
    assert "callbacks.kept failed: ConnectionError: POST https://***@host/log was refused" in event
    assert "metrics.jsonl" in event


def test_of_problems_at_the_same_time_one_is_told_once() -> None:
    sender = tracking.Sender("own")
    threads = [threading.Thread(target=sender._fail, args=(text,)) for text in ("first", "second")]
    with sender._lock:  # as while a problem is asked for
        for thread in threads:
            thread.start()
        assert not sender._has_failed
    for thread in threads:
        thread.join()
    assert sender.take_problem() in ("first", "second")
    assert sender.take_problem() is None


@pytest.mark.thorough
def test_a_tracker_that_hangs_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "END_WAIT_S", 0.1)
    tracker = _Hanging()
    started = time.monotonic()
    state, _, _ = train(tmp_path, tracker)
    assert state.step == 8
    assert time.monotonic() - started < 20
    assert "did not end in 0 s" in _events(tmp_path)[0]
    tracker.release.set()


@pytest.mark.thorough
def test_secrets_of_uris_do_not_reach_the_tracker(tmp_path: Path) -> None:
    tracker = _Kept()
    train(tmp_path, tracker, overrides=("data.path=s3://KEY:hunter22@bucket/x?region=eu", "data=image_folder"))
    assert tracker.settings["data.path"] == "s3://bucket/x?region=eu"
    assert tracker.settings["optim.lr"] == 0.1


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_named_with_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=rf"{name} needs {name}: pip install -e '\.\[{name}\]'"):
        configured(load_config("quickstart", [f"callbacks=[{name}]"]))


def test_a_server_with_a_password_is_refused() -> None:
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_PASSWORD"):
        load_config("quickstart", ["callbacks=[mlflow]", "callbacks.mlflow.server=https://me:hunter22@host"])


@needs_wandb
@pytest.mark.slow
def test_wandb_offline_keeps_two_starts_as_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "STOP_WAIT_S", 60.0)
    _twice(tmp_path, lambda: WandB(WandB.Config(mode="offline", group="tests")))
    assert not _events(tmp_path)
    records = [record for file in sorted(tmp_path.glob("wandb/offline-run-*/*.wandb")) for record in _records(file)]
    begun = [record.run for record in records if record.HasField("run")]
    assert {(run.project, run.run_group, run.run_id) for run in begun} == {("raysl", "tests", _id(tmp_path))}
    rows = [
        {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    _check_against_metrics(tmp_path, [(row["step"], row) for row in rows])


def _records(file: Path) -> list[Any]:
    """The records of a file of W&B, whose blocks have heads of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, found = file.read_bytes(), 7, []
    assert len(content) < 32768, "records are split where a block ends"
    while place < len(content):
        length = int.from_bytes(content[place + 4 : place + 6], "little")
        found.append(Record.FromString(content[place + 7 : place + 7 + length]))
        place += 7 + length
    return found


@needs_mlflow
@pytest.mark.slow
def test_mlflow_without_a_server_keeps_two_starts_as_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(tracking, "STOP_WAIT_S", 60.0)
    _twice(tmp_path, lambda: MLflow(MLflow.Config(experiment="tests")))
    assert not _events(tmp_path)
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "quickstart")
    assert run.data.tags["raysl.id"] == _id(tmp_path)
    assert run.data.params["optim.lr"] == "0.1"
    history = client.get_metric_history(run.info.run_id, "train/loss")
    _check_against_metrics(tmp_path, [(metric.step, {"train/loss": metric.value}) for metric in history])


@needs_mlflow
@pytest.mark.slow
def test_a_server_that_is_not_there_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "END_WAIT_S", 2.0)
    state, _, _ = train(tmp_path, MLflow(MLflow.Config(server="http://127.0.0.1:9")))
    assert state.step == 8
    assert len(_events(tmp_path)) == 1


def _id(folder: Path) -> str:
    (found,) = json.loads((folder / TRACKERS_FILE).read_text()).values()
    return str(found)


def _check_against_metrics(folder: Path, rows: Lines) -> None:
    """Compare the losses with those of eight steps in one go."""
    _, _, lines = train(folder / "whole")
    assert [step for step, _ in rows] == list(range(1, 9))
    assert [row["train/loss"] for _, row in rows] == pytest.approx([lines[step]["loss"] for step in range(1, 9)])
