"""The base class of components' settings, with absolute locations, and the mark of settings that may change."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

from raysl.config.ranges import is_location


@cache
def type_hints(kind: type[object]) -> dict[str, Any]:
    """Return the annotations of a dataclass, with their ranges."""
    return get_type_hints(kind, include_extras=True)


def location_fields(config: Any) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass instance that hold locations."""
    kind: Any = type(config)
    return _location_fields(kind)


@cache
def _location_fields(kind: Any) -> tuple[str, ...]:
    return tuple(name for name, hint in type_hints(kind).items() if is_location(hint))


def list_locations(value: Any) -> Iterator[str]:
    """Yield the locations in a value of `location_fields`, in lists and dicts too."""
    if isinstance(value, str | os.PathLike):
        yield os.fspath(value)
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from list_locations(item)


def map_locations(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value of `location_fields` with `change` applied to each location in it."""
    if isinstance(value, str | os.PathLike):
        return change(os.fspath(value))
    if isinstance(value, dict):
        return {key: map_locations(item, change) for key, item in value.items()}
    return type(value)(map_locations(item, change) for item in value) if isinstance(value, list | tuple) else value


def make_absolute(config: Any, is_place: Callable[[str, str], bool]) -> None:
    """Make the locations in a frozen dataclass absolute, for its `__post_init__`: URIs stay, `~` is expanded.

    Args:
        config: changed in place.
        is_place: takes the name of a field and a text in it; whether that is a location. Other texts stay.
    """
    for name in location_fields(config):
        if (value := getattr(config, name)) is not None:
            # Imports pyarrow, which a configuration without locations need not wait for.
            from raysl.storage.addresses import absolute

            def change(text: str, name: str = name) -> str:
                return absolute(text) if is_place(name, text) else text

            object.__setattr__(config, name, map_locations(value, change))


MAY_CHANGE: dict[str, bool] = {"may_change": True}
"""Metadata of a field that may differ when a run is started again under the same name."""
ASKS_TRUST: dict[str, bool] = {"asks_trust": True}
"""Metadata of a field that is followed in a checkpoint's settings only if the user trusts them."""


@dataclass(frozen=True, kw_only=True)
class ComponentConfig:
    """A node whose `name` selects the class that reads it."""

    name: str
    """Alias, `package.module:Class`, or `path/to/file.py:Class`."""

    def __post_init__(self) -> None:
        """Make paths absolute, because workers, tasks and a second start may run in other directories."""
        make_absolute(self, self.is_place)

    def is_place(self, field: str, text: str) -> bool:
        """Whether a text in a field of type `Location` is a path or a URI; a subclass may allow other texts."""
        return True
