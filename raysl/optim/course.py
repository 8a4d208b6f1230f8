"""Learning rate and weight decay over a run: pure functions of the step and the settings."""

import math
from bisect import bisect_right
from itertools import accumulate

from raysl.config.schema import OptimConfig
from raysl.errors import ConfigError
from raysl.schedule import (
    Step,
    cosine,
    decays,
    even_part,
    inverse_sqrt,
    linear,
    polynomial,
    progress_after,
    restart_period,
    warmup,
)


def peak_lr(optim: OptimConfig, batch_size: int) -> float:
    """Return the highest learning rate of the schedule for a global batch of `batch_size` images.

    >>> from raysl.optim.sgd import SGD
    >>> peak_lr(SGD.Config(lr=0.1, lr_scaling="linear", lr_batch_size=256), batch_size=1024)
    0.4
    """
    share = batch_size / optim.lr_batch_size
    return optim.lr * {"none": 1.0, "linear": share, "sqrt": math.sqrt(share)}[optim.lr_scaling]


def lr_at(optim: OptimConfig, step: Step, batch_size: int) -> float:
    """Return the learning rate of the update that starts at `step`: a linear warm-up, then the schedule; or the phases.

    >>> from raysl.optim.sgd import SGD
    >>> from raysl.schedule import Duration
    >>> optim = SGD.Config(lr=1.0, lr_scaling="none", schedule="linear", warmup=Duration(10, "st"))
    >>> [round(lr_at(optim, Step(index, total=110, epoch_len=10), batch_size=256), 2) for index in (0, 9, 10, 60)]
    [0.1, 1.0, 1.0, 0.5]
    """
    peak, step = peak_lr(optim, batch_size), _changed_at(optim, step)
    if optim.phases:
        return peak * _share_in_phases(optim, step)
    num_warmup = optim.warmup.steps(step.total, step.epoch_len)
    if step.index < num_warmup:
        return peak * warmup(step, num_warmup, optim.warmup_start)
    return _after_warmup(optim, _stretched(optim, step), num_warmup, peak)


def weight_decay_at(optim: OptimConfig, step: Step) -> float:
    """Return the weight decay of the update that starts at `step`.

    >>> from raysl.optim.adam import AdamW
    >>> weight_decay_at(AdamW.Config(weight_decay=0.04, weight_decay_end=0.4), Step(50, total=100, epoch_len=10))
    0.22
    """
    if optim.weight_decay_end is None:
        return optim.weight_decay
    curve = cosine if optim.weight_decay_schedule == "cosine" else linear
    progress = _stretched(optim, _changed_at(optim, step)).progress
    return curve(progress, optim.weight_decay, optim.weight_decay_end)


def _changed_at(optim: OptimConfig, step: Step) -> Step:
    """Return the update whose values apply at `step`."""
    return step if optim.update_every == "step" else Step(step.index - step.in_epoch, step.total, step.epoch_len)


def _stretched(optim: OptimConfig, step: Step) -> Step:
    """Return the same update in a run of the schedules' length, `optim.stretch` times this one."""
    return Step(step.index, round(step.total * optim.stretch), step.epoch_len)


def check_phases(optim: OptimConfig, total: int, epoch_len: int) -> None:
    """Refuse phases whose lengths do not add up to the run."""
    lengths = [phase.length.length(total, epoch_len) for phase in optim.phases]
    if lengths and round(sum(lengths)) != total:
        terms = " + ".join(str(phase.length) for phase in optim.phases)
        raise ConfigError(
            f"optim.phases: {terms} add up to {round(sum(lengths)):,} steps, and the run has {total:,}; give lengths "
            "that add up to it, in % if it may change"
        )


def _after_warmup(optim: OptimConfig, step: Step, num_warmup: int, peak: float) -> float:
    progress, end = progress_after(step, num_warmup), peak * optim.final_lr
    if optim.schedule == "constant":
        return peak
    if optim.schedule == "linear":
        return linear(progress, peak, end)
    if optim.schedule == "polynomial":
        return polynomial(progress, peak, end, optim.power)
    if optim.schedule == "inverse_sqrt":
        return peak * inverse_sqrt(step, num_warmup)
    if optim.schedule == "steps":
        return peak * _share_in_steps(optim, step, num_warmup)
    if optim.schedule == "restarts":
        return peak * _share_in_restarts(optim, step, num_warmup)
    return cosine(step.progress if optim.cosine_from == "start" else progress, peak, end)


def _share_in_steps(optim: OptimConfig, step: Step, num_warmup: int) -> float:
    if optim.values:
        if not optim.decay_at:
            return optim.values[even_part(step, num_warmup, len(optim.values))]
        return optim.values[sum(point.is_over(step) for point in optim.decay_at)]
    if optim.num_decays:
        return optim.decay_factor ** even_part(step, num_warmup, optim.num_decays + 1)
    return decays(step, optim.decay_at, optim.decay_factor)


def _share_in_restarts(optim: OptimConfig, step: Step, num_warmup: int) -> float:
    """Return the share of the peak; peaks of full waves change at the troughs between them, after 1, 3, ... periods.

    The rules are those of VISSL's `cosine_warm_restart`.
    """
    assert optim.restart_every is not None
    past, length_left = step.index - num_warmup, max(1, step.total - num_warmup)
    period = max(1, optim.restart_every.steps(step.total, step.epoch_len))
    number, begin, length = restart_period(past, period, optim.restart_growth)
    is_full = optim.restart_wave == "full"
    progress = (past - begin) / length
    if is_full:
        up = number % 2  # 1 for a period that rises back to the peak
        number, begin = (number + 1) // 2, begin + period if up or number == 0 else begin
        progress = 1 - progress if up else progress
    if optim.restart_peak == "cosine":
        top = cosine(begin / length_left, 1.0, optim.final_lr)
    else:
        top = optim.restart_factor**number
    return cosine(progress, top, optim.final_lr)


def _share_in_phases(optim: OptimConfig, step: Step) -> float:
    """Return the share of the peak; ends of phases are rounded, not lengths, so that rounding does not add up."""
    lengths = [phase.length.length(step.total, step.epoch_len) for phase in optim.phases]
    ends = [round(end) for end in accumulate(lengths)]
    number = min(bisect_right(ends, step.index), len(ends) - 1)
    phase, begin = optim.phases[number], ends[number - 1] if number > 0 else 0
    progress = step.progress if phase.over == "run" else (step.index - begin) / max(1, ends[number] - begin)
    end = phase.start if phase.end is None else phase.end
    if phase.shape == "inverse_sqrt":
        return phase.start * inverse_sqrt(step, begin)
    if phase.shape == "polynomial":
        return polynomial(progress, phase.start, end, phase.power)
    return (cosine if phase.shape == "cosine" else linear)(progress, phase.start, end)
