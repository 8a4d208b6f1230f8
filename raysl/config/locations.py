"""Places that settings name: paths and URIs in fields of type `Location`, one, several, or several by name."""

import os
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, get_type_hints

from raysl.config.ranges import is_location


@cache
def hints_of(kind: type[object]) -> dict[str, Any]:
    """The annotations of a dataclass, with their ranges."""
    return get_type_hints(kind, include_extras=True)


def location_fields(config: Any) -> tuple[str, ...]:
    """Names of the fields of a dataclass instance that hold places."""
    kind: Any = type(config)
    return tuple(name for name, hint in hints_of(kind).items() if is_location(hint))


def places_in(value: Any) -> Iterator[str]:
    """The places in the value of such a field."""
    if isinstance(value, str | os.PathLike):
        yield os.fspath(value)
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from places_in(item)


def with_places(value: Any, change: Callable[[str], str]) -> Any:
    """The value of such a field with each place in it changed; whatever else stands in it stays."""
    if isinstance(value, str | os.PathLike):
        return change(os.fspath(value))
    if isinstance(value, dict):
        return {key: with_places(item, change) for key, item in value.items()}
    return type(value)(with_places(item, change) for item in value) if isinstance(value, list | tuple) else value


def make_absolute(config: Any, is_place: Callable[[str, str], bool]) -> None:
    """Make the places in a frozen dataclass absolute, as its `__post_init__` may: URIs stay, `~` is expanded.

    Args:
        config: to be changed.
        is_place: of the name of a field and a text in it: whether that is a place; else it stays as it is.
    """
    for name in location_fields(config):
        if (value := getattr(config, name)) is not None:
            from raysl.storage.addresses import (
                absolute,  # pyarrow, which no configuration without places should wait for
            )

            def changed(text: str, name: str = name) -> str:
                return absolute(text) if is_place(name, text) else text

            object.__setattr__(config, name, with_places(value, changed))
