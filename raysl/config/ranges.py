"""What an annotation says of a field besides its type: which of its values are possible, and what it is.

    draws: Annotated[int, Within(1, 100_000)] = 200

Reading a value checks its range; a field without one may hold any finite number.
"""

import math
import types
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from raysl.errors import ConfigError
from raysl.schedule import Duration

LARGEST = 2**31 - 1
VAST = 1_000_000  # upper bounds from here on are of no interest until a value is above one


class OutOfRange(ConfigError):
    """A value of the right type that its field cannot hold."""


@dataclass(frozen=True)
class Within:
    """A range of numbers, or of the numbers of durations.

    Args:
        low, high: its ends.
        above: whether `low` itself is out.
        below: whether `high` itself is out.
        is_finite: whether infinity is out even where there is no bound.
    """

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False
    is_finite: bool = True

    def problem(self, value: Any) -> str | None:
        """What to say of a value that is out; None of others."""
        number = value.value if isinstance(value, Duration) else value
        is_low = number <= self.low if self.above else not number >= self.low  # NaN is out
        is_high = number >= self.high if self.below else not number <= self.high
        is_infinite = self.is_finite and isinstance(number, float) and not math.isfinite(number)
        if not (is_low or is_high or is_infinite):
            return None
        return f"is out of range; give {self._advice(number, is_high and not is_low)}"

    def told(self) -> str:
        """The range in words, such as `in [0, 1)`, `at least 1` or `above 0`; empty where every number will do."""
        if self.low == -math.inf:
            return "" if self.high >= VAST else f"{'below' if self.below else 'at most'} {_text(self.high)}"
        if self.high >= VAST:
            return f"{'above' if self.above else 'at least'} {_text(self.low)}"
        return f"in {'(' if self.above else '['}{_text(self.low)}, {_text(self.high)}{')' if self.below else ']'}"

    def _advice(self, number: float, is_high: bool) -> str:
        if is_high and VAST <= self.high < math.inf and number < math.inf:
            return f"at most {_text(self.high)}"
        told = self.told()
        if told.startswith("at "):
            return f"a finite number of {told}"
        return f"a {'number' if told.startswith('in ') else 'finite number'} {told}".rstrip()


@dataclass(frozen=True)
class Rising:
    """A list of two numbers [low, high] of which the first is not above the second."""

    def problem(self, value: Any) -> str | None:
        """What to say of a list that falls; None of others."""
        low, high = value
        return None if low <= high else "holds no number; write [low, high]"

    def told(self) -> str:
        """The rule in words."""
        return "[low, high]"


@dataclass(frozen=True)
class NotEmpty:
    """A list with something in it."""

    def problem(self, value: Any) -> str | None:
        """What to say of an empty list; None of others."""
        return None if len(value) else "is empty; give at least one value"

    def told(self) -> str:
        """Nothing: nobody expects an empty list."""
        return ""


@dataclass(frozen=True)
class OfViews:
    """Marks the side of a method's views, which `data.image_size` follows, and which follows it (`config.sizes`); of a
    backbone, the side of the images that it is made for, which follows both."""


@dataclass(frozen=True)
class WithViews:
    """Marks a size in pixels that follows the side of the views in proportion, unless it is given (`config.sizes`).

    Args:
        num: setting beside it that counts the views of this size; where that is 0, it follows nothing.
        is_seen: whether the network sees images of this size, which are a whole number of patches then.
    """

    num: str = ""
    is_seen: bool = True


@dataclass(frozen=True)
class IsLocation:
    """Marks a local path or a URI. `~` and environment variables in it are expanded when a user's settings are loaded.

    Those of a checkpoint are not: they may be somebody else's, who is not to read this process's environment.
    """


Rule = Within | Rising | NotEmpty
FINITE = Within()

Location = Annotated[str, IsLocation()]
Share = Annotated[float, Within(0, 1)]
Positive = Annotated[float, Within(0, 1e9, above=True)]
Amount = Annotated[float, Within(0, 1e9)]
Momentum = Annotated[float, Within(0, 1, below=True)]
Temperature = Annotated[float, Within(1e-4, 1e4)]
AnyBound = Annotated[float, Within(is_finite=False)]
Count = Annotated[int, Within(1, LARGEST)]
Place = Annotated[int, Within(0, LARGEST)]
Seed = Annotated[int, Within(0, 2**32 - 1)]
Side = Annotated[int, Within(2, 16_384)]
ViewSide = Annotated[Side, OfViews()]
LocalSide = Annotated[Side, WithViews("num_local")]
Width = Annotated[int, Within(1, 65_536)]
Length = Annotated[Duration, Within(0, 1e9)]
Every = Annotated[Duration, Within(0, 1e9, above=True)]
Images = Annotated[int, Within(1, 100_000_000)]
Interpolation = Literal["bilinear", "bicubic"]
"""How an image is resized, antialiased in either case."""
Area = Annotated[float, Within(0, 1, above=True)]
Areas = Annotated[tuple[Area, Area], Rising()]
Factors = Annotated[tuple[Annotated[float, Within(0.01, 100)], Annotated[float, Within(0.01, 100)]], Rising()]


def bare(kind: Any) -> Any:
    """An annotation's type without its rules."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def marks_of(kind: Any) -> tuple[Any, ...]:
    """All that an annotation says besides its type."""
    return kind.__metadata__ if get_origin(kind) is Annotated else ()


def is_location(kind: Any) -> bool:
    """Whether a field with this annotation holds a path or URI, several of them, or one among other things."""
    inner = bare(kind)
    return IsLocation() in marks_of(kind) or (_holds_others(inner) and any(map(is_location, get_args(inner))))


def rules_of(kind: Any) -> tuple[Rule, ...]:
    """The rules that stand at an annotation itself; numbers without a range of their own are finite."""
    if get_origin(kind) is not Annotated:
        return (FINITE,) if kind in (float, Duration) else ()
    return tuple(rule for rule in marks_of(kind) if isinstance(rule, Rule))


def told(kind: Any) -> str:
    """What may stand in a field of this type, in words; empty where its type says it all."""
    parts = [rule.told() for rule in rules_of(kind)]
    kind = bare(kind)
    inner = [told(member) for member in get_args(kind)] if _holds_others(kind) else []
    each = "" if get_origin(kind) in (Union, types.UnionType) else "each "
    parts += dict.fromkeys(f"{each}{text}" for text in inner if text)
    return ", ".join(part for part in parts if part)


def undeclared(kind: Any) -> bool:
    """Whether an annotation has a number without a range, or a pair of them without an order."""
    if get_origin(kind) is Annotated and any(isinstance(rule, Within) for rule in rules_of(kind)):
        return False
    inner = bare(kind)
    members = get_args(inner) if _holds_others(inner) else ()
    is_pair = get_origin(inner) is tuple and len(members) == 2 and members[0] == members[1]
    if is_pair and bare(members[0]) in (int, float) and Rising() not in rules_of(kind):
        return True
    return inner in (int, float, Duration) or any(undeclared(member) for member in members)


def _holds_others(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType, tuple, list, dict)


def _text(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) and abs(number) < VAST else str(int(number))
