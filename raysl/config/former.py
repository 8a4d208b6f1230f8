"""Settings that runs of earlier versions did not have, with the values that those runs had in effect.

A stored `run.yaml` holds every setting that its version had. A key that it lacks is a setting of a later version; where
the default of that setting changes what a run does, the older run must be read with what it did.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raysl.components import ALIASES
from raysl.config.dump import Keys
from raysl.config.fields import find, put


@dataclass(frozen=True)
class ValueOf:
    """The value that another setting of the same run has."""

    keys: Keys
    """Its place in the tree."""


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
"""Values by place. The place of a component's setting has the component's alias behind the node's key, as in
("method", "ressl", "teacher_bn") and ("benchmarks", "knn", "k"); that of a shared setting is its place in the tree, as
in ("train", "sync_bn"). Add an entry with each new setting whose default is not what runs did before it."""

_OF_A_RUN = {"name", "storage", "seed", "method", "backbone", "data", "optim", "train", "benchmarks", "callbacks"}
_SINGLE = {"method": "method", "backbone": "backbone", "data": "source", "optim": "optimizer"}
_SEVERAL = {"benchmarks": "benchmark", "callbacks": "callback"}


def with_former(tree: dict[str, Any], former: Mapping[Keys, Any] | None = None) -> dict[str, Any]:
    """The settings of a stored `run.yaml` with the former value of each setting that they lack.

    Args:
        tree: plain settings as they are stored.
        former: values by place. Default: `FORMER`.
    """
    for keys, value in (FORMER if former is None else former).items():
        for path in _paths(tree, keys):
            above = find(tree, path[:-1])
            if isinstance(above, dict) and path[-1] not in above:
                former_value = find(tree, value.keys) if isinstance(value, ValueOf) else value
                tree = put(tree, path, former_value)
    return tree


def is_stored(tree: Mapping[str, Any]) -> bool:
    """Whether a file holds all settings of a run, as a stored `run.yaml` does, and not the departures of a recipe."""
    return set(tree) >= _OF_A_RUN


def _paths(tree: dict[str, Any], keys: Keys) -> list[Keys]:
    """Keys in this tree of a setting of the table; none if the tree has no such component."""
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
