"""A search space: settings that vary, and the conditions under which they exist."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from raysl.config.dump import show
from raysl.errors import ConfigError
from raysl.sweeps.distributions import LISTS, Distribution, of_tune, parse
from raysl.weights.initial import run_of_weights

Draw = dict[str, Any]
"""Values by dotted setting."""
Present = Callable[[str], Any]
"""The value of a setting in the configuration of a draw, or `ABSENT`."""
ABSENT = object()
WEIGHTS = "method.weights"
NOT_VARIED = ("name", "storage")
"""Settings that the sweep sets for each run."""
COMPONENTS = ("method", "backbone", "data", "optim")
"""Settings whose value decides which other settings exist."""


@dataclass(frozen=True)
class Space:
    """Distributions by dotted setting, each after the settings in its condition."""

    distributions: Mapping[str, Distribution]

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> "Space":
        """Parse a space: a distribution for each setting."""
        distributions = {key: parse(key, value) for key, value in tree.items()}
        _check_keys(distributions)
        plain_keys = {without_name(key): key for key in distributions}
        for key, distribution in distributions.items():
            for name, values in distribution.when.items():
                _check_condition(key, name, values, distributions.get(plain_keys.get(without_name(name), "")))
        return cls({key: distributions[key] for key in _in_order(distributions, plain_keys)})

    @property
    def is_random(self) -> bool:
        """Whether anything is drawn, so that trials differ."""
        return any(distribution.kind != "grid" for distribution in self.distributions.values())

    def draws(self, name: str) -> bool:
        """Whether a setting varies; a component counts with and without `.name`."""
        return any(without_name(key) == without_name(name) for key in self.distributions)

    def settle(self, choose: Callable[[str, Distribution], Any], present: Present) -> Draw:
        """Choose a value for each setting that exists with the values chosen before."""
        draw: Draw = {}
        for key, distribution in self.distributions.items():
            if all(_value(draw, name, present) in values for name, values in distribution.when.items()):
                draw[key] = choose(key, distribution)
        return draw

    def structures(self, present: Present) -> Iterator[Draw]:
        """Yield a draw for each combination of values that decide which other settings exist."""
        conditions = {without_name(name) for values in self.distributions.values() for name in values.when}
        lists = {
            key: values.examples()
            for key, values in self.distributions.items()
            if without_name(key) in {*conditions, *COMPONENTS} or key.endswith(".name")
        }
        for values in itertools.product(*lists.values()):
            chosen = dict(zip(lists, values, strict=True))
            yield self.settle(lambda key, values, chosen=chosen: chosen.get(key, values.examples()[0]), present)  # type: ignore[misc]


def with_runs_of_weights(tree: Mapping[str, Any], storage: str) -> dict[str, Any]:
    """Return a space, in which weights of others that `method.weights` may have are runs of raysl in `storage`.

    Raises:
        ConfigError: if weights cannot be converted.
    """

    def run_of(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [run_of(item) for item in value]
        return run_of_weights(value, storage) if isinstance(value, str) else value

    space = {key: of_tune(node) for key, node in tree.items()}
    for key, node in space.items():
        if isinstance(node, Mapping):
            entry = {name: run_of(value) if key == WEIGHTS and name in LISTS else value for name, value in node.items()}
            if isinstance(when := entry.get("when"), Mapping) and WEIGHTS in when:
                entry["when"] = {**when, WEIGHTS: run_of(when[WEIGHTS])}
            space[key] = entry
    return space


def is_component(key: str) -> bool:
    """Whether a setting chooses a component, and so which other settings exist."""
    return key in COMPONENTS or key.endswith(".name")


def without_name(key: str) -> str:
    """Return a setting's name without the `.name` of a component."""
    return key.removesuffix(".name")


def _value(draw: Draw, name: str, present: Present) -> Any:
    for key, value in draw.items():
        if without_name(key) == without_name(name):
            return value
    return present(name)


def _check_keys(distributions: Mapping[str, Distribution]) -> None:
    """Refuse settings that a draw cannot set, and two entries for one setting."""
    for key in distributions:
        if key in NOT_VARIED:
            raise ConfigError(f"space.{key}: the sweep gives each run its own {key}; take it out of the space")
    for key, distribution in distributions.items():
        for other in distributions:
            is_same = without_name(key) == without_name(other)
            if other != key and (is_same or _is_inside(key, distribution, other)):
                raise ConfigError(f"space.{other}: space.{key} writes this setting as well; keep one of the two")


def _is_inside(key: str, distribution: Distribution, other: str) -> bool:
    """Whether the value of an entry is a group with the setting of another entry."""
    if not other.startswith(f"{key}.") or distribution.kind not in LISTS:
        return False
    name = other.removeprefix(f"{key}.")
    return any(isinstance(value, Mapping) and present_in(value)(name) is not ABSENT for value in distribution.values)


def _check_condition(key: str, name: str, values: list[Any], other: Distribution | None) -> None:
    if other is None:
        return
    if other.kind not in LISTS:
        raise ConfigError(
            f"space.{key}.when: {name} is drawn from a range, and a condition waits for values; list them with choice"
        )
    if unmet := [value for value in values if value not in other.values]:
        raise ConfigError(
            f"space.{key}.when: {name} is never {show(unmet[0])}; it is one of {', '.join(map(show, other.values))}"
        )


def _in_order(distributions: Mapping[str, Distribution], plain_keys: Mapping[str, str]) -> list[str]:
    """Sort settings after those in their conditions, otherwise as written."""
    ordered: list[str] = []

    def visit(key: str, above: tuple[str, ...]) -> None:
        if key in above:
            raise ConfigError(f"space.{key}.when: {' needs '.join([*above, key])}; take one of the conditions out")
        for name in distributions[key].when:
            if (other := plain_keys.get(without_name(name))) is not None:
                visit(other, (*above, key))
        if key not in ordered:
            ordered.append(key)

    for key in distributions:
        visit(key, ())
    return ordered


def present_in(tree: Mapping[str, Any]) -> Present:
    """Return a lookup of settings in a configuration's plain tree; for a component, its name."""

    def look(key: str) -> Any:
        value: Any = tree
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return ABSENT
            value = value[part]
        return value["name"] if isinstance(value, Mapping) and "name" in value else value

    return look
