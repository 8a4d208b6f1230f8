"""The end of a run that does not get better any more."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from raysl import distributed as dist
from raysl.config.ranges import Amount, Every
from raysl.config.schema import CallbackConfig
from raysl.errors import RunFailed
from raysl.schedule import Duration, Step
from raysl.train.callbacks.callback import Callback, Run


class EarlyStop(Callback):
    """Finishes the run when a logged number has not become better for `patience`.

    Better is by more than `min_delta`; a number that is NaN or infinite is not. The main rank's numbers count. The run
    then counts as finished, with a checkpoint, and is measured; `train.extend=true` goes on with it for another
    `patience`. Only lines that have the number are looked at, so the run goes on until the first one behind it.

    Raises:
        RunFailed: if no line within `patience` has the number, with those that there are.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(CallbackConfig):
        """What to wait for, and how long."""

        metric: str
        """A logged number, such as `knn_top1`."""
        mode: Literal["min", "max"]
        """Whether less of it is better, or more."""
        patience: Every = field(default=Duration.parse("10ep"))
        """How long it may go without becoming better."""
        min_delta: Amount = 0.0
        """What it has to become better by, at least."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.best: float | None = None
        self.best_step: int | None = None
        self.has_finished = False

    def on_train_start(self, run: Run) -> None:
        """Where a run that has been ended is gone on with, the patience begins anew."""
        if self.best_step is None or self.has_finished:
            self.best_step = run.state.step
        self.has_finished = False

    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        """See `Callback.on_log`."""
        config = self.config
        value = dist.gather_objects(line[config.metric])[0] if config.metric in line else None
        assert self.best_step is not None
        if value is not None and self._is_better(value):
            self.best, self.best_step = value, step.index
        waited = step.index - self.best_step
        if waited < max(1, config.patience.steps(step.total, step.epoch_len)):
            return
        if self.best is None and value is None:
            raise RunFailed(
                f"callbacks: early stop waits for {config.metric!r}, which nothing has logged in {waited} steps; "
                f"there are: {', '.join(sorted(line))}"
            )
        if value is None:
            return
        self.has_finished = True
        best = (
            "was never finite" if self.best is None else f"has been {self.best:.6g} at best, at step {self.best_step}"
        )
        reason = f"early stop at step {step.index}: {config.metric} {best}"
        run.note(reason)
        run.finish(reason)

    def _is_better(self, value: float) -> bool:
        if not math.isfinite(value) or self.best is None:
            return math.isfinite(value)
        gain = self.best - value if self.config.mode == "min" else value - self.best
        return bool(gain > self.config.min_delta)

    def state_dict(self) -> dict[str, Any]:
        """See `Callback.state_dict`."""
        return {"best": self.best, "best_step": self.best_step, "has_finished": self.has_finished}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Callback.load_state_dict`."""
        for name, value in state.items():
            setattr(self, name, value)
