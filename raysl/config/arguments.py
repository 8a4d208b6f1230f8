"""Checks of arguments of the Python API, with a message that says what to give instead."""

import operator
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from raysl.config.build import check
from raysl.config.config_files import find
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError

KindT = TypeVar("KindT")


def words(value: Any, name: str, example: str) -> list[str]:
    """Return a list of texts; refuse anything else, such as a single text."""
    if isinstance(value, str):
        raise ConfigError(f"{name}: {value!r} is a single text; give a list, [{value!r}]")
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
        raise ConfigError(f"{name}: {_shorten(value)} is not a list of texts; give one such as [{example!r}]")
    return list(value)


def texts_or_paths(value: Any, name: str, example: str) -> list[str]:
    """Return a list of at least one text, each `Path` in it as a text; refuse anything else."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    elif isinstance(value, list | tuple):
        value = [os.fspath(word) if isinstance(word, os.PathLike) else word for word in value]
    if not (listed := words(value, name, example)):
        raise ConfigError(f"{name}: the list is empty; give at least one, [{example!r}]")
    return listed


def text_or_path(value: Any, name: str, example: str) -> str:
    """Return a text, or a `Path` as a text."""
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{name}: {_shorten(value)} is not a name, path or URI; give one such as {example!r}")
    return str(os.fspath(value))


def instance(value: Any, kind: type[KindT], name: str, way: str) -> KindT:
    """Return a value that is an instance of a class; refuse others."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise ConfigError(f"{name}: {_shorten(value)} is not {article} {kind.__name__}; give {way}")
    return value


def whole_number(value: Any, name: str, least: int, what: str, way: str = "") -> int:
    """Return a whole number, also one of NumPy's, as Python's; refuse others.

    Args:
        least: the smallest number that is allowed.
        what: noun for the number, such as "a number of images".
        way: advice on what to give instead; default: a whole number from `least` on.

    >>> whole_number(3, "k", 1, "a number of neighbours")
    3
    """
    if not isinstance(value, bool):
        with suppress(TypeError):
            if (number := operator.index(value)) >= least:
                return number
    raise ConfigError(f"{name}: {_shorten(value)} is not {what}; give {way or f'a whole number from {least} on'}")


def run_config(value: Any) -> RunConfig:
    """Return a run's settings after a check of their values: some may have been changed since they were loaded."""
    if isinstance(value, str):
        try:
            find(value, Path.cwd())
        except ConfigError as error:
            raise ConfigError(
                f"config: {value!r} is not a RunConfig; give what raysl.load_config(NAME) returns: {error}"
            ) from error
    name = value if isinstance(value, str) else "quickstart"
    config = instance(value, RunConfig, "config", f"what raysl.load_config({name!r}) returns")
    check(config)
    return config


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"
