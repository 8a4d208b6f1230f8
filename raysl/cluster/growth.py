"""What a cluster may grow to: the groups of nodes that its autoscaler may add, computed without Ray."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NodeGroup:
    """Up to `most` nodes of one kind."""

    cpus: float
    gpus: float
    most: int = 1


@dataclass(frozen=True)
class Growth:
    """The nodes that an autoscaler may have at a time, head included: `most_nodes` of all groups, None for no limit.

    >>> growth = Growth((NodeGroup(cpus=16, gpus=1, most=8), NodeGroup(cpus=32, gpus=0, most=16)), most_nodes=20)
    >>> growth.cpus, growth.gpus
    (576.0, 8.0)
    """

    groups: tuple[NodeGroup, ...]
    most_nodes: int | None = None
    origin: str = ""

    @property
    def cpus(self) -> float:
        """Largest number of CPUs."""
        return self._most([(group.cpus, group.most) for group in self.groups])

    @property
    def gpus(self) -> float:
        """Largest number of GPUs."""
        return self._most([(group.gpus, group.most) for group in self.groups])

    def _most(self, groups: Sequence[tuple[float, int]]) -> float:
        left, total = math.inf if self.most_nodes is None else self.most_nodes, 0.0
        for each, most in sorted(groups, reverse=True):
            taken = min(most, left)
            total, left = total + each * taken, left - taken
        return total


def read_growth(config: Mapping[str, Any], origin: str) -> Growth | None:
    """Read the configuration of Ray's autoscaler (`ray up`, KubeRay); None if it adds no nodes."""
    kinds = config.get("available_node_types") or {}
    head = config.get("head_node_type")
    is_fixed = config.get("provider", {}).get("type") == "readonly"  # nodes that were started by hand
    if is_fixed or not any(kind.get("max_workers", 0) > 0 for name, kind in kinds.items() if name != head):
        return None
    limit = config.get("max_workers")
    groups = []
    for name, kind in kinds.items():
        resources = kind.get("resources") or {}
        # with `ray up` a group without a limit of its own has the limit of all of them
        most = int(kind.get("max_workers", 0 if name == head or limit is None else limit))
        cpus, gpus = (float(resources.get(unit, 0)) for unit in ("CPU", "GPU"))
        # these limits count the nodes beside the head, and the head's own group has the head too
        groups.append(NodeGroup(cpus, gpus, most + (name == head)))
    return Growth(tuple(groups), None if limit is None else int(limit) + 1, origin)
