"""Building the frozen dataclass tree from a plain tree of settings; all errors are reported together.

Rules between the settings of every run are at the end; methods and sources check what depends on them.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from raysl.components import ALIASES, nearest
from raysl.config.dump import show
from raysl.config.fields import (
    NAMED_BY_KEY,
    SLOTS,
    SYNONYMS,
    Setting,
    component_class,
    list_settings,
    settings_in,
    suggest,
)
from raysl.config.layers import GROUPS
from raysl.config.optim_schema import course_problems
from raysl.config.schema import ComponentConfig, DataConfig, OptimConfig, RunConfig
from raysl.config.values import convert, describe_type
from raysl.errors import ConfigError, Problems

NodeT = TypeVar("NodeT")


def from_dict(tree: Mapping[str, Any]) -> RunConfig:
    """Build a configuration from a plain tree, such as `to_dict` makes."""
    config = build_node(RunConfig, dict(tree), "")
    _check_rules(config)
    return config


def check(config: RunConfig) -> None:
    """Check a configuration that is in memory as `from_dict` checks a tree: `dataclasses.replace` takes any value."""
    _check_node(RunConfig, config, "", None)
    _check_rules(config)


def _check_node(kind: type[Any], node: Any, key: str, default: Any) -> Any:
    """Check the class of a node, its fields, and through `convert` the nodes below."""
    if not isinstance(node, kind):
        shown = type(node).__qualname__ if dataclasses.is_dataclass(node) else show(node)
        raise ConfigError(f"{key}: {shown} is no {kind.__name__}; give an instance of that class")
    settings = list_settings(type(node), node)
    if kind in SLOTS:
        try:
            chosen = component_class(kind, node.name)
        except ConfigError as error:
            raise ConfigError(f"{key}.name: {error}") from error
        # names are compared, not classes: a class of a user's file is another one in each process
        if (type(node).__qualname__, *settings) != (chosen.__qualname__, *list_settings(chosen)):
            raise ConfigError(
                f"{key}.name: {node.name!r} takes {chosen.__qualname__}, and {key} is {type(node).__qualname__}; load "
                f"it with {key}={node.name}"
            )
    problems = Problems()
    for name, setting in settings.items():
        with problems.catching():
            convert(setting.kind, setting.default, f"{key}.{name}" if key else name, None, _check_node)
    problems.check()
    return node


def build_node(kind: type[NodeT], tree: Any, key: str) -> NodeT:
    """Build one node of the tree, such as `DataConfig`; messages name it by `key`, which is empty for a whole tree."""
    node = _Builder({key: tree} if key else tree).node(kind, tree, key, None)
    assert isinstance(node, kind)
    return node


class _Builder:
    def __init__(self, tree: dict[str, Any]) -> None:
        self.tree = tree

    @functools.cached_property
    def known(self) -> list[str]:
        return [".".join(keys) for keys, _ in settings_in(RunConfig, self.tree)]

    def node(self, kind: type[Any], tree: Any, key: str, default: Any) -> Any:
        """Build an instance of the dataclass `kind`, or, for a component, of the `Config` that its `name` selects."""
        if kind in SLOTS and isinstance(tree, str):
            tree = {"name": tree}
        if not isinstance(tree, Mapping):
            raise ConfigError(
                f"{key}: {show(tree)} is not a group of settings; set its fields, or write {{}} for defaults"
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
        values = self._fields(kind, tree, key, default)
        try:
            return kind(**values) if default is None else dataclasses.replace(default, **values)
        except ValueError as error:
            text = str(error)
            if key and text.partition(":")[0] in values:  # it begins with the field
                raise ConfigError(f"{key}.{text}") from error
            raise ConfigError(text if text.startswith(key) else f"{key}: {text}") from error

    def _name(self, kind: type[ComponentConfig], tree: Mapping[str, Any], key: str, default: Any) -> str:
        names = ", ".join(sorted(ALIASES[SLOTS[kind]]))
        usual = default.name if default is not None else key.rpartition(".")[2] if kind in NAMED_BY_KEY else None
        name = tree.get("name", usual)
        if name is None:
            raise ConfigError(f"{key}: missing; choose one with {key}=NAME ({names})")
        if not isinstance(name, str):
            raise ConfigError(f"{key}.name: {show(name)} is not a text; choose one of {names}")
        return name

    def _fields(self, kind: type[Any], tree: Mapping[str, Any], key: str, default: Any) -> dict[str, Any]:
        settings = list_settings(kind, default)
        values: dict[str, Any] = {}
        problems = Problems()
        for name in tree:
            if name not in settings:
                problems.errors += map(ConfigError, self._unknown(name, tree[name], key, settings))
        for name, setting in settings.items():
            inner = f"{key}.{name}" if key else name
            is_needed = setting.default is dataclasses.MISSING
            if name in tree or (is_needed and setting.kind in SLOTS):  # a component without a name is refused by `node`
                with problems.catching():
                    fallback = None if is_needed else setting.default
                    values[name] = convert(setting.kind, tree.get(name, {}), inner, fallback, self.node)
            elif is_needed:
                way = f"it has no default, set it with {inner}=... ({describe_type(setting.kind)})"
                problems.errors.append(ConfigError(f"{inner}: missing; {way}"))
        problems.check()
        return values

    def _unknown(
        self, name: Any, value: Any, key: str, siblings: Mapping[str, Setting], group: str | None = None
    ) -> Iterator[str]:
        """Yield a line for each unknown setting at or below a key.

        Args:
            name: last part of the key.
            key: the key without its last part.
            siblings: settings beside the first unknown part of the key.
            group: the key up to its first unknown part, where that is above `name`.
        """
        inner = f"{key}.{name}" if key else str(name)
        if isinstance(value, dict) and value:
            for leaf, item in value.items():
                yield from self._unknown(leaf, item, inner, siblings, group or inner)
            return
        if others := _with_setting(key, name):
            chosen = self.tree[key]["name"] if isinstance(self.tree.get(key), Mapping) else self.tree.get(key)
            have = " has" if len(others) == 1 else " have"
            names = " and ".join(filter(None, (", ".join(others[:-1]), others[-1])))
            yield f"{inner}: {key}={chosen} has no such setting, {names}{have}; leave it out, or set {key}={others[-1]}"
        elif line := self._of_group(inner):
            yield line
        elif meant := suggest(inner, self.known):
            yield f"{inner}: no such setting; did you mean {' or '.join(meant)}?"
        elif group is not None:
            yield f"{inner}: no such setting; {_of_unknown_group(group, siblings)}"
        else:
            yield f"{inner}: no such setting; {key or 'a run'} has {', '.join(siblings)}"

    def _of_group(self, inner: str) -> str | None:
        """Return the line for a setting that is written below a benchmark's or a callback's name alone."""
        first, _, rest = inner.partition(".")
        for group, slot in GROUPS.items():
            nodes = self.tree.get(group)
            if rest and isinstance(nodes, dict) and first in nodes:
                return f"{inner}: no such setting; did you mean {group}.{inner}?"
            if rest and first in ALIASES[slot]:
                alone = f"this run has no {slot} {first}, which {group}.{first}={{}} adds"
                return f"{inner}: no such setting; {alone}, and {group}.{inner} is its setting"
        return None


def _of_unknown_group(group: str, siblings: Mapping[str, Setting]) -> str:
    """Say that a group of settings is unknown, which one is near, and which there are."""
    above, _, name = group.rpartition(".")
    groups = [other for other, setting in siblings.items() if setting.group or other in GROUPS]
    near = nearest(name, groups)
    hint = f"{above or 'a run'} has {', '.join(groups or siblings)}"
    return f"{group!r} is no group of settings; {f'did you mean {near!r}? ' if near else ''}{hint}"


def _with_setting(key: str, name: Any) -> list[str]:
    """Return the optimizers with a setting that the chosen one lacks, unless the word is a synonym of another setting.

    Only optimizers share settings so often that this helps.
    """
    if key != "optim" or name in SYNONYMS:
        return []
    kinds = {other: component_class(OptimConfig, other) for other in ALIASES[SLOTS[OptimConfig]]}
    return [other for other, kind in kinds.items() if name in list_settings(kind, None)]


def _check_rules(config: RunConfig) -> None:
    if problems := list(_find_problems(config)):
        raise ConfigError("\n".join(problems))


def _find_problems(config: RunConfig) -> Iterator[str]:
    """Yield a line for each value that contradicts another."""
    data, optim, batch_size = config.data, config.optim, config.train.batch_size
    for prefix, source in _iterate_sources("data.", data):
        if source.balanced and source.limit is None:
            yield f"{prefix}balanced: it divides {prefix}limit images among the classes; give {prefix}limit= too"
        if source.subset_by is not None and source.subset is None:
            yield f"{prefix}subset_by: it explains what {prefix}subset lists; give {prefix}subset= too"
    if not config.name.strip() or config.name in (".", "..") or any(mark in config.name for mark in "/\\"):
        yield f"name: {config.name!r} is not the name of a folder; leave out slashes, and give folders in storage"
    if not config.storage.strip():
        yield "storage: '' is not a folder; give one, such as ./runs, or a URI"
    for group in GROUPS:
        for key in getattr(config, group):
            if "." in key:
                yield f"{group}: {key!r} has a dot, which separates keys; name it {key.replace('.', '_')!r}"
    if (num := config.backbone.in_channels) != data.num_channels:
        way = f", of which a network gets 3; set data.channels={num}"
        if isinstance(data.channels, int):
            way = "; leave backbone.in_channels out, and it follows"
        yield f"backbone.in_channels: {num} does not fit data.channels={data.channels}{way}"
    if data.eval_resize is not None and data.eval_resize < data.image_size:
        yield f"data.eval_resize: {data.eval_resize} leaves no room to crop data.image_size {data.image_size}; raise it"
    if data.lanes is not None and data.lanes > batch_size:
        yield f"data.lanes: {data.lanes} lanes do not fit train.batch_size {batch_size}; set {batch_size} or fewer"
    if optim.warmup.unit == "%" and optim.warmup.value > 100:
        yield f"optim.warmup: {optim.warmup} is longer than the run; give at most 100%"
    yield from course_problems(optim)
    for field in dataclasses.fields(config.train):
        value = getattr(config.train, field.name)
        if config.train.ema is None and field.name.startswith("ema_") and value != field.default:
            shown = str(value).lower() if isinstance(value, bool) else value
            yield f"train.{field.name}: {shown} needs an average of the weights; set train.ema=0.999, or leave it out"


def _iterate_sources(prefix: str, data: DataConfig) -> Iterator[tuple[str, DataConfig]]:
    """Yield the settings of a source and of its inner sources, with their keys."""
    yield prefix, data
    for field in dataclasses.fields(data):
        inner = getattr(data, field.name)
        for key, source in inner.items() if isinstance(inner, dict) else ():
            if isinstance(source, DataConfig):
                yield from _iterate_sources(f"{prefix}{field.name}.{key}.", source)
