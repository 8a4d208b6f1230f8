"""Annotations of settings beside their type: ranges of values, and marks of locations and sizes.

    draws: Annotated[int, Within(1, 100_000)] = 200

Ranges are checked when settings are read; a number without a range must be finite.
"""

import math
import types
from collections.abc import Iterable
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from raysl.errors import ConfigError
from raysl.schedule import Duration

LARGEST = 2**31 - 1
VAST = 1_000_000  # larger upper bounds are mentioned only if a value exceeds them


class OutOfRange(ConfigError):
    """A value of the right type that is not in its field's range."""


@dataclass(frozen=True)
class Within:
    """A range of numbers, or of the numbers of durations.

    Args:
        above: whether `low` itself is excluded.
        below: whether `high` itself is excluded.
        is_finite: whether infinity is excluded even without a bound.

    >>> Within(0, 1, below=True).describe(), Within(0, 1).problem(2.0)
    ('in [0, 1)', 'is out of range; give a number in [0, 1]')
    """

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False
    is_finite: bool = True

    def problem(self, value: Any) -> str | None:
        """Return the message for a value out of range; None for others."""
        number = value.value if isinstance(value, Duration) else value
        is_low = number <= self.low if self.above else not number >= self.low  # NaN is out
        is_high = number >= self.high if self.below else not number <= self.high
        is_infinite = self.is_finite and isinstance(number, float) and not math.isfinite(number)
        if not (is_low or is_high or is_infinite):
            return None
        return f"is out of range; give {self._advice(number, is_high and not is_low)}"

    def describe(self) -> str:
        """Return the range in words, such as `in [0, 1)`, `at least 1` or `above 0`; empty if it has no limits."""
        if self.low == -math.inf:
            return "" if self.high >= VAST else f"{'below' if self.below else 'at most'} {_text(self.high)}"
        if self.high >= VAST:
            return f"{'above' if self.above else 'at least'} {_text(self.low)}"
        return f"in {'(' if self.above else '['}{_text(self.low)}, {_text(self.high)}{')' if self.below else ']'}"

    def _advice(self, number: float, is_high: bool) -> str:
        if is_high and VAST <= self.high < math.inf and number < math.inf:
            return f"at most {_text(self.high)}"
        limits = self.describe()
        if limits.startswith("at "):
            return f"a finite number of {limits}"
        return f"a {'number' if limits.startswith('in ') else 'finite number'} {limits}".rstrip()


@dataclass(frozen=True)
class Rising:
    """A list of two numbers [low, high] with low <= high."""

    strictly: bool = False

    def problem(self, value: Any) -> str | None:
        """Return the message for numbers in the wrong order; None for others."""
        low, high = value
        if self.strictly and low == high:
            return f"is one number; write {low}, or [low, high] with low < high"
        if low <= high:
            return None
        return f"holds no number: {_text(low)} is above {_text(high)}; write [{_text(high)}, {_text(low)}]"

    def describe(self) -> str:
        """Return the rule in words."""
        return "[low, high]"


@dataclass(frozen=True)
class NotEmpty:
    """A list with at least one value."""

    def problem(self, value: Any) -> str | None:
        """Return the message for an empty list; None for others."""
        return None if len(value) else "is empty; give at least one value"

    def describe(self) -> str:
        """Return an empty text: help does not show this rule."""
        return ""


@dataclass(frozen=True)
class OfViews:
    """Marks the side of a method's views; it follows `data.image_size`, and the reverse (`config.linked`).

    In a backbone's settings it marks the side of the images that the backbone is made for, which follows both.
    """


@dataclass(frozen=True)
class WithViews:
    """Marks a size in pixels that scales with the side of the views unless it is given (`config.linked`).

    Args:
        num: name of the setting that counts the views of this size; if that is 0, the size does not scale.
        is_seen: whether the network sees images of this size, which must then be a multiple of the patch size.
    """

    num: str = ""
    is_seen: bool = True


@dataclass(frozen=True)
class Adapts:
    """Marks a setting that a run may make smaller to fit its images, unless a user has set it (`plan.adapt`)."""

    role: Literal["batch", "warmup", "queue", "clusters"]


@dataclass(frozen=True)
class IsLocation:
    """Marks a local path or a URI. `~` and environment variables in it are expanded when a user's settings are loaded.

    Those in a checkpoint's settings are not: these may come from others, who must not read this environment.
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
QueueSize = Annotated[Count, Adapts("queue")]
NumClusters = Annotated[Count, Adapts("clusters")]
Seed = Annotated[int, Within(0, 2**32 - 1)]
Side = Annotated[int, Within(2, 16_384)]
ViewSide = Annotated[Side, OfViews()]
LocalSide = Annotated[Side, WithViews("num_local")]
Width = Annotated[int, Within(1, 65_536)]
NumChannels = Annotated[int, Within(1, 12)]
Length = Annotated[Duration, Within(0, 1e9)]
Every = Annotated[Duration, Within(0, 1e9, above=True)]
Images = Annotated[int, Within(1, 100_000_000)]
Interpolation = Literal["bilinear", "bicubic"]
"""How an image is resized; both are antialiased."""
Area = Annotated[float, Within(0, 1, above=True)]
Areas = Annotated[tuple[Area, Area], Rising()]
Shares = Annotated[tuple[Share, Share], Rising()]
Amounts = Annotated[tuple[Amount, Amount], Rising()]
Positives = Annotated[tuple[Positive, Positive], Rising()]
Factors = Annotated[tuple[Annotated[float, Within(0.01, 100)], Annotated[float, Within(0.01, 100)]], Rising()]


def bare(kind: Any) -> Any:
    """Return an annotation's type without its rules."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def marks_of(kind: Any) -> tuple[Any, ...]:
    """Return the rules and marks of an annotation."""
    return kind.__metadata__ if get_origin(kind) is Annotated else ()


def is_location(kind: Any) -> bool:
    """Whether a field with this annotation holds paths or URIs, perhaps in a list, a dict or a union."""
    inner = bare(kind)
    return IsLocation() in marks_of(kind) or (_holds_others(inner) and any(map(is_location, get_args(inner))))


def rules_of(kind: Any) -> tuple[Rule, ...]:
    """Return the rules of an annotation, without those of its parts; numbers without a range are finite."""
    if get_origin(kind) is not Annotated:
        return (FINITE,) if kind in (float, Duration) else ()
    return tuple(rule for rule in marks_of(kind) if isinstance(rule, Rule))


def describe_rules(kind: Any) -> str:
    """Describe the rules of an annotation and its parts in words; empty without rules.

    >>> describe_rules(tuple[Share, ...])
    'each in [0, 1]'
    """
    parts = [rule.describe() for rule in rules_of(kind)]
    kind = bare(kind)
    inner = [describe_rules(member) for member in get_args(kind)] if _holds_others(kind) else []
    each = "" if get_origin(kind) in (Union, types.UnionType) else "each "
    parts += dict.fromkeys(f"{each}{text}" for text in inner if text)
    return ", ".join(part for part in parts if part)


def check_ranges(settings: Any) -> None:
    """Refuse a dataclass with a number, a pair of numbers or a choice that its field does not allow.

    Raises:
        OutOfRange: with the field, its value and its range.
    """
    for setting in fields(settings):
        value = getattr(settings, setting.name)
        if problem := _problem(value, setting.type):
            shown = repr(value) if isinstance(value, str) else value
            raise OutOfRange(f"{setting.name}={shown} {problem}")


def _problem(value: Any, kind: Any) -> str | None:
    """Return the message for a value that breaks a rule of its annotation, or of the part that it has there."""
    inner = bare(kind)
    if value is None or get_origin(inner) in (Union, types.UnionType):
        members = [member for member in get_args(inner) if member is not type(None)]
        return None if value is None or len(members) > 1 else _problem(value, members[0])
    if get_origin(inner) is Literal and value not in get_args(inner):
        return f"is none of {', '.join(map(str, get_args(inner)))}"
    # Python counts true and false as integers
    if inner in (int, float) and (isinstance(value, bool) or not isinstance(value, Integral if inner is int else Real)):
        return f"is a {type(value).__name__}; give {'an integer' if inner is int else 'a number'}"
    problems = [_problem(*part) for part in _parts(value, inner)] + [rule.problem(value) for rule in rules_of(kind)]
    return next(filter(None, problems), None)


def _parts(value: Any, kind: Any) -> Iterable[tuple[Any, Any]]:
    """Return the values inside a tuple, list or dict, each with its annotation."""
    origin, kinds = get_origin(kind), get_args(kind)
    if origin is dict:
        return ((each, kinds[1]) for each in value.values())
    if origin is list or (origin is tuple and kinds[-1] is Ellipsis):
        return ((each, kinds[0]) for each in value)
    return zip(value, kinds, strict=False) if origin is tuple else ()


def _holds_others(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType, tuple, list, dict)


def _text(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) and abs(number) < VAST else str(int(number))
