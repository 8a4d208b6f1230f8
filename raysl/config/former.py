"""Settings that runs of earlier versions did not have, with the values that match what those runs did.

A stored `run.yaml` has every setting of its version. A missing key is a setting of a later version; if its default
differs from what older runs did, they are read with the value in `FORMER`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raysl.components import ALIASES
from raysl.config.dump import Keys
from raysl.config.fields import find, put


@dataclass(frozen=True)
class ValueOf:
    """The value of another setting of the same run."""

    keys: Keys
    """Of that setting."""


FORMER: dict[Keys, Any] = {
    ("method", "simclr", "output_norm"): "none",
    ("method", "dcl", "output_norm"): "none",
    ("method", "barlow_twins", "batch_norm"): "joint",
    ("method", "vicreg", "batch_norm"): "joint",
    ("method", "vicreg", "views", "second_blur_p"): ValueOf(("method", "views", "blur_p")),
    ("method", "vicreg", "views", "second_solarize_p"): ValueOf(("method", "views", "solarize_p")),
    ("method", "wmse", "batch_norm"): "joint",
    ("method", "byol", "last_bias"): True,
    ("method", "ressl", "teacher_bn"): "plain",
}
"""Values by keys. The keys of a component's setting have the component's alias after the node's key, as in
("method", "ressl", "teacher_bn") and ("benchmarks", "knn", "k"); those of a shared setting lead to it in the tree, as
in ("train", "sync_bn"). Add an entry with each new setting whose default is not what earlier runs did."""

FORMER_DEFAULTS: dict[Keys, Any] = {
    ("data", "exact_below"): 4_194_304,
    ("data", "window"): 2048,
}
"""Former defaults of settings that are None by default now, by keys. Each version of the order of samples takes None as
its default."""

_OF_A_RUN = {"name", "storage", "seed", "method", "backbone", "data", "optim", "train", "benchmarks", "callbacks"}
_SINGLE = {"method": "method", "backbone": "backbone", "data": "source", "optim": "optimizer"}
_SEVERAL = {"benchmarks": "benchmark", "callbacks": "callback"}


def add_former_values(tree: dict[str, Any], former: Mapping[Keys, Any] | None = None) -> dict[str, Any]:
    """Add the former value of each missing setting to the settings of a stored `run.yaml`.

    From sources inside a source, defaults of earlier versions that may not be set there are removed.

    Args:
        tree: plain settings as they are stored.
        former: values by keys. Default: `FORMER`.
    """
    for keys, value in (FORMER if former is None else former).items():
        for path in _paths(tree, keys):
            above = find(tree, path[:-1])
            if isinstance(above, dict) and path[-1] not in above:
                former_value = find(tree, value.keys) if isinstance(value, ValueOf) else value
                tree = put(tree, path, former_value)
    return put(tree, ("data",), _drop_inner_defaults(tree["data"])) if isinstance(tree.get("data"), dict) else tree


def drop_former_defaults(tree: dict[str, Any], present: Mapping[str, Any]) -> dict[str, Any]:
    """Replace settings that earlier versions stored with their former default by None, which is the default now.

    Args:
        tree: plain settings of a run; those of this version stay as they are.
        present: plain settings of the same run now; those that it sets are kept.
    """
    if find(tree, ("data", "exact_below")) is None:  # of this version
        return tree
    for keys, value in FORMER_DEFAULTS.items():
        if find(tree, keys) == value and find(present, keys) is None:
            tree = put(tree, keys, None)
    return tree


def _drop_inner_defaults(node: Any) -> Any:
    """Remove former defaults from the sources inside a source, which may not set them."""
    sources = find(node, ("sources",))
    if not isinstance(sources, dict):
        return node
    former = {keys[-1]: value for keys, value in FORMER_DEFAULTS.items()}
    inner = {
        key: {name: value for name, value in _drop_inner_defaults(source).items() if former.get(name, ()) != value}
        if isinstance(source, dict)
        else source
        for key, source in sources.items()
    }
    return {**node, "sources": inner}


def is_stored(tree: Mapping[str, Any]) -> bool:
    """Whether a file has all settings of a run, as a stored `run.yaml` does, and not only those of a recipe."""
    return set(tree) >= _OF_A_RUN


def _paths(tree: dict[str, Any], keys: Keys) -> list[Keys]:
    """Return the keys in this tree of an entry of the table; empty if the tree has no such component."""
    node, *rest = keys
    if node in _SINGLE and rest[0] in ALIASES[_SINGLE[node]]:
        return [(node, *rest[1:])] if _is(find(tree, (node, "name")), _SINGLE[node], rest[0]) else []
    if node in _SEVERAL:
        entries = tree.get(node)
        named = {key: find(entries, (key, "name"), key) for key in entries} if isinstance(entries, dict) else {}
        return [(node, key, *rest[1:]) for key, name in named.items() if _is(name, _SEVERAL[node], rest[0])]
    return [keys]


def _is(name: Any, slot: str, alias: str) -> bool:
    return name in (alias, ALIASES[slot][alias])
