"""A checkpoint on request, between those that are planned."""

from pathlib import Path

import pytest
from typing_extensions import override

from raysl.methods.method import StepOutput
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.callbacks.stop import StopRequest, ask_to_save
from raysl.train.loop import fit
from raysl.train.reporter import LocalReporter
from tests.train.problem import batches, problem


class _AskAt(Callback):
    """Asks for a checkpoint after a step, as another thread may."""

    def __init__(self, step: int) -> None:
        self.step = step

    @override
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        if step.index == self.step:
            ask_to_save()


@pytest.mark.thorough
@pytest.mark.parametrize(("is_late", "saved"), [(False, 3), (True, 4)])
def test_a_request_saves_one_checkpoint_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool, saved: int
) -> None:
    monkeypatch.setattr("raysl.train.callbacks.stop.is_late", lambda device: is_late)
    state, plan = problem("train.checkpoint_every=100st", "train.epochs=2")
    asked, stop = _AskAt(3), StopRequest(lambda: False)
    fit(state, state.method, plan, batches(plan), callbacks=[asked, stop], reporter=LocalReporter(tmp_path, keep=9))
    assert state.step == plan.total_steps > saved
    names = sorted(path.name for path in tmp_path.glob("checkpoint_*"))
    assert names == [f"checkpoint_{saved:09d}", f"checkpoint_{plan.total_steps:09d}"]


@pytest.mark.thorough
def test_a_request_that_came_before_the_first_step_is_heeded_then(tmp_path: Path) -> None:
    ask_to_save()
    state, plan = problem("train.checkpoint_every=100st", "train.epochs=1")
    stop = StopRequest(lambda: False)
    fit(state, state.method, plan, batches(plan), callbacks=[stop], reporter=LocalReporter(tmp_path, keep=9))
    assert (tmp_path / "checkpoint_000000001").exists()
