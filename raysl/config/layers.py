"""Settings laid over each other: base files, the file, overrides."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysl.config.build import fits
from raysl.config.locations import expanded

COMPONENTS = ("method", "backbone", "data", "optim")
NODES = (*COMPONENTS, "train")
VIEWS = ("method", "views")
Keys = tuple[str, ...]


@dataclass
class Layers:
    """The sum of the layers so far, and which of its values were set for a component that has since been replaced.

    Args:
        values: the sum.
        stale: values of components, each with the name of the one that it was set for.
        views: values of the method's views, each with the name of the source that they were made for.
    """

    values: dict[str, Any] = field(default_factory=dict)
    stale: dict[Keys, str] = field(default_factory=dict)
    views: dict[Keys, str] = field(default_factory=dict)

    def lay(self, layer: dict[str, Any], folder: Path) -> None:
        """Put settings on top; files of components named there are looked for in `folder`, then in the current one."""
        if isinstance(only := layer.get("benchmarks"), list) or only == {}:
            so_far = _at(self.values, ("benchmarks",)) or {}
            self.values = {**self.values, "benchmarks": {key: node for key, node in so_far.items() if key in only}}
        layer = _spelled_out(layer, folder)
        for keys, node in _components(layer):
            below = _at(self.values, keys)
            before = name_of(below, keys) if below else None
            if below and before is not None and node.get("name") not in (None, before):
                self._replace(keys, below, before)
        self.values = _merged(self.values, layer)
        for leaf in leaves(layer):
            for end in range(1, len(leaf) + 1):
                self.stale.pop(leaf[:end], None)
                self.views.pop(leaf[:end], None)

    def _replace(self, keys: Keys, below: dict[str, Any], before: str) -> None:
        for leaf in leaves(below):
            if leaf != ("name",):
                self.stale.setdefault((*keys, *leaf), before)
        if keys == ("data",):
            for leaf in leaves(_at(self.values, VIEWS) or {}):
                self.views.setdefault((*VIEWS, *leaf), before)

    def pruned(self) -> dict[str, Any]:
        """The values without those of replaced components that the new ones have no place for."""
        values = _merged({}, self.values)
        for keys in sorted(self.stale):
            parent = _at(values, keys[:-1])
            if parent is not None and keys[-1] in parent and not fits(values, keys, parent[keys[-1]]):
                _remove(values, keys)
        return values


def leaves(tree: Mapping[str, Any]) -> Iterator[Keys]:
    """Paths of the values of a tree; an empty dict is a value."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from ((key, *inner) for inner in leaves(value))
        else:
            yield (key,)


def _spelled_out(layer: dict[str, Any], folder: Path) -> dict[str, Any]:
    """`method: simclr` as `method: {name: simclr}`, an empty node as {}, and component files as absolute paths."""
    done = {key: {} if value is None and key in (*NODES, "benchmarks") else value for key, value in layer.items()}
    for key in COMPONENTS:
        if key in done:
            done[key] = _component(done[key], folder)
    if isinstance(benchmarks := done.get("benchmarks"), list) and all(isinstance(name, str) for name in benchmarks):
        done["benchmarks"] = {name: {} for name in benchmarks}
    if isinstance(benchmarks := done.get("benchmarks"), dict):
        done["benchmarks"] = {key: _demanded(_component(value, folder)) for key, value in benchmarks.items()}
    return done


def _demanded(node: Any) -> Any:
    """A benchmark that a layer names is required, unless the layer says otherwise."""
    return {"required": True, **node} if isinstance(node, dict) else node


def _component(node: Any, folder: Path) -> Any:
    node = {"name": node} if isinstance(node, str) else node
    if not isinstance(node, dict) or not isinstance(node.get("name"), str):
        return node
    path, colon, attribute = node["name"].rpartition(":")
    if not path.endswith(".py") or "${" in path:
        return node
    file = Path(expanded(path))
    beside = folder / file
    return {**node, "name": f"{(beside if beside.is_file() else Path.cwd() / file).resolve()}{colon}{attribute}"}


def _components(layer: dict[str, Any]) -> Iterator[tuple[Keys, dict[str, Any]]]:
    for key in COMPONENTS:
        if isinstance(layer.get(key), dict):
            yield (key,), layer[key]
    benchmarks = layer.get("benchmarks")
    for key, node in benchmarks.items() if isinstance(benchmarks, dict) else ():
        if isinstance(node, dict):
            yield ("benchmarks", key), node


def name_of(node: dict[str, Any], keys: Keys) -> Any:
    """The name of the component whose settings lie at these keys; None where it has none yet."""
    return node.get("name", keys[-1] if keys[0] == "benchmarks" else None)


def _at(tree: dict[str, Any], keys: Keys) -> dict[str, Any] | None:
    at: Any = tree
    for key in keys:
        at = at.get(key) if isinstance(at, dict) else None
    return at if isinstance(at, dict) else None


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    done = dict(below)
    for key, value in above.items():
        if isinstance(value, dict):
            lower = done.get(key)
            done[key] = _merged(lower if isinstance(lower, dict) else {}, value)
        else:
            done[key] = value
    return done


def _remove(tree: dict[str, Any], keys: Keys) -> None:
    parent = _at(tree, keys[:-1])
    assert parent is not None
    del parent[keys[-1]]
    if not parent and len(keys) > 2:
        _remove(tree, keys[:-1])
