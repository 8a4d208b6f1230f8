"""Methods wrapped as a run wraps them, by torch's DDP, ZeRO and FSDP2, on a pretended GPU among ranks not there."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as torch_dist
from torch import nn
from torch.futures import Future
from torch.nn.parallel import distributed as torch_ddp

from raysl import distributed as dist
from raysl.distributed import parallel
from tests.fake_gpu.pretended import Moment


class Summed(torch_ddp.DistributedDataParallel):
    """DDP that sums its buckets from Python: a collective of the "fake" group leaves nothing for C++ to take."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register_comm_hook(None, _sum)


def _sum(_: object, bucket: torch_dist.GradBucket) -> Future[torch.Tensor]:
    torch_dist.all_reduce(bucket.buffer())
    done: Future[torch.Tensor] = Future()
    done.set_result(bucket.buffer())
    return done


@contextmanager
def wrapping() -> Iterator[None]:
    """Let torch wrap methods of the pretended GPU, while it is open.

    What torch reads from the device in C++ before the first step is left out: whether ranks have the same parameters,
    and the order of buckets, which stays the first one. So are timers of the first ten steps, which ask the driver.
    """
    shard = dist.shard

    def moved_and_sharded(module: nn.Module, units: Any, device: torch.device) -> None:
        # torch would set `parameter.data`, which makes no FakeTensor of a parameter
        shard(module.to(device), units, device)

    with ExitStack() as stack:
        for target, name, stand_in in (
            (torch_ddp, "_verify_param_shape_across_processes", lambda *args: True),
            (torch_dist.Reducer, "_rebuild_buckets", lambda reducer: False),
            (torch_dist.Reducer, "prepare_for_forward", lambda reducer: None),
            (torch.accelerator, "current_stream", Moment),
            (parallel, "DistributedDataParallel", Summed),
            (dist, "shard", moved_and_sharded),
        ):
            stack.enter_context(mock.patch.object(target, name, stand_in))
        yield
