"""A search space: what varies, and which of it exists beside what."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from raysl.config.dump import show
from raysl.errors import ConfigError
from raysl.hashing import hash_text, hash_words
from raysl.sweeps.distributions import LISTS, Distribution, parse

Draw = dict[str, Any]
"""Values by dotted setting."""
Present = Callable[[str], Any]
"""The value that a setting has where a draw has none, or `ABSENT`."""
ABSENT = object()
NOT_VARIED = ("name", "storage")
"""Settings that the sweep itself gives each run."""
COMPONENTS = ("method", "backbone", "data", "optim")
"""Settings whose value decides which others there are."""


@dataclass(frozen=True)
class Space:
    """What varies, by dotted setting, those that a condition is about before those that have it."""

    distributions: Mapping[str, Distribution]

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> "Space":
        """A space as it is written: a distribution for each setting.

        Raises:
            ConfigError: if one is wrong, or its conditions can never be met.
        """
        given = {key: parse(key, value) for key, value in tree.items()}
        _check_keys(given)
        plain_keys = {without_name(key): key for key in given}
        for key, distribution in given.items():
            for name, values in distribution.when.items():
                _check_condition(key, name, values, given.get(plain_keys.get(without_name(name), "")))
        return cls({key: given[key] for key in _in_order(given, plain_keys)})

    @property
    def is_random(self) -> bool:
        """Whether anything is drawn, so that one trial more is another one."""
        return any(distribution.kind != "grid" for distribution in self.distributions.values())

    def draws(self, name: str) -> bool:
        """Whether a setting is one of those that vary; a component with and without its `.name`."""
        return any(without_name(key) == without_name(name) for key in self.distributions)

    def settle(self, choose: Callable[[str, Distribution], Any], present: Present) -> Draw:
        """Choose each setting that exists beside those chosen before."""
        draw: Draw = {}
        for key, distribution in self.distributions.items():
            if all(_value(draw, name, present) in values for name, values in distribution.when.items()):
                draw[key] = choose(key, distribution)
        return draw

    def grid(self) -> Iterator[Draw]:
        """All combinations of the grids' values, the last grid's changing fastest; an empty one where there is none."""
        grids = {key: own.values for key, own in self.distributions.items() if own.kind == "grid"}
        for values in itertools.product(*grids.values()):
            yield dict(zip(grids, values, strict=True))

    def num_grid(self) -> int:
        """How many combinations `grid` gives."""
        total = 1
        for distribution in self.distributions.values():
            total *= len(distribution.values) if distribution.kind == "grid" else 1
        return total

    def at(self, seed: int, turn: int, grid: Mapping[str, Any], present: Present) -> Draw:
        """The draw of one turn: a pure function of the seed, the turn and the name of each setting.

        A turn's random values are the same beside all of a grid's, and another setting in the space changes none.
        """

        def choose(key: str, distribution: Distribution) -> Any:
            if key in grid:
                return grid[key]
            return distribution.at(hash_words(seed, hash_text(key), turn) / 2**64)

        return self.settle(choose, present)

    def structures(self, present: Present) -> Iterator[Draw]:
        """Draws with each combination of what decides which other settings there are, one value of all else."""
        asked = self._asked()
        deciding = asked.keys() | set(COMPONENTS)
        lists = {
            key: own.values if own.kind in LISTS else [*own.examples(), *asked.get(without_name(key), [])]
            for key, own in self.distributions.items()
            if without_name(key) in (deciding if own.kind in LISTS else asked) or key.endswith(".name")
        }
        for values in itertools.product(*lists.values()):
            chosen = dict(zip(lists, values, strict=True))
            yield self.settle(lambda key, own, chosen=chosen: chosen.get(key, own.examples()[0]), present)  # type: ignore[misc]

    def never(self, presents: Iterable[Present], most: int) -> list[str]:
        """Settings that exist beside nothing else that the space or a configuration has.

        Args:
            presents: of each configuration.
            most: combinations that are looked at; where there are more, nothing is said.
        """
        left = dict.fromkeys(self.distributions)
        for present in presents:
            for place, draw in enumerate(self.structures(present)):
                if place == most:
                    return []
                left = {key: None for key in left if key not in draw}
        return list(left)

    def _asked(self) -> dict[str, list[Any]]:
        """The values that conditions are about, by setting without `.name`."""
        asked: dict[str, list[Any]] = {}
        for own in self.distributions.values():
            for name, values in own.when.items():
                asked.setdefault(without_name(name), []).extend(values)
        return asked


def is_component(key: str) -> bool:
    """Whether a setting chooses a component, and so which other settings there are."""
    return key in COMPONENTS or key.endswith(".name")


def without_name(key: str) -> str:
    """A setting's name, without the `.name` of a component."""
    return key.removesuffix(".name")


def _value(draw: Draw, name: str, present: Present) -> Any:
    for key, value in draw.items():
        if without_name(key) == without_name(name):
            return value
    return present(name)


def _check_keys(given: Mapping[str, Distribution]) -> None:
    """Refuse settings that no draw can decide, and two entries that decide one.

    Raises:
        ConfigError: with the entry.
    """
    for key in given:
        if key in NOT_VARIED:
            raise ConfigError(f"space.{key}: the sweep gives each run its own {key}; take it out of the space")
    for key, own in given.items():
        for other in given:
            if other != key and (_is_same(key, other) or _is_inside(key, own, other)):
                raise ConfigError(f"space.{other}: space.{key} writes this setting as well; keep one of the two")


def _is_same(key: str, other: str) -> bool:
    return without_name(key) == without_name(other)


def _is_inside(key: str, own: Distribution, other: str) -> bool:
    """Whether a group that is a value of an entry has the setting of another entry in it."""
    if not other.startswith(f"{key}.") or own.kind not in LISTS:
        return False
    name = other.removeprefix(f"{key}.")
    return any(isinstance(value, Mapping) and present_in(value)(name) is not ABSENT for value in own.values)


def _check_condition(key: str, name: str, values: list[Any], other: Distribution | None) -> None:
    if other is None:
        return
    if other.kind not in LISTS:
        low, high = other.bounds
        if unmet := [value for value in values if not other.is_whole or not _is_drawn(value, other)]:
            drawn = f"a whole number from {low} to {high}" if other.is_whole else f"any number from {low} to {high}"
            raise ConfigError(
                f"space.{key}.when: {name} is drawn as {drawn}, and {show(unmet[0])} is not one to wait for; list its "
                "values with choice"
            )
    elif unmet := [value for value in values if value not in other.values]:
        raise ConfigError(
            f"space.{key}.when: {name} is never {show(unmet[0])}; it is one of {', '.join(map(show, other.values))}"
        )


def _is_drawn(value: Any, other: Distribution) -> bool:
    low, high = other.bounds
    return type(value) is int and low <= value <= high and other.rounded(value) == value


def _in_order(given: Mapping[str, Distribution], plain_keys: Mapping[str, str]) -> list[str]:
    """Settings after those that their conditions are about, otherwise as they are written."""
    ordered: list[str] = []

    def visit(key: str, above: tuple[str, ...]) -> None:
        if key in above:
            raise ConfigError(f"space.{key}.when: {' needs '.join([*above, key])}; take one of the conditions out")
        for name in given[key].when:
            if (other := plain_keys.get(without_name(name))) is not None:
                visit(other, (*above, key))
        if key not in ordered:
            ordered.append(key)

    for key in given:
        visit(key, ())
    return ordered


def present_in(tree: Mapping[str, Any]) -> Present:
    """What a configuration, as a plain tree, has for a setting; of a component its name."""

    def look(key: str) -> Any:
        value: Any = tree
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return ABSENT
            value = value[part]
        return value["name"] if isinstance(value, Mapping) and "name" in value else value

    return look
