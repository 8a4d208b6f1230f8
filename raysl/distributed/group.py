"""Joining the processes of a run, or any others, in a group of torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as torch_dist


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
