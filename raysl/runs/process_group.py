"""How the workers of a run meet in a process group of torch, and leave it.

Ray Train's controller loads this module and decides; the functions that it sends to workers are the only ones that
import torch. Ray Train's own `TorchConfig` would have the controller, and so each start and each controller after a
failure, load torch for nothing.
"""

import os
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import ray
import ray.train
from ray.exceptions import GetTimeoutError, RayError
from ray.train.backend import Backend, BackendConfig
from ray.train.v2._internal.util import TrainingFramework
from typing_extensions import override

from raysl.errors import log

LEAVE_S = 5.0
"""How long workers may take to leave their group; one that hangs does not leave it."""


@dataclass
class ProcessGroup(BackendConfig):
    """Settings of the process group of a run's workers.

    Args:
        backend: backend of torch.distributed, `nccl` or `gloo`; Ray Train sets it for the workers' device.
        timeout_s: seconds that meeting, and each collective, may take.
    """

    backend: str | None = None
    timeout_s: int = 1800

    @property
    @override
    def backend_cls(self) -> type["Meeting"]:
        return Meeting

    @property
    @override
    def train_func_context(self) -> type["OwnDevice"]:
        return OwnDevice

    @property
    @override
    def framework(self) -> TrainingFramework:
        return TrainingFramework.TORCH

    @override
    def to_dict(self) -> dict[str, Any]:
        return {"backend": self.backend, "timeout_s": self.timeout_s}


class OwnDevice:
    """Makes the GPU of this worker the current one of the thread that trains."""

    def __enter__(self) -> None:
        import torch
        from ray.train.torch import get_device

        device = get_device()
        if device.type == "cuda":
            torch.cuda.set_device(device)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class Meeting(Backend):
    """Has the workers of a group meet, and leave each other; Ray Train's controller calls it."""

    share_cuda_visible_devices = True

    @override
    def on_start(self, worker_group: Any, backend_config: ProcessGroup) -> None:
        address, port = worker_group.execute_single(0, _free_address)
        meeting = [
            worker_group.execute_single_async(
                rank, _meet, backend_config.backend or "gloo", address, port, backend_config.timeout_s
            )
            for rank in range(len(worker_group))
        ]
        ray.get(meeting)

    @override
    def on_shutdown(self, worker_group: Any, backend_config: ProcessGroup) -> None:
        """Have the workers leave their group, which may have lost some.

        Ray Train expects lost workers to raise `RayActorError`. Those that Ray ended for lack of memory raise
        `OutOfMemoryError`, which is none, so that no group could be started after them.
        """
        try:
            ray.get(worker_group.execute_async(_leave), timeout=LEAVE_S)
        except GetTimeoutError:
            log.debug("workers have not left their process group within %.0f s", LEAVE_S)
        except RayError as error:
            log.debug("workers have ended before they left their process group: %s", error)


def _free_address() -> tuple[str, int]:
    from ray.train._internal.utils import get_address_and_port

    found: tuple[str, int] = get_address_and_port()
    return found


def _meet(backend: str, address: str, port: int, timeout_s: float) -> None:
    """Join the group of all workers, and note this worker's place in the variables that torchrun sets."""
    from raysl.distributed.group import join

    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    os.environ |= {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
        "NODE_RANK": str(context.get_node_rank()),
    }
    join("env://", rank, world, backend, timeout_s)


def _leave() -> None:
    """Leave the group, and give back what torch keeps of the memory of the GPU."""
    import torch

    from raysl.distributed.group import leave

    leave()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
