"""Scales: where values lie on an axis, which numbers are written there, and how."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LETTER = 6.6
"""Width of a letter at the axes, in pixels."""
PERCENT_TICKS = [(float(tick), str(tick)) for tick in range(0, 101, 25)]

Point = tuple[float, float]
Ticks = Sequence[tuple[float, str]]


@dataclass(frozen=True)
class Scale:
    """One axis: where values lie, in pixels.

    Args:
        low, high: the least and the largest value, which differ; positive on a logarithmic axis.
        ticks: values that are written at the axis, with their texts.

    >>> Scale(0.0, 10.0, 100.0, 200.0)(5.0)
    150.0
    >>> [text for _, text in Scale.fit([0.0, 100.0], 300.0, 20.0, 5).ticks]
    ['0', '20', '40', '60', '80', '100']
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False
    ticks: Ticks = ()

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high, at = (math.log10(one) if self.is_log else one for one in (self.low, self.high, value))
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    @classmethod
    def fit(
        cls,
        values: Iterable[float],
        start: float,
        end: float,
        num_ticks: int,
        is_log: bool = False,
        padding: float = 0.04,
    ) -> "Scale":
        """Return the axis from pixel `start` to `end` on which all values fit, with about `num_ticks` numbers.

        Args:
            is_log: whether the axis is logarithmic where all values are positive.
            padding: free space before the least and behind the largest value, as a share of their distance.
        """
        values = list(values)
        low, high = min(values, default=0.0), max(values, default=1.0)
        is_log = is_log and low > 0
        if low == high:
            low, high = (low / 2, high * 2) if is_log else (low - (abs(low) or 1) / 10, high + (abs(high) or 1) / 10)
        room = padding / (1 + 2 * padding) * (end - start)
        marks = _decades(low, high, num_ticks) if is_log else _round_numbers(low, high, num_ticks)
        return cls(low, high, start + room, end - room, is_log, [(mark, spelled(mark)) for mark in marks])


def cut(text: str, letters: int) -> str:
    """Return a text that fits into a number of letters, with an ellipsis where it was longer.

    >>> cut("temperature", 5)
    'temp…'
    """
    return text if len(text) <= letters else text[: max(1, letters - 1)] + "…"


def spelled(value: float) -> str:
    """Return a number in few letters.

    >>> spelled(96.062), spelled(1234.5), spelled(0.000123)
    ('96.06', '1,234', '1.23e-4')
    """
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e6):
        digits, power = f"{value:.2e}".split("e")
        return f"{float(digits):g}e{int(power)}"
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{4 if size >= 10 else 3}g}"


def _round_numbers(low: float, high: float, num: int) -> list[float]:
    rough = (high - low) / max(1, num)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 2.5, 5, 10, 20) if factor * unit >= rough - unit * 1e-9)
    # a tick at an end of the axis stays where rounding puts it just outside
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{turn * step:.12g}") for turn in range(first, last + 1)]


def _decades(low: float, high: float, num: int) -> list[float]:
    """Return powers of ten between low and high, with 2 and 5 of each where there is room.

    Where hardly any power lies between, round numbers.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [(float(f"{part * 10.0**power:.6g}"), part) for power in powers for part in (1, 2, 5)]
    inside = [(value, part) for value, part in marks if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
    tens = [value for value, part in inside if part == 1]
    if 1 < len(inside) <= num:
        return [value for value, _ in inside]
    if len(tens) > num:
        return tens[:: math.ceil(len(tens) / num)]
    return tens if len(tens) > 1 else _round_numbers(low, high, num)
