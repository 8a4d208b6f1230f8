"""The learning rate and the weight decay of every group of parameters."""

from raysl.methods.method import StepOutput
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run


class LearningRates(Callback):
    """Logs `lr/N` and `weight_decay/N` of the update just made, for each group N of the optimizer's parameters.

    The groups are those of `Method.param_groups`, from 0. The line's own `lr` is the schedule's, before any group's
    `lr_scale`.

    Source: LogLossLrEtaHook of VISSL, LRScheduler of Detectron2 (which write one group's).
    """

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """See `Callback.on_step_end`."""
        if not run.is_log_due(step):
            return
        for number, group in enumerate(run.state.optimizer.param_groups):
            run.log({f"lr/{number}": float(group["lr"]), f"weight_decay/{number}": float(group["weight_decay"])})
