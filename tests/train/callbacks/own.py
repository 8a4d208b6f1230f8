"""A small run with callbacks, for tests of what they observe."""

from pathlib import Path

from raysl import distributed as dist
from raysl.methods.method import StepOutput
from raysl.schedule import Step
from raysl.train import Callback, LocalReporter, Run, TrainPlan, fit
from raysl.train.state import TrainState
from tests.train.problem import batches, problem


class Lines(Callback):
    """Keeps the logged lines, by step."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[int, dict[str, float]] = {}

    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        """See `Callback.on_log`."""
        self.found[step.index] = dict(line)


class Logs(Callback):
    """Logs a number of its own at the steps that it is given for."""

    def __init__(self, name: str, values: dict[int, float]) -> None:
        super().__init__()
        self.name = name
        self.values = values

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """See `Callback.on_step_end`."""
        if step.index in self.values:
            run.log({self.name: self.values[step.index]})


def train(
    folder: Path | None, *callbacks: Callback, overrides: tuple[str, ...] = (), state: TrainState | None = None
) -> tuple[TrainState, TrainPlan, dict[int, dict[str, float]]]:
    """A run of 8 steps, 4 an epoch, that logs each; its state, its plan and its lines."""
    fresh, plan = problem("train.log_every=1st", *overrides)
    state = state or fresh
    lines = Lines()
    model = dist.data_parallel(state.method)
    fit(state, model, plan, batches(plan), callbacks=[*callbacks, lines], reporter=LocalReporter(folder, keep=9))
    return state, plan, lines.found
