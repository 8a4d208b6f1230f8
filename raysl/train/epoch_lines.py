"""A line an epoch, for who trains in a notebook or a script of their own."""

import logging
import sys
import time

from raysl.errors import log
from raysl.methods.method import StepOutput
from raysl.plan.plan import TrainPlan
from raysl.process.screen import duration
from raysl.report.contents import describe_online
from raysl.schedule import Step
from raysl.train.late import Late, is_late


class EpochLines:
    """Shows a line at the end of each epoch: its last loss, and how long the rest takes.

    A program that has set up logging finds the lines in its log; else they go to stderr. On a GPU a line is shown when
    the next step has been queued.
    """

    def __init__(self, plan: TrainPlan, first: int) -> None:
        self.plan, self.first, self.began = plan, first, time.monotonic()
        self.unshown: tuple[str, Late, list[str]] | None = None

    def show(self, step: Step, out: StepOutput, metrics: dict[str, float]) -> None:
        """Prepare a line if an epoch, or the training, has ended with this step, and show what is due."""
        self.settle()
        if step.in_epoch and step.index < step.total:
            return
        spent_s = time.monotonic() - self.began
        rest_s = (step.total - step.index) * spent_s / (step.index - self.first)
        epoch = f"epoch {step.index / step.epoch_len:g}/{step.total / step.epoch_len:g}"
        rest = [
            *describe_online(metrics),
            *([f"{metrics['images_per_s']:,.0f} images/s"] if "images_per_s" in metrics else []),
            f"{duration(rest_s)} left" if rest_s else f"done in {duration(spent_s)}",
        ]
        self.unshown = epoch, Late(out.loss.view(1)), rest
        if not is_late(out.loss.device):
            self.settle()

    def settle(self) -> None:
        """Show the line that is still unshown."""
        if self.unshown is None:
            return
        (epoch, loss, rest), self.unshown = self.unshown, None
        parts = [epoch, f"loss {loss.read()[0]:.4f}", *rest]
        if log.level == logging.NOTSET:
            print(*parts, sep="  ", file=sys.stderr, flush=True)
        else:
            log.info("  ".join(parts))
