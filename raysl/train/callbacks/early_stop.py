"""The end of a run that no longer improves."""

import math
from dataclasses import dataclass, field
from typing import Literal

from typing_extensions import override

from raysl import distributed as dist
from raysl.config.ranges import Amount, Every
from raysl.errors import RunFailed
from raysl.schedule import Duration, Step
from raysl.train.callbacks.callback import Callback, CallbackConfig, Run


class EarlyStop(Callback):
    """Finishes the run when a logged number has not improved for `patience`.

    An improvement is larger than `min_delta`; NaN and infinity never count as one. Only the main rank's numbers count.
    The run then counts as finished, with a checkpoint, and is measured; `train.extend=true` goes on with it for another
    `patience`. The run ends at the first line that has the number after `patience` is over.

    Raises:
        RunFailed: if no line within `patience` has the number; the message lists the numbers of the last line.
    """

    stored = ("best", "best_step", "has_finished")

    @dataclass(frozen=True, kw_only=True)
    class Config(CallbackConfig):
        """What to wait for, and how long."""

        metric: str
        """A logged number, such as `knn_k20_top1`."""
        mode: Literal["min", "max"]
        """Whether smaller or larger values are better."""
        patience: Every = field(default=Duration.parse("10ep"))
        """How long it may go without improving."""
        min_delta: Amount = 0.0
        """The smallest change that counts as an improvement."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.best: float | None = None
        self.best_step: int | None = None
        self.has_finished = False

    def on_train_start(self, run: Run) -> None:
        # a finished run that is extended gets its patience anew
        if self.best_step is None or self.has_finished:
            self.best_step = run.state.step
        self.has_finished = False

    @override
    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        if not step.index:  # of the network before training
            return
        config = self.config
        # the main rank's value decides, so that all ranks stop at the same step
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
