"""What settings there are: the fields of the schema and of the components that a tree names."""

import dataclasses
import functools
from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from raysl.components import resolve
from raysl.config.locations import expanded, is_location
from raysl.config.ranges import bare
from raysl.config.schema import BackboneConfig, BenchmarkConfig, ComponentConfig, DataConfig, MethodConfig, OptimConfig
from raysl.config.tree import plain
from raysl.errors import ConfigError
from raysl.schedule import Duration

SLOTS: dict[type[ComponentConfig], str] = {
    MethodConfig: "method",
    BackboneConfig: "backbone",
    DataConfig: "source",
    OptimConfig: "optimizer",
    BenchmarkConfig: "benchmark",
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """One field of a node: its name, its type, and its default or `MISSING`."""

    name: str
    kind: Any
    default: Any


@functools.cache
def hints_of(kind: type[object]) -> dict[str, Any]:
    """The annotations of a dataclass, with their ranges."""
    return get_type_hints(kind, include_extras=True)


def settings_of(kind: Any, default: Any = None) -> dict[str, Setting]:
    """The settings of a dataclass by name; those of the instance `default` are its defaults where one is given."""
    found = {}
    hints = hints_of(kind)
    for field in dataclasses.fields(kind):
        if not field.init:
            continue
        if default is not None:
            value = getattr(default, field.name)
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        else:
            value = field.default
        found[field.name] = Setting(field.name, hints[field.name], value)
    return found


def component_class(base: type[ComponentConfig], name: str) -> type[ComponentConfig]:
    """The `Config` of the component that a name picks for nodes of the class `base`.

    Raises:
        ConfigError: if there is no such component, or it nests no frozen `Config` derived from `base`.
    """
    slot = SLOTS[base]
    owner = resolve(slot, name)
    config = getattr(owner, "Config", None)
    if not (isinstance(config, type) and issubclass(config, base) and dataclasses.is_dataclass(config)):
        raise ConfigError(
            f"{slot} {name!r}: {owner.__name__} has no settings; nest a frozen dataclass Config({base.__name__}) in it"
        )
    return config


def group_of(kind: Any) -> type[Any] | None:
    """The dataclass behind an annotation, also inside `X | None`; None where it is no group of settings."""
    kind = bare(kind)
    if get_origin(kind) in (Union, UnionType):
        return next((group for member in get_args(kind) if (group := group_of(member)) is not None), None)
    return kind if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind is not Duration else None


def chosen(kind: type[Any], tree: dict[str, Any], key: str) -> type[Any]:
    """The class that reads this node: for a component's node the one that its name picks, as far as that is known."""
    if kind not in SLOTS:
        return kind
    name = tree.get("name", key.rpartition(".")[2] if kind is BenchmarkConfig else None)
    try:
        return component_class(kind, name) if isinstance(name, str) and "${" not in name else kind
    except ConfigError:
        return kind


def known_keys(kind: type[Any], tree: Any, key: str = "") -> Iterator[str]:
    """Dotted keys of all settings that the tree can have with the components it names."""
    tree = tree if isinstance(tree, dict) else {}
    for setting in settings_of(chosen(kind, tree, key)).values():
        inner = f"{key}.{setting.name}" if key else setting.name
        group = group_of(setting.kind)
        if group is not None:
            yield from known_keys(group, tree.get(setting.name), inner)
        elif entry := _entry_group(setting.kind):
            yield inner
            given = tree.get(setting.name)
            for name, value in given.items() if isinstance(given, dict) else ():
                yield from known_keys(entry, value, f"{inner}.{name}")
        else:
            yield inner


def filled(kind: type[Any], tree: dict[str, Any], key: str = "", default: Any = None) -> dict[str, Any]:
    """The tree with every default written out, so that interpolation can refer to it."""
    done = dict(tree)
    for setting in settings_of(chosen(kind, tree, key), default).values():
        inner = f"{key}.{setting.name}" if key else setting.name
        group, entry, given = group_of(setting.kind), _entry_group(setting.kind), tree.get(setting.name, {})
        instance = setting.default if group is not None and isinstance(setting.default, group) else None
        if group is not None and isinstance(given, dict) and (given or setting.default is not None):
            done[setting.name] = filled(group, given, inner, instance)
        elif entry is not None and isinstance(given, dict):
            done[setting.name] = {
                name: filled(entry, value, f"{inner}.{name}") if isinstance(value, dict) else value
                for name, value in given.items()
            }
        elif setting.name not in tree and setting.default is not dataclasses.MISSING:
            done[setting.name] = plain(setting.default)
    return done


def expanded_locations(kind: type[Any], tree: dict[str, Any], key: str = "") -> dict[str, Any]:
    """The tree with `~` and environment variables expanded in its paths.

    Raises:
        ConfigError: a line for each path that names a variable that is not set.
    """
    done, errors = dict(tree), []
    for setting in settings_of(chosen(kind, tree, key)).values():
        inner, given = f"{key}.{setting.name}" if key else setting.name, tree.get(setting.name)
        group, entry = group_of(setting.kind), _entry_group(setting.kind)
        try:
            if isinstance(given, str) and is_location(setting.kind):
                done[setting.name] = expanded(given)
            elif group is not None and isinstance(given, dict):
                done[setting.name] = expanded_locations(group, given, inner)
            elif entry is not None and isinstance(given, dict):
                nodes = {name: node for name, node in given.items() if isinstance(node, dict)}
                found = {name: expanded_locations(entry, node, f"{inner}.{name}") for name, node in nodes.items()}
                done[setting.name] = given | found
        except ConfigError as error:
            errors += [line if line.startswith(inner) else f"{inner}: {line}" for line in str(error).splitlines()]
    if errors:
        raise ConfigError("\n".join(errors))
    return done


def _entry_group(kind: Any) -> type[Any] | None:
    kind = bare(kind)
    return group_of(get_args(kind)[1]) if get_origin(kind) is dict and get_args(kind) else None
