"""A process group of ranks that are not there, to count what one of many would do."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as torch_dist


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
