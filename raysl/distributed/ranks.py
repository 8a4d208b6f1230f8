"""The processes of a training: how many there are, which one this is, groups of them, and how they join."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
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


@contextmanager
def joined(address: str, rank: int, world: int, backend: str, timeout_s: float) -> Iterator[None]:
    """Join `world` processes while inside; all of them call it.

    Args:
        address: host:port on which the process of rank 0 listens.
        backend: `gloo` or `nccl`.
        timeout_s: seconds that joining, and each collective, may take.

    Raises:
        RuntimeError: if the others do not come in time.
    """
    timeout = timedelta(seconds=timeout_s)
    torch_dist.init_process_group(backend, init_method=f"tcp://{address}", rank=rank, world_size=world, timeout=timeout)
    try:
        yield
    finally:
        torch_dist.destroy_process_group()


@contextmanager
def pretended_world(num_ranks: int) -> Iterator[None]:
    """Be rank 0 of `num_ranks`, of which no other exists: collectives return at once, with results of the right shapes.

    >>> from raysl import distributed as dist
    >>> with pretended_world(64):
    ...     dist.world()
    64
    """
    if torch_dist.is_available() and torch_dist.is_initialized():
        raise RuntimeError("ranks cannot be pretended in a process that is one of several")
    if num_ranks == 1:
        yield
        return
    # it registers torch's "fake" backend
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch_dist.init_process_group("fake", rank=0, world_size=num_ranks, store=FakeStore())
    try:
        yield
    finally:
        torch_dist.destroy_process_group()


def _is_on() -> bool:
    return torch_dist.is_available() and torch_dist.is_initialized()
