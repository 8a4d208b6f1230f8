"""A word when the embeddings collapse, or a logged number is none."""

import math
from pathlib import Path
from typing import Any

from raysl import distributed as dist
from raysl.nn.collapse import COLLAPSE
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.disk import Disk
from raysl.train.files import note_event

SPREAD = COLLAPSE[0]
SHARE = 1e-3  # of the spread at the start
STEPS = 100  # for so long, so that one bad step is not taken for a collapse
REMEDIES = (
    "the usual remedies are a lower optim.lr, a longer optim.warmup, a larger train.batch_size, and the paper's values "
    "of what keeps its method from collapsing (a predictor, centring, the teacher's momentum, the temperatures)"
)
NAN_REMEDIES = (
    "the usual remedies are a lower optim.lr, a longer optim.warmup, train.clip_grad, and train.precision=fp32"
)


class CollapseWatch(Callback):
    """Says so once when `embedding_std` has stayed below a thousandth of its start for 100 steps, with what may help.

    Says likewise, once, which logged number became NaN or infinite while the loss did not: a loss that does ends the
    run (`raysl.train.late`). Looks at logged lines alone, so that no step waits for a GPU.

    Args:
        logs: local folder of the run's logs.
        disk: is told where it is full.
    """

    def __init__(self, logs: Path, disk: Disk | None = None) -> None:
        self.logs = logs
        self.disk = disk or Disk()
        self.start: float | None = None
        self.low_since: int | None = None
        self.is_collapse_told = False
        self.is_nan_told = False

    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        """See `Callback.on_log`."""
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
            with self.disk.writing(self.logs):
                note_event(self.logs, event)

    def state_dict(self) -> dict[str, Any]:
        """See `Callback.state_dict`."""
        return {
            "start": self.start,
            "low_since": self.low_since,
            "is_collapse_told": self.is_collapse_told,
            "is_nan_told": self.is_nan_told,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Callback.load_state_dict`."""
        for name, value in state.items():
            setattr(self, name, value)
