"""What observes a run."""

from pathlib import Path
from typing import Any

from raysl.checkpoint import TrainState
from raysl.methods.method import StepOutput
from raysl.schedule import Step
from raysl.train.plan import TrainPlan


class Run:
    """What callbacks see of a run, and what they may do to it: log numbers, and ask it to stop.

    Attributes:
        state: what is trained.
        plan: how.
        metrics: the newest value of every number logged so far.
        line: what has been logged at this step.
        stopped: the reason given to `stop`, or None.
    """

    def __init__(self, state: TrainState, plan: TrainPlan) -> None:
        self.state = state
        self.plan = plan
        self.metrics: dict[str, float] = {}
        self.line: dict[str, float] = {}
        self.stopped: str | None = None

    def log(self, numbers: dict[str, float]) -> None:
        """Add numbers to the line of this step. All ranks log the same names at the same steps."""
        self.line.update(numbers)
        self.metrics.update(numbers)

    def stop(self, reason: str) -> None:
        """End training after this step, with a checkpoint. All ranks must ask at the same step."""
        self.stopped = reason


class Callback:
    """Observes training on every rank; it touches neither weights nor gradients. Does nothing unless overridden."""

    def on_train_start(self, run: Run) -> None:
        """Before the first step of this start."""

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """After an update; `step` is the point behind it."""

    def on_epoch_end(self, run: Run, step: Step) -> None:
        """After the last update of an epoch."""

    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        """After the other callbacks of a step at which something was logged."""

    def on_checkpoint(self, run: Run, folder: Path) -> None:
        """When a checkpoint is about to be written to a local folder, on the main rank; what is put there joins it."""

    def on_train_end(self, run: Run) -> None:
        """After the last step."""

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart: numbers, text and tensors only."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
