"""The course of the learning rate and of the weight decay: pure functions of the step and the settings."""

import dataclasses
import math
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

from raysl.config.schema import OptimConfig
from raysl.errors import ConfigError
from raysl.schedule import Step, cosine, decays, linear, progress_after, restart_progress, warmup

_IN_PHASES = ("schedule", "warmup", "warmup_start", "final_lr", "cosine_from")
"""What phases stand in place of; the points of steps and restarts come with their schedule."""


def peak_lr(optim: OptimConfig, batch_size: int) -> float:
    """Learning rate at the top of the schedule for a global batch of `batch_size` images."""
    share = batch_size / optim.lr_batch_size
    return optim.lr * {"none": 1.0, "linear": share, "sqrt": math.sqrt(share)}[optim.lr_scaling]


def lr_at(optim: OptimConfig, step: Step, batch_size: int) -> float:
    """Learning rate of the update that starts at `step`: a linear warm-up, then the schedule; or the phases."""
    peak = peak_lr(optim, batch_size)
    if optim.phases:
        return peak * _share_in_phases(optim, step)
    num_warmup = optim.warmup.steps(step.total, step.epoch_len)
    if step.index < num_warmup:
        return peak * warmup(step, num_warmup, optim.warmup_start)
    return _after_warmup(optim, step, num_warmup, peak)


def weight_decay_at(optim: OptimConfig, step: Step) -> float:
    """Weight decay of the update that starts at `step`."""
    if optim.weight_decay_end is None:
        return optim.weight_decay
    return cosine(step.progress, optim.weight_decay, optim.weight_decay_end)


def course_problems(optim: OptimConfig) -> Iterator[str]:
    """A line for each setting of the course that does not go with another."""
    if optim.phases:
        defaults = {field.name: field.default for field in dataclasses.fields(optim)}
        mixed = [name for name in _IN_PHASES if getattr(optim, name) != defaults[name]]
        if mixed:
            given = ", ".join(f"optim.{name}={getattr(optim, name)}" for name in mixed)
            back = " ".join(f"optim.{name}={defaults[name]}" for name in mixed)
            yield f"optim.phases: they stand in place of {given}; set {back}, which is the default, or no phases"
    if optim.decay_at and optim.schedule != "steps":
        yield f"optim.decay_at: schedule={optim.schedule} has no such points; set optim.schedule=steps, or leave it out"
    if optim.schedule == "steps" and not optim.decay_at:
        yield "optim.schedule: steps needs the points of the run to step down at; set optim.decay_at=[60%,80%]"
    if optim.restart_every is not None and optim.schedule != "restarts":
        yield (
            f"optim.restart_every: schedule={optim.schedule} has no restarts; set optim.schedule=restarts, "
            "or leave it out"
        )
    if optim.schedule == "restarts" and optim.restart_every is None:
        yield "optim.schedule: restarts needs the length of the first period; set optim.restart_every=25%"
    if optim.cosine_from == "start" and optim.schedule != "cosine":
        yield f"optim.cosine_from: schedule={optim.schedule} is no cosine; set optim.schedule=cosine, or leave it out"


def check_phases(optim: OptimConfig, total: int, epoch_len: int) -> None:
    """Refuse phases that do not last as long as the run.

    Raises:
        ConfigError: with the numbers.
    """
    lengths = [phase.length.length(total, epoch_len) for phase in optim.phases]
    if lengths and round(sum(lengths)) != total:
        told = " + ".join(str(phase.length) for phase in optim.phases)
        raise ConfigError(
            f"optim.phases: {told} come to {round(sum(lengths)):,} steps, and the run has {total:,}; give lengths that "
            "sum to it, in % where it may change"
        )


def _after_warmup(optim: OptimConfig, step: Step, num_warmup: int, peak: float) -> float:
    progress, end = progress_after(step, num_warmup), peak * optim.final_lr
    if optim.schedule == "constant":
        return peak
    if optim.schedule == "linear":
        return linear(progress, peak, end)
    if optim.schedule == "steps":
        return peak * decays(step, optim.decay_at, optim.decay_factor)
    if optim.schedule == "restarts":
        assert optim.restart_every is not None
        period = max(1, optim.restart_every.steps(step.total, step.epoch_len))
        progress = restart_progress(step.index - num_warmup, period, optim.restart_growth)
    elif optim.cosine_from == "start":
        progress = step.progress
    return cosine(progress, peak, end)


def _share_in_phases(optim: OptimConfig, step: Step) -> float:
    """Share of the peak; it is the ends of phases that are rounded to whole steps, so that nothing adds up."""
    lengths = [phase.length.length(step.total, step.epoch_len) for phase in optim.phases]
    ends = [round(end) for end in accumulate(lengths)]
    place = min(bisect_right(ends, step.index), len(ends) - 1)
    phase, begin = optim.phases[place], ends[place - 1] if place > 0 else 0
    progress = step.progress if phase.over == "run" else (step.index - begin) / max(1, ends[place] - begin)
    curve = cosine if phase.shape == "cosine" else linear
    return curve(progress, phase.start, phase.start if phase.end is None else phase.end)
