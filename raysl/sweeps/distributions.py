"""What a setting of a search can be: lists to choose from and ranges to draw from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import Any

from raysl.config.dump import show
from raysl.errors import ConfigError

LISTS = ("choice", "grid")
RANGES = ("uniform", "loguniform", "randint", "lograndint")
STEPPED = ("quniform", "qloguniform", "qrandint", "qlograndint")
DISTRIBUTIONS = (*LISTS, *RANGES, *STEPPED)
DIGITS = 4
"""Significant digits of a number that is drawn from a range."""
MOST_COUNTED = 1000
"""Values of a range that are counted one by one."""
ROUNDING = 1e-9
"""Steps that an end may lie beside a multiple, where it is one but for rounding."""


@dataclass(frozen=True)
class Distribution:
    """The values of one setting.

    Args:
        kind: grid (each of a list), choice (one of a list), uniform, loguniform, randint, lograndint (of a range, whose
            end is never drawn of whole numbers), or one of the ranges with a q in front: rounded to a multiple of a
            step, both ends included.
        values: items of the list, or the ends of the range, and the step.
        when: settings that must have a value, or one of a list, for this one to be there at all.
    """

    kind: str
    values: list[Any]
    when: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether it draws whole numbers."""
        return "randint" in self.kind

    @property
    def is_log(self) -> bool:
        """Whether small numbers are as likely as large ones, by their logarithm."""
        return "log" in self.kind

    @property
    def step(self) -> float | None:
        """What drawn numbers are multiples of."""
        return self.values[2] if self.kind in STEPPED else None

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest number of a range; where there is a step, those of its multiples."""
        low, high = self.values[:2]
        if self.step is None:
            return (low, high - 1) if self.is_whole else (low, high)
        first, last = math.ceil(low / self.step - ROUNDING), math.floor(high / self.step + ROUNDING)
        return (_multiple(first, self.step), _multiple(last, self.step))

    def examples(self) -> list[Any]:
        """Values that it can give: all of a list, the ends of a range."""
        if self.kind in LISTS:
            return self.values
        return [self.rounded(value) for value in self.bounds]

    def num_values(self, most: int = MOST_COUNTED) -> int:
        """Count the different values that can be drawn, up to `most`."""
        if self.kind in LISTS:
            return len(self.values)
        low, high = self.bounds
        if self.is_whole or self.step is not None:
            return round((high - low) / (self.step or 1)) + 1
        if low <= 0 <= high:  # beside 0 there are numbers of any size
            return most
        numbers, digits = {self.rounded(low), self.rounded(high)}, Context(prec=DIGITS)
        value = Decimal(low).next_plus(digits)
        while value < Decimal(high) and len(numbers) < most:
            numbers.add(self.rounded(float(value)))
            value = value.next_plus(digits)
        return len(numbers)

    def rounded(self, value: float) -> float | int:
        """Round a number to the values of the range: whole numbers, multiples of the step, or few digits."""
        low, high = self.bounds
        if self.is_whole:
            step = int(self.step or 1)
            return int(min(max(math.floor(value) // step * step, low), high))
        if self.step is not None:
            return float(min(max(_multiple(round(value / self.step), self.step), low), high))
        return min(max(float(f"{value:.{DIGITS}g}"), float(low)), float(high))


def _multiple(times: int, step: float) -> float:
    return times * step if isinstance(step, int) else float(f"{times * step:.12g}")


def parse(key: str, given: Any) -> Distribution:
    """The distribution of a setting, as it is written.

    Args:
        given: `{loguniform: [0.01, 1]}`, `{choice: [1, 2], when: {method.name: moco}}`; from Python also one of Ray
            Tune's, `tune.loguniform(0.01, 1)`.
    """
    known = f"write one of {{{'}, {'.join(f'{name}: [..]' for name in DISTRIBUTIONS)}}}"
    if not isinstance(given, Mapping):
        given = _of_tune(given)
    tree = dict(given) if isinstance(given, Mapping) else {}
    when = tree.pop("when", {})
    if len(tree) != 1 or next(iter(tree)) not in DISTRIBUTIONS:
        shown = show(given) if isinstance(given, str | int | float | list | dict) else repr(given)
        raise ConfigError(f"space.{key}: {shown} is no distribution; {known}")
    ((kind, values),) = tree.items()
    if isinstance(values, tuple):
        values = list(values)
    if not isinstance(values, list) or not values:
        raise ConfigError(f"space.{key}.{kind}: {show(values)} is no list of values; {known}")
    if kind not in LISTS:
        _check_range(key, kind, values)
    elif repeated := [value for place, value in enumerate(values) if kind == "grid" and value in values[:place]]:
        raise ConfigError(f"space.{key}.grid: {show(repeated[0])} stands there twice; give each value once")
    distribution = Distribution(kind, values, _conditions(key, when))
    if kind in ("uniform", "loguniform") and distribution.num_values() == 1:
        only = show(distribution.rounded(values[0]))
        raise ConfigError(
            f"space.{key}.{kind}: {show(values)} has one distinct value, {only}, since numbers are drawn with {DIGITS} "
            f"significant digits; widen the range, or list the values, {{choice: {show(values)}}}"
        )
    return distribution


def _check_range(key: str, kind: str, values: list[Any]) -> None:
    is_whole, is_stepped = "randint" in kind, kind in STEPPED
    kinds = (int,) if is_whole else (int, float)
    num = 3 if is_stepped else 2
    is_range = len(values) == num and all(type(value) in kinds for value in values)
    is_range = is_range and -math.inf < values[0] < values[1] < math.inf
    if is_range and "log" in kind:
        is_range = values[0] > 0
    if is_range and is_stepped:
        is_range = 0 < values[2] <= values[1] - values[0]
    if is_range:
        return
    rules = []
    if "log" in kind:
        rules.append(", both above 0")
    if is_stepped:
        rules.append(", and a step above 0 that is not larger than the range")
    elif is_whole:
        rules.append(", whole numbers, of which the second is never drawn")
    form = "[low, high, step]" if is_stepped else "[low, high]"
    raise ConfigError(f"space.{key}.{kind}: {show(values)} is no range; write {form}{''.join(rules)}, low below high")


def _conditions(key: str, when: Any) -> dict[str, list[Any]]:
    if not isinstance(when, Mapping) or not all(isinstance(name, str) for name in when):
        raise ConfigError(f"space.{key}.when: {show(when)} is no condition; write {{method.name: moco}}")
    return {name: list(value) if isinstance(value, list | tuple) else [value] for name, value in when.items()}


def _of_tune(domain: Any) -> Any:
    """A distribution of Ray Tune's in our words; anything else as it is."""
    name, base = type(domain).__name__, type(getattr(domain, "sampler", None)).__name__
    step = None
    if base == "Quantized":
        step, base = domain.sampler.q, type(domain.sampler.sampler).__name__
    if name == "Categorical":
        return {"choice": list(domain.categories)}
    if name not in ("Float", "Integer") or base not in ("_Uniform", "_LogUniform"):
        return domain
    kind = ("log" if base == "_LogUniform" else "") + ("uniform" if name == "Float" else "randint")
    ends = [domain.lower, domain.upper]
    return {kind: ends} if step is None else {f"q{kind}": [*ends, step]}
