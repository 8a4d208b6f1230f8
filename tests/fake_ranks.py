"""One rank among many that are not there: torch's "fake" process group, whose collectives send nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as torch_dist
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def fake_ranks(world: int, rank: int = 0) -> Iterator[None]:
    """Be one of `world` ranks while inside; results of collectives have their shapes, and numbers of this rank."""
    torch_dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield
    finally:
        torch_dist.destroy_process_group()
