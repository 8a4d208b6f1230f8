"""Settings laid over each other: base files, the file, overrides.

A component that takes the place of another starts from its own defaults: nothing that was set for the other one holds
for it. A layer that changes the side of views scales the sizes in proportion to it that lie below (`config.sizes`).
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysl.components import ALIASES
from raysl.config.dump import Keys, leaves, write_inline
from raysl.config.fields import find, put
from raysl.config.files import expanded, read_dotlist
from raysl.config.sizes import IMAGES, in_proportion, side_of
from raysl.errors import ConfigError
from raysl.redact import redact_tree

COMPONENTS = {"method": "method", "backbone": "backbone", "data": "source", "optim": "optimizer"}
"""Slots of components, by the key of their node."""
GROUPS = {"benchmarks": "benchmark", "callbacks": "callback"}
"""Slots of components of which there may be several, by the key of their group."""
_GONE = object()


@dataclass
class Layers:
    """The sum of the layers so far.

    Args:
        values: the sum.
        replaced: place, name and settings of each component that another one took the place of.
        views_at: how many of those there were when a preset of views was named last.
    """

    values: dict[str, Any] = field(default_factory=dict)
    replaced: list[tuple[Keys, str, dict[str, Any]]] = field(default_factory=list)
    views_at: int = 0

    def lay(self, layer: dict[str, Any], folder: Path) -> None:
        """Put settings on top; files of components named there are looked for in `folder`, then in the current one."""
        for group in GROUPS:
            if isinstance(only := layer.get(group), list) or only == {}:
                so_far, kept = self.values.get(group) or {}, [_key_of(name) for name in only]
                self.values = {**self.values, group: {key: node for key, node in so_far.items() if key in kept}}
        layer, side = _spelled_out(layer, folder), side_of(self.values)
        for keys, node in _components(layer):
            below = find(self.values, keys)
            if isinstance(below, dict) and _is_another(keys, before := _name_of(below, keys), node.get("name")):
                self.replaced.append((keys, before, below))
                self.values = put(self.values, keys, {})
        self.views_at = len(self.replaced) if "views" in layer else self.views_at
        self.values = in_proportion(merged(self.values, layer), self.values, layer, side)

    @property
    def size_of_views(self) -> Any:
        """Side of the views that a method had with a source that was replaced; None where there was none."""
        sizes = [below.get(IMAGES[1]) for keys, _, below in self.replaced if keys == IMAGES[:1]]
        is_new = any(keys == ("method",) for keys, _, _ in self.replaced)
        return None if is_new else next((size for size in reversed(sizes) if size is not None), None)

    def dropped(self, tree: dict[str, Any], first: int = 0) -> Iterator[str]:
        """A line for each component that was replaced, with those of its settings that the tree has no more.

        Args:
            tree: the settings as they are used.
            first: how many replacements, from the first on, nobody has to be told of.
        """
        for keys, before, below in self.replaced[first:]:
            node, key = find(tree, keys), ".".join(keys)
            gone = [
                f"{'.'.join((key, *leaf))}={write_inline(redact_tree(value))}"
                for leaf, value in leaves(below)
                if leaf[0] != "name" and find(node, leaf, _GONE) is _GONE
            ]
            if gone and isinstance(node, dict):
                name = _name_of(node, keys)
                yield f"{key}={name} starts from its own defaults; dropped with {before}: {', '.join(gone)}"
        if (preset := tree.get("views")) in (None, "imagenet"):
            return
        for keys, before, _ in self.replaced[max(first, self.views_at) :]:
            if keys == ("data",):
                yield f"views={preset} stays, which came with data={before}; for other images set views=, or views=null"


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """The tree of settings that `key=value` words describe, later ones over earlier ones.

    Raises:
        ConfigError: a line for each word that is none.
    """
    tree: dict[str, Any] = {}
    errors: list[str] = []
    for override in overrides:
        try:
            tree = merged(tree, _parsed(override))
        except ConfigError as error:
            errors.append(str(error))
    if errors:
        raise ConfigError("\n".join(errors))
    return tree


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """One plain tree over another. A group takes the place of a list too, which OmegaConf refuses to do, so that the
    message about it is the field's own."""
    done = dict(below)
    for key, value in above.items():
        lower = done.get(key)
        done[key] = merged(lower if isinstance(lower, dict) else {}, value) if isinstance(value, dict) else value
    return done


def _parsed(override: str) -> dict[str, Any]:
    key, equals, _ = override.partition("=")
    if not equals or not all(re.fullmatch(r"[^\s.]+", part) for part in key.split(".")):
        raise ConfigError(f"{override!r} is no setting; write key=value, such as optim.lr=0.1")
    tree = read_dotlist(override)
    if key == "train" and not isinstance(tree[key], dict):
        raise ConfigError(f"{override}: {key} is a group of settings; set one of them, such as {key}.epochs=10")
    if key in GROUPS and tree[key] is None:
        raise ConfigError(f"{override}: null changes nothing here; write {key}=[] for none")
    return _each_component(tree, _named)


def _spelled_out(layer: dict[str, Any], folder: Path) -> dict[str, Any]:
    """`method: simclr` as `method: {name: simclr}`, an empty node as {}, and component files as absolute paths."""
    nodes = (*COMPONENTS, *GROUPS, "train")
    done = {key: {} if value is None and key in nodes else value for key, value in layer.items()}
    for group in GROUPS:
        if isinstance(names := done.get(group), list) and all(isinstance(name, str) for name in names):
            done[group] = _by_key(group, names)
    done = _each_component(done, lambda node: _placed(_named(node), folder))
    if isinstance(benchmarks := done.get("benchmarks"), dict):  # one that a layer names is required, unless it says no
        done["benchmarks"] = {
            key: {"required": True, **node} if isinstance(node, dict) else node for key, node in benchmarks.items()
        }
    return done


def _each_component(layer: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """A layer with the nodes of its components changed, also of those in a source of several."""
    for key in COMPONENTS:
        if key in layer:
            layer = {**layer, key: change(layer[key])}
    for keys in (*((group,) for group in GROUPS), ("data", "sources")):
        if isinstance(nodes := find(layer, keys), dict):
            layer = put(layer, keys, {key: change(node) for key, node in nodes.items()})
    return layer


def _by_key(group: str, names: list[str]) -> dict[str, Any]:
    """`[knn, path/to/file.py:Mine]` as `{knn: {}, Mine: {name: path/to/file.py:Mine}}`."""
    if again := next((name for place, name in enumerate(names) if _key_of(name) in map(_key_of, names[:place])), None):
        raise ConfigError(
            f"{group}: {_key_of(again)!r} is there twice; give each a key of its own, "
            f"{group}={{one: {{name: {again}}}, two: ...}}"
        )
    return {_key_of(name): {} if _key_of(name) == name else {"name": name} for name in names}


def _key_of(name: Any) -> Any:
    """What a component in a list is called: its class where it is given by file or module."""
    return name.rpartition(":")[2] if isinstance(name, str) else name


def _named(node: Any) -> Any:
    return node if isinstance(node, dict) or node is None else {"name": node}


def _placed(node: Any, folder: Path) -> Any:
    """A component's node with the file that it names as an absolute path."""
    name = find(node, ("name",))
    path, colon, attribute = name.rpartition(":") if isinstance(name, str) else ("", "", "")
    if not path.endswith(".py") or "${" in path:
        return node
    file = Path(expanded(path))
    beside = folder / file
    return {**node, "name": f"{(beside if beside.is_file() else Path.cwd() / file).resolve()}{colon}{attribute}"}


def _components(layer: dict[str, Any]) -> Iterator[tuple[Keys, dict[str, Any]]]:
    places: list[Keys] = [*((key,) for key in COMPONENTS)]
    for group in GROUPS:
        places += [(group, key) for key in nodes] if isinstance(nodes := layer.get(group), dict) else []
    for keys in places:
        if isinstance(node := find(layer, keys), dict):
            yield keys, node


def _name_of(node: dict[str, Any], keys: Keys) -> Any:
    """The name of the component whose settings lie at these keys; None where it has none yet."""
    return node.get("name", keys[-1] if keys[0] in GROUPS else None)


def _is_another(keys: Keys, before: Any, now: Any) -> bool:
    """Whether a name is another component's; an alias and its class are the same."""
    aliases = ALIASES[(COMPONENTS | GROUPS)[keys[0]]]
    known = [aliases.get(name, name) if isinstance(name, str) else name for name in (before, now)]
    return None not in known and known[0] != known[1]
