"""Advice to the user, once, when training waits for its data, embeddings collapse or a logged number is not finite."""

import math

from typing_extensions import override

from raysl import distributed as dist
from raysl.nn.collapse import COLLAPSE
from raysl.train.callbacks.callback import Callback, Run, Step
from raysl.train.disk import Disk

MUCH = 0.2  # share of the time
LINES = 5  # logged lines in a row: more than a slow start has


class DataWait(Callback):
    """Notes once that training spends much of its time waiting for data, and what may help."""

    def __init__(self, disk: Disk, augment_in_task: bool) -> None:
        self.disk = disk
        self.augment_in_task = augment_in_task
        self.shares: list[float] = []
        self.is_noted = False

    @override
    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        if self.is_noted or "data_wait" not in line or not dist.is_main():
            return
        self.shares = [*self.shares, line["data_wait"]][-LINES:]
        if len(self.shares) == LINES and min(self.shares) > MUCH:
            self.is_noted = True
            share = sum(self.shares) / LINES
            other = "device" if self.augment_in_task else "task"
            self.disk.note(
                f"data wait {share:.0%}: training waits for images; add CPU nodes, or set data.augment_on={other}, "
                "or a smaller method.views.size"
            )


SPREAD = COLLAPSE[0]
SHARE = 1e-3  # of the first spread
STEPS = 100  # in a row: one bad step is not a collapse
REMEDIES = (
    "the usual remedies are a lower optim.lr, a longer optim.warmup, a larger train.batch_size, and the paper's values "
    "for what keeps its method from collapsing (a predictor, centring, the teacher's momentum, the temperatures)"
)
NAN_REMEDIES = (
    "the usual remedies are a lower optim.lr, a longer optim.warmup, train.clip_grad, and train.precision=fp32"
)


class CollapseWatch(Callback):
    """Notes once that `embedding_std` has stayed below a thousandth of its first value for 100 steps, and what may
    help.

    Notes once, too, which logged number became NaN or infinite while the loss stayed finite; a loss that is not finite
    ends the run (`raysl.train.late`). Only logged lines are read, so no step waits for a GPU.
    """

    stored = ("start", "low_since", "is_collapse_told", "is_nan_told")

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.start: float | None = None
        self.low_since: int | None = None
        self.is_collapse_told = False
        self.is_nan_told = False

    @override
    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        self._look_for_nan(step, line)
        spread = line.get(SPREAD)
        if spread is None or not math.isfinite(spread):
            return
        if self.start is None:
            self.start = spread
        if spread >= SHARE * self.start:
            self.low_since = None
            return
        if self.low_since is None:
            self.low_since = step.index
        if step.index - self.low_since >= STEPS and not self.is_collapse_told:
            self.is_collapse_told = True
            self._note(
                f"the embeddings have collapsed: {SPREAD} was {self.start:.3g} at the start, and below a thousandth of "
                f"that since step {self.low_since} (now {spread:.3g}); {REMEDIES}"
            )

    def _look_for_nan(self, step: Step, line: dict[str, float]) -> None:
        bad = [name for name, value in line.items() if not math.isfinite(value)]
        if bad and not self.is_nan_told:
            self.is_nan_told = True
            shown = ", ".join(f"{name} is {line[name]}" for name in bad)
            self._note(f"at step {step.index} {shown}, though the loss is finite; {NAN_REMEDIES}")

    def _note(self, event: str) -> None:
        if dist.is_main():
            self.disk.note(event)
