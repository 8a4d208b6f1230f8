"""What a setting of a search can be: lists to choose from and ranges to draw from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raysl.config.dump import show
from raysl.errors import ConfigError

LISTS = ("choice", "grid")
RANGES = ("uniform", "loguniform", "randint", "lograndint")
STEPPED = ("quniform", "qloguniform", "qrandint", "qlograndint")
DISTRIBUTIONS = (*LISTS, *RANGES, *STEPPED)
ROUNDING = 1e-9  # steps that an end may lie beside a multiple, where it is one but for rounding


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

    @property
    def num_values(self) -> float:
        """The number of different values that can be drawn, infinity of a range without a step."""
        if self.kind in LISTS:
            return len(self.values)
        low, high = self.bounds
        return round((high - low) / (self.step or 1)) + 1 if self.is_whole or self.step else math.inf

    def rounded(self, value: float) -> float | int:
        """Bring a number to a value of the range: a whole number, a multiple of the step, one between its ends."""
        low, high = self.bounds
        if self.is_whole:
            step = int(self.step or 1)
            return int(min(max(math.floor(value) // step * step, low), high))
        if self.step is not None:
            value = _multiple(round(value / self.step), self.step)
        return float(min(max(value, low), high))


def _multiple(times: int, step: float) -> float:
    return times * step if isinstance(step, int) else float(f"{times * step:.12g}")


def parse(key: str, written: Any) -> Distribution:
    """The distribution of a setting, as it is written.

    Args:
        written: mapping of its kind, `{loguniform: [0.01, 1]}`, `{choice: [1, 2], when: {method.name: moco}}`, or from
            Python one of Ray Tune's, `tune.loguniform(0.01, 1)`.
    """
    known = f"write one of {{{'}, {'.join(f'{name}: [..]' for name in DISTRIBUTIONS)}}}"
    written = of_tune(written)
    tree = dict(written) if isinstance(written, Mapping) else {}
    when = tree.pop("when", {})
    if len(tree) != 1 or next(iter(tree)) not in DISTRIBUTIONS:
        shown = show(written) if isinstance(written, str | int | float | list | dict) else repr(written)
        raise ConfigError(f"space.{key}: {shown} is no distribution; {known}")
    ((kind, values),) = tree.items()
    values = list(values) if isinstance(values, tuple) else values
    if not isinstance(values, list) or not values:
        raise ConfigError(f"space.{key}.{kind}: {show(values)} is no list of values; {known}")
    if kind not in LISTS:
        _check_range(key, kind, values)
    elif repeated := [value for position, value in enumerate(values) if kind == "grid" and value in values[:position]]:
        raise ConfigError(f"space.{key}.grid: {show(repeated[0])} stands there twice; give each value once")
    return Distribution(kind, values, _conditions(key, when))


def _check_range(key: str, kind: str, values: list[Any]) -> None:
    is_whole, is_stepped, is_log = "randint" in kind, kind in STEPPED, "log" in kind
    form = "[low, high, step]" if is_stepped else "[low, high]"
    kinds = (int,) if is_whole else (int, float)
    if len(values) == 2 + is_stepped and all(type(value) in kinds for value in values):
        low, high, step = (*values, 0)[:3]
        if -math.inf < low < high < math.inf and (low > 0 or not is_log) and (not is_stepped or 0 < step <= high - low):
            return
    rules = ", both above 0" if is_log else ""
    if is_stepped:
        rules += ", and a step above 0 that is not larger than the range"
    elif is_whole:
        rules += ", whole numbers, of which the second is never drawn"
    raise ConfigError(f"space.{key}.{kind}: {show(values)} is no range; write {form}{rules}, low below high")


def _conditions(key: str, when: Any) -> dict[str, list[Any]]:
    if not isinstance(when, Mapping) or not all(isinstance(name, str) for name in when):
        raise ConfigError(f"space.{key}.when: {show(when)} is no condition; write {{method.name: moco}}")
    return {name: list(value) if isinstance(value, list | tuple) else [value] for name, value in when.items()}


def of_tune(domain: Any) -> Any:
    """A distribution of Ray Tune's in our words, also of each value of a mapping; anything else as it is."""
    if isinstance(domain, Mapping):
        return {key: of_tune(value) for key, value in domain.items()}
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
