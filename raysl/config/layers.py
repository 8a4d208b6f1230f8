"""Layers of settings: base files, the file, overrides.

A component that replaces another starts from its defaults: settings of the other one do not apply to it. A layer that
changes the side of views scales the sizes of lower layers in proportion (`config.linked`).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from raysl.components import ALIASES
from raysl.config.config_files import expand, read_dotlist
from raysl.config.dump import Keys, leaves, write_inline
from raysl.config.fields import find, put, settings_in
from raysl.config.linked import IMAGES, scale_sizes, view_side
from raysl.config.places import is_place, source_at
from raysl.config.schema import RunConfig
from raysl.config.values import is_text
from raysl.errors import ConfigError, Problems
from raysl.redact import each_text, redact_tree
from raysl.user_files import relative_name

COMPONENTS = {"method": "method", "backbone": "backbone", "data": "source", "optim": "optimizer"}
"""Slots of components, by the key of their node."""
GROUPS = {"benchmarks": "benchmark", "callbacks": "callback"}
"""Slots of components that occur several times, by the key of their group."""
_GONE = object()


@dataclass
class Layers:
    """The layers so far, merged.

    Args:
        replaced: keys, name and settings of each component that was replaced by another.
        views_at: length of `replaced` when a preset of views was last set.
    """

    values: dict[str, Any] = field(default_factory=dict)
    replaced: list[tuple[Keys, str, dict[str, Any]]] = field(default_factory=list)
    views_at: int = 0

    def lay(self, layer: dict[str, Any], folder: Path, is_ours: bool = False) -> None:
        """Add a layer on top.

        Args:
            layer: settings of a file or a command line.
            folder: where files of components in it are searched, before the current folder.
            is_ours: whether a configuration of raysl has it; benchmarks of all others are required.
        """
        # a list, or {}, keeps only the components that it names from the layers below
        for group in GROUPS:
            if isinstance(only := layer.get(group), list) or only == {}:
                nodes, keys = self.values.get(group) or {}, [_key_of(name) for name in only]
                self.values = {**self.values, group: {key: node for key, node in nodes.items() if key in keys}}
        layer, side = _write_out(layer, folder), view_side(self.values)
        if not is_ours and isinstance(benchmarks := layer.get("benchmarks"), dict):
            layer["benchmarks"] = {
                key: {"required": True, **node} if isinstance(node, dict) else node for key, node in benchmarks.items()
            }
        for path, node in _components(layer):
            below = find(self.values, path)
            if isinstance(below, dict) and _is_another(path, before := _name_of(below, path), node.get("name")):
                self.replaced.append((path, before, below))
                self.values = put(self.values, path, {})
        self.views_at = len(self.replaced) if "views" in layer else self.views_at
        self.values = scale_sizes(merge(self.values, layer), self.values, layer, side)

    @property
    def size_of_views(self) -> Any:
        """Side of the views with a source that was replaced; None without one or with a new method."""
        sizes = [below.get(IMAGES[1]) for keys, _, below in self.replaced if keys == IMAGES[:1]]
        is_new = any(keys == ("method",) for keys, _, _ in self.replaced)
        return None if is_new else next((size for size in reversed(sizes) if size is not None), None)

    def dropped(self, tree: dict[str, Any], settled: dict[str, Any], first: int = 0) -> Iterator[str]:
        """Yield a line for each component that was replaced, with its settings that no longer hold and their values.

        Args:
            tree: settings of all layers; `settled` has all defaults too.
            first: number of replacements, from the lowest layer up, that are not mentioned.
        """
        for keys, before, below in self.replaced[first:]:
            node, key = find(tree, keys), ".".join(keys)
            if not isinstance(node, dict):
                continue
            changes = [
                f"{'.'.join((key, *leaf))} {_change(value, now)}"
                for leaf, value in leaves(below)
                if leaf[0] != "name"
                and find(node, leaf, _GONE) is _GONE
                and (now := find(settled, (*keys, *leaf), _GONE)) != value
            ]
            if changes:
                name = _name_of(node, keys)
                yield f"{key}={name} has its own defaults, not the settings of {before}: {', '.join(changes)}"
        if (preset := tree.get("views")) in (None, "imagenet"):
            return
        for keys, before, _ in self.replaced[max(first, self.views_at) :]:
            if keys == ("data",):
                yield f"views={preset} from data={before} stays; for other images set views=, or views=null"


def _change(before: Any, now: Any) -> str:
    """Say what became of a setting whose component was replaced."""
    was = write_inline(redact_tree(before))
    return f"was {was} and no longer exists" if now is _GONE else f"is {write_inline(redact_tree(now))} (was {was})"


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """The tree of settings that `key=value` words describe, later ones over earlier ones."""
    tree: dict[str, Any] = {}
    problems = Problems()
    for override in overrides:
        with problems.catching():
            tree = merge(tree, _parse(override))
    problems.check()
    return tree


def keep_texts(tree: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a tree whose texts are as typed: `name=007` and `name=no` are texts, not YAML's number and false."""
    typed: dict[Keys, str] = {}
    for key, _, text in (override.partition("=") for override in overrides):
        keys = tuple(key.split("."))
        value = find(tree, keys)
        # only where the value is still the one of this override, and no later one has replaced it
        if isinstance(value, bool | int | float) and find(read_dotlist(f"{key}={text}"), keys) == value:
            typed[keys] = text.strip()
    for keys, setting in settings_in(RunConfig, tree) if typed else ():
        if keys in typed and is_text(setting.kind, find(tree, keys)):
            tree = put(tree, keys, typed[keys])
    return tree


def merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge one plain tree over another.

    A group replaces a list too, which OmegaConf refuses, so that the error message comes from the field.

    >>> merge({"optim": {"lr": 0.3, "name": "sgd"}}, {"optim": {"lr": 0.1}})
    {'optim': {'lr': 0.1, 'name': 'sgd'}}
    """
    merged = dict(below)
    for key, value in above.items():
        lower = merged.get(key)
        merged[key] = merge(lower if isinstance(lower, dict) else {}, value) if isinstance(value, dict) else value
    return merged


def _parse(override: str) -> dict[str, Any]:
    key, equals, _ = override.partition("=")
    if not equals or not all(re.fullmatch(r"[^\s.]+", part) for part in key.split(".")):
        raise ConfigError(f"{override!r} is not a setting; write key=value, such as optim.lr=0.1")
    tree = read_dotlist(override)
    if key == "train" and not isinstance(tree[key], dict):
        raise ConfigError(f"{override}: {key} is a group of settings; set one of them, such as {key}.epochs=10")
    if key in GROUPS and tree[key] is None:
        raise ConfigError(f"{override}: null changes nothing here; write {key}=[] for none")
    return _write_out_components(_find_images(tree))


def _write_out(layer: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Write out `method: simclr` as `method: {name: simclr}`, empty nodes as {}, and users' files by short paths."""
    nodes = (*COMPONENTS, *GROUPS, "train")
    layer = _find_images({key: {} if value is None and key in nodes else value for key, value in layer.items()})
    for group in GROUPS:
        names = layer.get(group)
        if isinstance(names, str):
            listed = ", ".join(re.split(r"[,\s]+", names.strip()))
            raise ConfigError(f"{group}: {names!r} is not a list; write [{listed}]")
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            layer[group] = _list_to_group(group, names)
    full: dict[str, Any] = each_text(_write_out_components(layer), partial(relative_name, folder=folder, expand=expand))
    return full


def _write_out_components(layer: dict[str, Any]) -> dict[str, Any]:
    """Write out the nodes of a layer's components, also of inner sources, that are given by their names alone."""
    layer = {key: to_node(node) if key in COMPONENTS else node for key, node in layer.items()}
    for keys in (*((group,) for group in GROUPS), ("data", "sources")):
        if isinstance(nodes := find(layer, keys), dict):
            layer = put(layer, keys, {key: to_node(node) for key, node in nodes.items()})
    return layer


def _find_images(layer: dict[str, Any]) -> dict[str, Any]:
    """Turn `data: PATH` into the source that reads the images there."""
    path = layer.get("data")
    if not isinstance(path, str) or path in ALIASES["source"] or "${" in path or not is_place(path):
        return layer
    try:
        return {**layer, "data": source_at(path)}
    except ConfigError as error:
        raise ConfigError(f"data: {error}") from error


def _list_to_group(group: str, names: list[str]) -> dict[str, Any]:
    """Turn `[knn, path/to/file.py:Mine]` into `{knn: {}, Mine: {name: path/to/file.py:Mine}}`."""
    keys = [_key_of(name) for name in names]
    again = next((name for number, name in enumerate(names) if keys[number] in keys[:number]), None)
    if again is not None:
        raise ConfigError(
            f"{group}: {_key_of(again)!r} occurs twice; give each another key, "
            f"{group}={{one: {{name: {again}}}, two: ...}}"
        )
    return {_key_of(name): {} if _key_of(name) == name else {"name": name} for name in names}


def _key_of(name: Any) -> Any:
    """Return the key of a component in a list: the class if it is given by file or module."""
    return name.rpartition(":")[2] if isinstance(name, str) else name


def to_node(node: Any) -> Any:
    """Return the node of a component, which may be given by its name alone."""
    return node if isinstance(node, dict) or node is None else {"name": node}


def _components(layer: dict[str, Any]) -> Iterator[tuple[Keys, dict[str, Any]]]:
    paths: list[Keys] = [*((key,) for key in COMPONENTS)]
    for group in GROUPS:
        paths += [(group, key) for key in nodes] if isinstance(nodes := layer.get(group), dict) else []
    for keys in paths:
        if isinstance(node := find(layer, keys), dict):
            yield keys, node


def _name_of(node: dict[str, Any], keys: Keys) -> Any:
    """Return the name of the component at these keys; None if it has none yet."""
    return node.get("name", keys[-1] if keys[0] in GROUPS else None)


def _is_another(keys: Keys, before: Any, now: Any) -> bool:
    """Whether two names mean different components; an alias and its class are the same."""
    aliases = ALIASES[(COMPONENTS | GROUPS)[keys[0]]]
    known = [aliases.get(name, name) if isinstance(name, str) else name for name in (before, now)]
    return None not in known and known[0] != known[1]
