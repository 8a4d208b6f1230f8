"""A line an epoch, for who trains in a notebook or a script of their own."""

import logging
import sys
import time

from raysl.log import log
from raysl.methods.method import StepOutput
from raysl.plan.plan import TrainPlan
from raysl.process.screen import duration
from raysl.report.contents import describe_online
from raysl.schedule import Step


class EpochLines:
    """Shows a line at the end of each epoch: its last loss, and how long the rest takes.

    A program that has set up logging finds the lines in its log; else they go to stderr.
    """

    def __init__(self, plan: TrainPlan, first: int) -> None:
        self.plan, self.first, self.began = plan, first, time.monotonic()

    def show(self, step: Step, out: StepOutput, metrics: dict[str, float]) -> None:
        """Show a line if an epoch, or the training, has ended with this step."""
        if step.in_epoch and step.index < step.total:
            return
        seconds = (time.monotonic() - self.began) / (step.index - self.first)
        left = (step.total - step.index) * seconds
        parts = [
            f"epoch {step.index / step.epoch_len:g}/{step.total / step.epoch_len:g}",
            f"loss {float(out.loss.detach()):.4f}",
            *describe_online(metrics),
            *([f"{metrics['images_per_s']:,.0f} images/s"] if "images_per_s" in metrics else []),
            f"{duration(left)} left" if left else f"done in {duration(seconds * (step.index - self.first))}",
        ]
        if log.level == logging.NOTSET:
            print(*parts, sep="  ", file=sys.stderr, flush=True)
        else:
            log.info("  ".join(parts))
