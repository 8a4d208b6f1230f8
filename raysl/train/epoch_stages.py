"""Stages of a run that begin with an epoch, of a setting that gives a number from each point on."""

import math
from collections.abc import Mapping

from raysl.errors import ConfigError
from raysl.plan.plan import TrainPlan
from raysl.schedule import Duration


def epoch_stages(name: str, course: Mapping[str, float], plan: TrainPlan) -> tuple[tuple[int, float], ...]:
    """Return the first epoch and the number of each stage, from first to last.

    Args:
        name: name of the setting, such as `train.view_scale`.
        course: number from each point on, a share of the run or epochs: {"0%": 0.5, "75%": 1}. It holds from the first
            epoch that begins at its point or later.

    Raises:
        ConfigError: if no stage begins with the run, two begin with one epoch, or one begins after the run.
    """
    lengths = [Duration.parse(start).length(plan.total_steps, plan.epoch_len) / plan.epoch_len for start in course]
    firsts = [math.ceil(length - 1e-9) for length in lengths]
    if 0 not in firsts:
        start, value = next(iter(course.items()))
        raise ConfigError(f"{name}: no stage begins with the run; add 0%, such as {{0%: 0.5, {start}: {value:g}}}")
    num_epochs = -(-plan.total_steps // plan.epoch_len)
    for start, first in zip(course, firsts, strict=True):
        if first >= num_epochs:
            raise ConfigError(
                f"{name}: a stage begins with an epoch, and none of the {num_epochs} epochs begins at {start} or "
                "later; give an earlier point, or more train.epochs"
            )
        if firsts.count(first) > 1:
            raise ConfigError(f"{name}: two stages would begin with epoch {first}; leave one of them out")
    return tuple(sorted(zip(firsts, course.values(), strict=True)))
