"""The processes of a training: how many there are, which one this is, and groups of them."""

from collections.abc import Sequence
from typing import Any

import torch.distributed as torch_dist

Group = torch_dist.ProcessGroup
"""A group of ranks."""


def rank() -> int:
    """Return the number of this process, from 0."""
    return torch_dist.get_rank() if _is_on() else 0


def world(group: Group | None = None) -> int:
    """Return the number of processes, W, or of those in a group."""
    return torch_dist.get_world_size(group) if _is_on() else 1


def is_main() -> bool:
    """Return whether this is rank 0, which logs and saves."""
    return rank() == 0


def group_of(names: Sequence[Any]) -> Group | None:
    """Return the group of the ranks that share this rank's name, such as that of its node; every rank must call it.

    Args:
        names: [W], the name of each rank, the same list everywhere.

    Returns:
        None on one process, or if all names are equal.
    """
    if world() == 1 or len(set(names)) == 1:
        return None
    # torch needs all ranks to make a group, so each rank makes all groups in the same order
    groups: dict[Any, Any] = {
        name: torch_dist.new_group([other for other, label in enumerate(names) if label == name])
        for name in dict.fromkeys(names)
    }
    group: Group = groups[names[rank()]]
    return group


def barrier() -> None:
    """Wait until every rank has called this."""
    if world() > 1:
        torch_dist.barrier()


def _is_on() -> bool:
    return torch_dist.is_available() and torch_dist.is_initialized()
