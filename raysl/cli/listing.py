"""What a user can name, each with its class or file and what it is."""

import inspect
from collections.abc import Callable
from typing import Any

from raysl.components import ALIASES, resolve
from raysl.config.files import config_names, packaged_folder, read_summary
from raysl.errors import ConfigError

Row = tuple[str, str, str]


def names_of(kind: str) -> list[Row]:
    """Rows of (name, class or file, first line of its documentation), sorted by name, for one of `KINDS`."""
    return sorted(KINDS[kind]())


def described(kind: str) -> list[dict[str, Any]]:
    """The rows of `names_of` as `name`, `class` and `doc`; backbones have `shapes`, well-known ones with their cost."""
    rows: list[dict[str, Any]] = [{"name": name, "class": where, "doc": doc} for name, where, doc in names_of(kind)]
    if kind == "backbones":
        from raysl.nn.backbones.shapes import measure_shapes

        for row in rows:
            row["shapes"] = measure_shapes(row["name"])
    return rows


def _components(slot: str) -> list[Row]:
    return [(name, target, _summary(slot, name)) for name, target in ALIASES[slot].items()]


def _summary(slot: str, name: str) -> str:
    try:
        return _first_line(resolve(slot, name))
    except ConfigError as error:
        return f"(not available: {error})"


def _first_line(found: object) -> str:
    return next(iter((inspect.getdoc(found) or "").splitlines()), "")


def _transforms() -> list[Row]:
    import raysl.transforms as transforms

    public = {
        name: found for name, found in inspect.getmembers(transforms, inspect.isclass) if not name.startswith("_")
    }
    return [(name, f"{found.__module__}:{found.__qualname__}", _first_line(found)) for name, found in public.items()]


def _configs() -> list[Row]:
    paths = {name: packaged_folder() / f"{name}.yaml" for name in config_names()}
    return [(name, str(path), read_summary(path)) for name, path in paths.items()]


KINDS: dict[str, Callable[[], list[Row]]] = {
    "methods": lambda: _components("method"),
    "backbones": lambda: _components("backbone"),
    "sources": lambda: _components("source"),
    "transforms": _transforms,
    "benchmarks": lambda: _components("benchmark"),
    "callbacks": lambda: _components("callback"),
    "optimizers": lambda: _components("optimizer"),
    "configs": _configs,
}
