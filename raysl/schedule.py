"""The point that training has reached (`Step`), lengths of training (`Duration`), and schedules as pure functions."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

Unit = Literal["ep", "st", "%"]


@dataclass(frozen=True)
class Step:
    """A point in training: `index` updates are done out of `total`, `epoch_len` of them to an epoch.

    The loop passes it to methods and callbacks, which never store it: resuming a run restores one integer.

    >>> step = Step(index=25, total=100, epoch_len=10)
    >>> step.epoch, step.in_epoch, step.progress
    (2, 5, 0.25)
    """

    index: int
    total: int
    epoch_len: int

    @property
    def epoch(self) -> int:
        """Whole epochs done."""
        return self.index // self.epoch_len

    @property
    def in_epoch(self) -> int:
        """Updates done inside the current epoch."""
        return self.index % self.epoch_len

    @property
    def progress(self) -> float:
        """Share of the run that is done: in [0, 1), and 1 after the last update."""
        return self.index / self.total

    def next(self) -> "Step":
        """Return the point one update later."""
        return Step(self.index + 1, self.total, self.epoch_len)


@dataclass(frozen=True)
class Duration:
    """A length of training in epochs (`10ep`), steps (`500st`) or a share of the run (`5%`).

    >>> Duration.parse("5%").steps(total=1000, epoch_len=100)
    50
    """

    value: float
    unit: Unit

    @classmethod
    def parse(cls, text: str) -> "Duration":
        """Read `10ep`, `0.5ep`, `500st` or `5%`.

        >>> Duration.parse("0.5ep").steps(total=100, epoch_len=10)
        5

        Raises:
            ValueError: if the text has another form, or a negative number.
        """
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ep|st|%)\s*", text)
        if match is None:
            raise ValueError(f"{text!r} is no duration; write epochs (10ep), steps (500st) or a share of the run (5%)")
        number, unit = match.groups()
        value = float(number)
        if unit == "st" and not value.is_integer() and math.isfinite(value):
            raise ValueError(f"{text!r}: steps are whole; write {math.ceil(value)}st")
        return cls(value, unit)  # type: ignore[arg-type]

    def length(self, total: int, epoch_len: int) -> float:
        """Return this length in updates, with a fraction."""
        return self.value * {"ep": float(epoch_len), "st": 1.0, "%": total / 100}[self.unit]

    def steps(self, total: int, epoch_len: int) -> int:
        """Return this length in updates, rounded to the nearest one."""
        return round(self.length(total, epoch_len))

    def is_over(self, step: Step) -> bool:
        """Return whether training has gone on for this length at `step`."""
        return step.index >= self.steps(step.total, step.epoch_len)

    def is_due(self, step: Step) -> bool:
        """Return whether a multiple of this length (at least one step) ends at `step`, the point after an update."""
        return step.index % max(1, self.steps(step.total, step.epoch_len)) == 0

    def __str__(self) -> str:
        # `normalize` drops the zeros of 10.0 but writes 500 as 5E+2, which the format `f` undoes
        return f"{Decimal(repr(self.value)).normalize():f}{self.unit}"


def linear(progress: float, start: float, end: float) -> float:
    """Return the straight line from `start` at progress 0 to `end` at 1.

    >>> linear(0.25, 0.0, 2.0)
    0.5
    """
    return start + (end - start) * progress


def cosine(progress: float, start: float, end: float) -> float:
    """Return half a cosine from `start` at progress 0 to `end` at 1.

    Source: Loshchilov and Hutter 2017 (SGDR), equation 5, one period.

    >>> cosine(0.0, 0.3, 0.0), round(cosine(0.5, 0.3, 0.0), 3), cosine(1.0, 0.3, 0.0)
    (0.3, 0.15, 0.0)
    """
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * min(1.0, progress)))


def linear_over(step: Step, duration: Duration, start: float, end: float) -> float:
    """Return the straight line from `start` at the first step to `end` after `duration`, and `end` from there on.

    Source: the teacher's temperature in DINO.

    >>> linear_over(Step(5, 100, 10), Duration.parse("1ep"), 0.0, 1.0)
    0.5
    """
    num_steps = duration.steps(step.total, step.epoch_len)
    return linear(min(1.0, step.index / num_steps), start, end) if num_steps > 0 else end


def warmup(step: Step, num_warmup: int, start: float = 0.0) -> float:
    """Return a factor that rises linearly from `start` at the first step to 1 at step `num_warmup`, where it stays.

    From a start of 0 the first step already gets 1 / num_warmup: with 0 it would change nothing.

    >>> [warmup(Step(index, 100, 10), 4) for index in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """
    if step.index >= num_warmup:
        return 1.0
    return linear(step.index / num_warmup, start, 1.0) if start > 0 else (step.index + 1) / num_warmup


def progress_after(step: Step, num_warmup: int) -> float:
    """Return the progress in [0, 1) through the steps after the warm-up, the argument of the schedule there.

    >>> progress_after(Step(55, 100, 10), 10)
    0.5
    """
    return max(0.0, (step.index - num_warmup) / max(1, step.total - num_warmup))


def decays(step: Step, points: Iterable[Duration], factor: float) -> float:
    """Return `factor` to the power of the number of points that training has reached.

    >>> decays(Step(60, 100, 10), [Duration.parse("3ep"), Duration.parse("6ep"), Duration.parse("9ep")], 0.5)
    0.25
    """
    reached = [point for point in points if point.steps(step.total, step.epoch_len) <= step.index]
    return factor ** len(reached)


def polynomial(progress: float, start: float, end: float, power: float) -> float:
    """Return `end` + (`start` - `end`) * (1 - progress)^power; power 1 is a straight line.

    >>> polynomial(0.5, 1.0, 0.0, power=2)
    0.25
    """
    return end + (start - end) * math.pow(1 - min(1.0, progress), power)


def inverse_sqrt(step: Step, num_first: int) -> float:
    """Return the factor sqrt(num_first / updates done), which is 1 after `num_first` updates.

    A number below 1 counts as 1. Source: Vaswani et al. 2017, equation 3.

    >>> inverse_sqrt(Step(400, 1000, 10), 100)
    0.5
    """
    return math.sqrt(max(1, num_first) / max(1, step.index))


def even_part(step: Step, num_warmup: int, num_parts: int) -> int:
    """Return the part, counted from 0, that `step` is in when the steps after the warm-up are cut into equal parts.

    >>> [even_part(Step(index, 100, 10), 10, 3) for index in (0, 39, 40, 99)]
    [0, 0, 1, 2]
    """
    done = max(0, step.index - num_warmup) * num_parts // max(1, step.total - num_warmup)
    return min(done, num_parts - 1)


def restart_period(num_done: int, period: int, growth: int = 1) -> tuple[int, int, int]:
    """Return number, first update and length of the period in which the update after `num_done` updates lies.

    Source: Loshchilov and Hutter 2017 (SGDR), section 3.

    >>> restart_period(25, period=10, growth=2)
    (1, 10, 20)

    Args:
        num_done: updates since the first period began.
        period: length of the first period, in updates.
        growth: length of each period in lengths of the one before (T_mult in the paper).
    """
    if growth == 1:
        return num_done // period, num_done // period * period, period
    number, begin = 0, 0
    while num_done >= begin + period:
        number, begin, period = number + 1, begin + period, period * growth
    return number, begin, period
