"""An end of this start at a step that is known before."""

from raysl.methods.method import StepOutput
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run


class Pause(Callback):
    """Stops the run with a checkpoint after some updates; the next start goes on from there.

    Args:
        last: updates to be done then, counted from the beginning of the run.
    """

    def __init__(self, last: int) -> None:
        self.last = last

    def on_train_start(self, run: Run) -> None:
        """A restart that finds them done makes no step."""
        self._look(run, run.plan.step(run.state.step))

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """See `Callback.on_step_end`."""
        self._look(run, step)

    def _look(self, run: Run, step: Step) -> None:
        if step.index >= self.last:
            run.stop("paused")
