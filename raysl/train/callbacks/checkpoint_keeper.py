"""Which checkpoints of a run stay beside the newest ones: the best, and some of all along."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raysl import distributed as dist
from raysl.checkpoint.files import Kept, checkpoint_name
from raysl.config.ranges import Every
from raysl.config.schema import CallbackConfig
from raysl.schedule import Step
from raysl.storage.folder import Folder
from raysl.train.callbacks.callback import Callback, Run


class CheckpointKeeper(Callback):
    """Keeps the best checkpoint by a logged number, and one each `every`, from being deleted.

    `train.keep_checkpoints` newest ones stay as they do without it. The number of a checkpoint is the newest that was
    logged since the one before; without one, or with one that is NaN or infinite, it cannot become the best. Of equal
    ones the first is the best. `kept.json` in the run's folder says which they are, best first: `Result.best` is the
    address of the first that is there. A restart forgets what lies behind the restored step; a keeper that judges by
    another number or mode ranks anew, from the next checkpoint on.

    Source: BestCheckpointer and PeriodicCheckpointer of Detectron2.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(CallbackConfig):
        """What to keep."""

        metric: str | None = None
        """A logged number, such as `knn_top1`, that the best checkpoint is told by. Default: none is the best."""
        mode: Literal["min", "max"] | None = None
        """Whether less of it is better, or more; has to be said of a metric."""
        every: Every | None = None
        """Checkpoints of multiples of this stay for good; they must be some of `train.checkpoint_every`."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.metric is None and self.every is None:
                raise ValueError("nothing would be kept; set metric, every or both")
            if self.metric is not None and self.mode is None:
                raise ValueError(f"set mode=min if less {self.metric} is better, mode=max if more")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.newest: float | None = None

    def on_train_start(self, run: Run) -> None:
        """See `Callback.on_train_start`."""
        if dist.is_main():
            with run.writing() as place:
                Kept.read(Folder(str(place))).until(run.state.step).write(place)

    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        """See `Callback.on_log`."""
        if self.config.metric in line:
            self.newest = line[self.config.metric]

    def on_checkpoint(self, run: Run, folder: Path) -> None:
        """See `Callback.on_checkpoint`."""
        step = run.plan.step(run.state.step)
        name, value = checkpoint_name(step.index), self.newest
        self.newest = None
        with run.writing() as place:
            kept = Kept.read(Folder(str(place))).until(step.index - 1)
            if kept.rule != (rule := (self.config.metric, self.config.mode)):
                kept = Kept(rule=rule, always=kept.always)
            if value is not None and math.isfinite(value):
                kept = kept.ranked(name, value, self.config.mode)
            if self.config.every is not None and self.config.every.is_due(step):
                kept = kept.with_always(name)
            kept.write(place)
