"""Where training is (`Step`), lengths of time in it (`Duration`), and schedules: pure functions of progress."""

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

    The loop passes it to methods and callbacks, which never store it: resuming a run means to restore one integer.
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
        """Share of the run that is done, in [0, 1) before the last update."""
        return self.index / self.total

    def next(self) -> "Step":
        """The point one update later."""
        return Step(self.index + 1, self.total, self.epoch_len)


@dataclass(frozen=True)
class Duration:
    """A length of training in epochs (`10ep`), steps (`500st`) or a share of the run (`5%`)."""

    value: float
    unit: Unit

    @classmethod
    def parse(cls, text: str) -> "Duration":
        """Read `10ep`, `0.5ep`, `500st` or `5%`.

        Raises:
            ValueError: if the text is none of these, or negative.
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
        """This length in updates and parts of one."""
        return self.value * {"ep": float(epoch_len), "st": 1.0, "%": total / 100}[self.unit]

    def steps(self, total: int, epoch_len: int) -> int:
        """This length in updates, rounded to the nearest one."""
        return round(self.length(total, epoch_len))

    def is_over(self, step: Step) -> bool:
        """Whether this length of time from the start of training is over at `step`."""
        return step.index >= self.steps(step.total, step.epoch_len)

    def is_due(self, step: Step) -> bool:
        """Whether a multiple of this length (at least one step) ends at `step`, the point after an update."""
        return step.index % max(1, self.steps(step.total, step.epoch_len)) == 0

    def __str__(self) -> str:
        return f"{Decimal(repr(self.value)).normalize():f}{self.unit}"


def linear(progress: float, start: float, end: float) -> float:
    """Straight line from `start` at progress 0 to `end` at 1."""
    return start + (end - start) * progress


def cosine(progress: float, start: float, end: float) -> float:
    """Half a cosine from `start` at progress 0 to `end` at 1 (SGDR, Loshchilov and Hutter 2017, eq. 5, one period)."""
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * min(1.0, progress)))


def linear_over(step: Step, duration: Duration, start: float, end: float) -> float:
    """Straight line from `start` at the first step to `end` after `duration`, where it stays: DINO's temperature."""
    num_steps = duration.steps(step.total, step.epoch_len)
    return linear(min(1.0, step.index / num_steps), start, end) if num_steps > 0 else end


def warmup(step: Step, num_warmup: int, start: float = 0.0) -> float:
    """Factor that rises along a straight line from `start` at the first step to 1 at step `num_warmup`, and stays.

    From 0 it rises by num_warmup equal parts of which the first step has one already: at 0 it would do nothing.
    """
    if step.index >= num_warmup:
        return 1.0
    return linear(step.index / num_warmup, start, 1.0) if start > 0 else (step.index + 1) / num_warmup


def progress_after(step: Step, num_warmup: int) -> float:
    """Share of what follows the warm-up that is done, in [0, 1): the argument of the schedule after it."""
    return max(0.0, (step.index - num_warmup) / max(1, step.total - num_warmup))


def decays(step: Step, points: Iterable[Duration], factor: float) -> float:
    """`factor` to the power of how many points, counted from the beginning of the run, have been reached."""
    reached = [point for point in points if point.steps(step.total, step.epoch_len) <= step.index]
    return factor ** len(reached)


def polynomial(progress: float, start: float, end: float, power: float) -> float:
    """`start` at progress 0 to `end` at 1 along (1 - progress)^power; power 1 is a straight line."""
    return end + (start - end) * math.pow(1 - min(1.0, progress), power)


def inverse_sqrt(step: Step, num_first: int) -> float:
    """Factor sqrt(num_first / updates done), which is 1 after `num_first` updates (Vaswani et al. 2017, eq. 3).

    Where neither has begun, both count as one update.
    """
    return math.sqrt(max(1, num_first) / max(1, step.index))


def even_part(step: Step, num_warmup: int, num_parts: int) -> int:
    """Number, from 0, of the part that `step` is in when what follows the warm-up is cut into parts of one length."""
    done = max(0, step.index - num_warmup) * num_parts // max(1, step.total - num_warmup)
    return min(done, num_parts - 1)


def restart_period(num_done: int, period: int, growth: int = 1) -> tuple[int, int, int]:
    """Number, first update and length of the period that `num_done` updates lead into (SGDR, section 3).

    Args:
        num_done: updates since the first period began.
        period: length of the first one, in updates.
        growth: how many times as long as the one before each of the others is (T_mult in the paper).
    """
    if growth == 1:
        return num_done // period, num_done // period * period, period
    number, begin = 0, 0
    while num_done >= begin + period:
        number, begin, period = number + 1, begin + period, period * growth
    return number, begin, period
