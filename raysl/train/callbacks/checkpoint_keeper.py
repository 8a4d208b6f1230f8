"""Checkpoints that a run keeps beside the newest ones: the best, and one every so often."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from typing_extensions import override

from raysl import distributed as dist
from raysl.checkpoint.checkpoint_folder import Kept, checkpoint_name
from raysl.config.ranges import Every
from raysl.storage.folder import Folder
from raysl.train.callbacks.callback import Callback, CallbackConfig, Run, Step


class CheckpointKeeper(Callback):
    """Keeps the best checkpoint by a logged number, and one each `every`, from being deleted.

    The `train.keep_checkpoints` newest ones stay as well. A checkpoint is judged by the last value logged since the
    previous checkpoint; without one, or with NaN or infinity, it cannot become the best. Of equals the first is the
    best. `kept.json` in the run's folder names the checkpoints, best first; `Result.best` is the address of the first
    that exists. A restart forgets those after the restored step. After a change of metric or mode the ranking begins
    anew with the next checkpoint.

    Source: BestCheckpointer and PeriodicCheckpointer of Detectron2.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(CallbackConfig):
        """What to keep."""

        metric: str | None = None
        """The logged number, such as `knn_k20_top1`, that decides which checkpoint is the best. Default: none is."""
        mode: Literal["min", "max"] | None = None
        """Whether smaller or larger values are better; required with `metric`."""
        every: Every | None = None
        """Checkpoints at multiples of this stay for good; use a multiple of `train.checkpoint_every`."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.metric is None and self.every is None:
                raise ValueError("nothing would be kept; set metric, every or both")
            if self.metric is not None and self.mode is None:
                raise ValueError(f"set mode=min if less {self.metric} is better, mode=max if more")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.newest: float | None = None
        self.saved: tuple[int, float | None] = (0, None)  # step of the newest checkpoint, and its number

    @override
    def on_train_start(self, run: Run) -> None:
        if dist.is_main():
            with run.writing() as root:
                Kept.read(Folder(str(root))).until(run.state.step).write(root)

    @override
    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        if self.config.metric in line and step.index:  # not of the network before training
            self.newest = line[self.config.metric]

    @override
    def on_checkpoint(self, run: Run, folder: Path) -> None:
        step = run.plan.step(run.state.step)
        # a checkpoint that could not be written is saved again, with the same number
        if self.saved[0] != step.index:
            self.saved, self.newest = (step.index, self.newest), None
        name, value = checkpoint_name(step.index), self.saved[1]
        with run.writing() as root:
            kept = Kept.read(Folder(str(root))).until(step.index - 1)
            if kept.rule != (rule := (self.config.metric, self.config.mode)):
                kept = Kept(rule=rule, always=kept.always)
            if value is not None and math.isfinite(value):
                kept = kept.ranked(name, value, self.config.mode)
            if self.config.every is not None and self.config.every.is_due(step):
                kept = kept.with_always(name)
            kept.write(root)
