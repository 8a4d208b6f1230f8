"""A plain tree of settings into the frozen dataclass tree; all that is wrong with it is told at once."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args, get_origin

from raysl.components import ALIASES
from raysl.config.check import problems
from raysl.config.fields import SLOTS, chosen, component_class, expanded_locations, group_of, known_keys, settings_of
from raysl.config.schema import BenchmarkConfig, ComponentConfig, RunConfig
from raysl.config.suggest import near
from raysl.config.values import convert, show, spell
from raysl.errors import ConfigError

NodeT = TypeVar("NodeT")


def from_dict(tree: Mapping[str, Any]) -> RunConfig:
    """The configuration that a plain tree, such as `to_dict` makes, describes.

    Raises:
        ConfigError: a line for each unknown key, missing value, wrong type and value out of its range.
    """
    config = _Builder(dict(tree)).node(RunConfig, dict(tree), "", None)
    assert isinstance(config, RunConfig)
    if found := problems(config):
        raise ConfigError("\n".join(found))
    return config


def node_from_dict(kind: type[NodeT], tree: Any, key: str) -> NodeT:
    """One node of the tree, for settings that do not stand in a run's configuration.

    Args:
        kind: the class of the node, such as `DataConfig`.
        tree: its plain settings.
        key: its place, for messages.

    Raises:
        ConfigError: as `from_dict`.
    """
    tree = expanded_locations(kind, tree, key) if isinstance(tree, dict) else tree
    node = _Builder({key: tree}).node(kind, tree, key, None)
    assert isinstance(node, kind)
    return node


def fits(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> bool:
    """Whether the tree, with the components that it names, has a setting at `path` that can hold this value."""
    kind: Any = RunConfig
    at: Any = tree
    for i, part in enumerate(path):
        group = group_of(kind)
        if group is not None:
            group = chosen(group, at if isinstance(at, dict) else {}, ".".join(path[:i]))
            if part not in (settings := settings_of(group)):
                return False
            kind = settings[part].kind
        elif get_origin(kind) is dict:
            kind = get_args(kind)[1]
        else:
            return False
        at = at.get(part) if isinstance(at, dict) else None
    if isinstance(value, str) and "${" in value:
        return True
    try:
        convert(kind, value, ".".join(path), None, _Builder(tree).node)
    except ConfigError:
        return False
    return True


class _Builder:
    def __init__(self, tree: dict[str, Any]) -> None:
        self.tree = tree

    @functools.cached_property
    def known(self) -> list[str]:
        return list(known_keys(RunConfig, self.tree))

    def node(self, kind: type[Any], tree: Any, key: str, default: Any) -> Any:
        """An instance of the dataclass `kind`, or of the `Config` that its `name` picks where it is a component."""
        if kind in SLOTS and isinstance(tree, str):
            tree = {"name": tree}
        if not isinstance(tree, Mapping):
            raise ConfigError(
                f"{key}: {show(tree)} is no group of settings; set its fields, or write {{}} for defaults"
            )
        if kind in SLOTS:
            name = self._name(kind, tree, key, default)
            default = default if default is not None and default.name == name else None
            tree = {**tree, "name": name}
            try:
                kind = component_class(kind, name)
            except ConfigError as error:
                raise ConfigError(f"{key}.name: {error}") from error
        kind = type(default) if isinstance(default, kind) else kind
        values, errors = self._fields(kind, tree, key, default)
        if errors:
            raise ConfigError("\n".join(errors))
        try:
            return kind(**values) if default is None else dataclasses.replace(default, **values)
        except ValueError as error:
            text = str(error)
            if key and text.partition(":")[0] in values:  # it begins with the field
                raise ConfigError(f"{key}.{text}") from error
            raise ConfigError(text if text.startswith(key) else f"{key}: {text}") from error

    def _name(self, kind: type[ComponentConfig], tree: Mapping[str, Any], key: str, default: Any) -> str:
        names = ", ".join(sorted(ALIASES[SLOTS[kind]]))
        own = default.name if default is not None else key.rpartition(".")[2] if kind is BenchmarkConfig else None
        name = tree.get("name", own)
        if name is None:
            raise ConfigError(f"{key}: missing; choose one with {key}=NAME ({names})")
        if not isinstance(name, str):
            raise ConfigError(f"{key}.name: {show(name)} is no text; choose one of {names}")
        return name

    def _fields(
        self, kind: type[Any], tree: Mapping[str, Any], key: str, default: Any
    ) -> tuple[dict[str, Any], list[str]]:
        settings = settings_of(kind, default)
        values: dict[str, Any] = {}
        errors = [
            line
            for name in tree
            if name not in settings
            for line in self._unknown(name, tree[name], key, list(settings))
        ]
        for name, setting in settings.items():
            inner = f"{key}.{name}" if key else name
            fallback = None if setting.default is dataclasses.MISSING else setting.default
            if name in tree:
                try:
                    values[name] = convert(setting.kind, tree[name], inner, fallback, self.node)
                except ConfigError as error:
                    errors.append(str(error))
            elif setting.default is dataclasses.MISSING:
                errors.append(self._missing(setting.kind, inner))
        return values, errors

    def _missing(self, kind: Any, key: str) -> str:
        if kind in SLOTS:
            return f"{key}: missing; choose one with {key}=NAME ({', '.join(sorted(ALIASES[SLOTS[kind]]))})"
        return f"{key}: missing; it has no default, set it with {key}=... ({spell(kind)})"

    def _unknown(self, name: Any, value: Any, key: str, siblings: list[str]) -> Iterator[str]:
        inner = f"{key}.{name}" if key else str(name)
        if isinstance(value, dict) and value:
            for leaf, item in value.items():
                yield from self._unknown(leaf, item, inner, siblings)
            return
        if meant := near(inner, self.known):
            yield f"{inner}: no such setting; did you mean {' or '.join(meant)}?"
        else:
            yield f"{inner}: no such setting; {key or 'the tree'} has {', '.join(siblings)}"
