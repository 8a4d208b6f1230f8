"""What is logged before the first step is a line of step 0: a curve begins with the network before training."""

import json
from pathlib import Path

import pytest

from raysl.checkpoint.checkpoint_folder import checkpoint_name
from raysl.runs.folder import RunFolder
from raysl.train import Callback, Run
from raysl.train.callbacks.checkpoint_keeper import CheckpointKeeper
from raysl.train.callbacks.early_stop import EarlyStop
from raysl.train.callbacks.logs import MetricsLog
from tests.train.callbacks.own import Logs, train
from tests.train.problem import StopAt, problem


class _Untrained(Callback):
    """Logs a number before the first step of a run."""

    def on_train_start(self, run: Run) -> None:
        if run.state.step == 0:
            run.log({"knn_k20_top1": 90.0})


def _lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.thorough
def test_a_run_begins_with_a_line_of_step_0_and_has_one_after_a_resume_too(tmp_path: Path) -> None:
    train(tmp_path, _Untrained(), MetricsLog(tmp_path), StopAt(3))
    assert _lines(tmp_path)[0] == {"step": 0, "epoch": 0.0, "knn_k20_top1": 90.0}
    state, _ = problem("train.log_every=1st")
    state.load(tmp_path / checkpoint_name(3))
    train(tmp_path, _Untrained(), MetricsLog(tmp_path), state=state)
    assert [line["step"] for line in _lines(tmp_path)] == list(range(9))
    train(tmp_path, _Untrained(), MetricsLog(tmp_path), StopAt(1))
    assert [line["step"] for line in _lines(tmp_path)] == [0, 1], "a start from the beginning logs it again"


@pytest.mark.thorough
def test_the_network_before_training_is_neither_the_best_checkpoint_nor_an_improvement(tmp_path: Path) -> None:
    keeper = CheckpointKeeper(CheckpointKeeper.Config(metric="knn_k20_top1", mode="max"))
    stop = EarlyStop(EarlyStop.Config(metric="knn_k20_top1", mode="max"))
    train(tmp_path, _Untrained(), Logs("knn_k20_top1", {4: 50.0, 8: 60.0}), keeper, stop)
    assert stop.best == 60.0
    assert json.loads((tmp_path / "kept.json").read_text())["best"][0][1] == 60.0


def test_a_run_that_logged_nothing_but_step_0_binds_no_later_start(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path))
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "epoch": 0.0, "knn_k20_top1": 90.0}\n')
    assert folder._has_no_step(folder.newest())
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "epoch": 0.5, "loss": 1.0}\n')
    assert not folder._has_no_step(folder.newest())
