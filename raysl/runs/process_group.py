"""How the workers of a run meet in a process group of torch, and leave it."""

import logging
from typing import Any

from ray.exceptions import RayError
from ray.train.torch import TorchConfig
from ray.train.torch.config import _TorchBackend
from typing_extensions import override

log = logging.getLogger("raysl")


class ProcessGroup(TorchConfig):
    """Settings of the process group of a run's workers."""

    @property
    @override
    def backend_cls(self) -> type["Backend"]:
        return Backend


class Backend(_TorchBackend):
    """Ray Train's own, which also ends groups with workers that Ray ended for lack of memory.

    Ray Train expects dead workers to raise `RayActorError`. These raise `OutOfMemoryError`, which is none, so that no
    group could be started after them.
    """

    @override
    def on_shutdown(self, worker_group: Any, backend_config: TorchConfig) -> None:
        try:
            super().on_shutdown(worker_group, backend_config)
        except RayError as error:
            log.debug("workers have ended before they left their process group: %s", error)
