"""The Ray cluster: attach or start one, and what it has or can come to have."""

import logging
import math
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
import ray._private.services
import ray._private.utils
import ray._private.worker
import ray.cloudpickle

from raysl.config.schema import TrainConfig
from raysl.errors import ConfigError
from raysl.signals import install

_SETTINGS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.3",  # a report of a worker may wait for one such interval
    "RAY_DATA_AUTOSCALING_REQUEST_EXPIRE_TIME_S": "30",  # so long a stream that was killed keeps its share of the CPUs
    "RAY_idle_worker_killing_time_threshold_ms": "600000",  # data tasks that wait for a slow step find their process
}
_PRIVATE_SETTINGS = {
    "RAY_prestart_worker_first_driver": "0",  # a process a CPU that Ray Train's, with settings of their own, cannot use
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # one process less: nobody takes this machine away from itself
}


def connect(with_state: bool = False) -> None:
    """Use the cluster that RAY_ADDRESS names (set inside a Ray job), else start a private one on this machine.

    Args:
        with_state: whether a private cluster answers questions about its state. Ray Train needs that to free the
            places of a trial that was stopped; it makes the start slower.

    What Ray's own processes print is shown when the environment has RAYSL_VERBOSE=1. Signals to the process group of
    this process, such as Ctrl-C in a terminal, do not reach those of a private cluster on Linux.
    """
    _send_user_files()
    if ray.is_initialized():
        return
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    is_verbose = os.environ.get("RAYSL_VERBOSE") == "1"
    level = logging.INFO if is_verbose else logging.ERROR
    ray._private.worker.print_to_stdstream = _print if is_verbose else _print_less
    if os.environ.get("RAY_ADDRESS"):
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        with _own_signals():
            ray.init(logging_level=level, log_to_driver=is_verbose, runtime_env={"env_vars": _SETTINGS})
    else:
        for name, value in _PRIVATE_SETTINGS.items():
            os.environ.setdefault(name, value)
        with _own_signals(), _own_sessions():
            ray.init(address="local", include_dashboard=with_state, logging_level=level, log_to_driver=is_verbose)
        global _own_node
        _own_node = ray._private.worker.global_worker.node
    install()  # Ray's core has put a handler of SIGTERM in the place of ours


_own_node: Any = None  # of the private cluster that `connect` has started


def disconnect() -> bool:
    """End the private cluster that `connect` started, with all that runs there; whether there was one."""
    is_own = ray.is_initialized() and ray._private.worker.global_worker.node is _own_node
    if is_own:
        ray.shutdown()
    return is_own


_print = ray._private.worker.print_to_stdstream
_OF_WORKERS = re.compile(r"worker processes have been started|worker died or was killed")


def _print_less(data: dict[str, Any], ignore_prefix: bool) -> None:
    """Leave out what the raylet says of its worker processes, which nobody has to do anything about."""
    if not any(_OF_WORKERS.search(line) for line in data["lines"]):
        _print(data, ignore_prefix)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep a handler of SIGTERM that this process has: Ray puts one in its place that ends the process."""
    setter = ray._private.utils.set_sigterm_handler
    if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        ray._private.utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        ray._private.utils.set_sigterm_handler = setter


@contextmanager
def _own_sessions() -> Iterator[None]:
    """Give each process that Ray starts inside, and all that it starts, a session of its own.

    They end with this process all the same where the system sees to that, which Linux does; elsewhere Ray finds them
    by their process group, so they stay in it.
    """
    popen = ray._private.services.ConsolePopen
    if ray._private.utils.detect_fate_sharing_support() and sys.platform != "win32":
        ray._private.services.ConsolePopen = partial(popen, start_new_session=True)
    try:
        yield
    finally:
        ray._private.services.ConsolePopen = popen


TASK_CPUS = 0.5  # two data tasks a CPU: Ray Data starts the next one up to 0.1 s after one has ended
SWEEP_CPUS = 0.05  # stay free for the processes that drive the trials of a sweep


def _send_user_files() -> None:
    """Have components from a user's file pickled by value: workers do not know the file."""
    for name, module in list(sys.modules.items()):
        if name.startswith("raysl_user_"):
            ray.cloudpickle.register_pickle_by_value(module)


@dataclass(frozen=True)
class Resources:
    """CPUs and GPUs that the cluster has, or that its autoscaler can add."""

    cpus: float
    gpus: float

    @classmethod
    def of_cluster(cls) -> "Resources":
        """Of the cluster that this process is connected to."""
        have = ray.cluster_resources()
        at_most = ray._private.state.state.get_max_resources_from_cluster_config() or {}
        return cls(*(max(have.get(name, 0.0), float(at_most.get(name, 0))) for name in ("CPU", "GPU")))


@dataclass(frozen=True)
class WorkerShape:
    """What each training worker gets.

    Args:
        device: `cpu` or `cuda`.
        cpus: CPUs that Ray reserves for it.
        task_cpus: CPUs that each data task takes.
    """

    device: str
    cpus: float
    task_cpus: float

    @property
    def resources(self) -> dict[str, float]:
        """As Ray Train takes it."""
        return {"CPU": self.cpus} | ({"GPU": 1.0} if self.device == "cuda" else {})


def worker_shape(train: TrainConfig, cluster: Resources) -> WorkerShape:
    """Share the cluster's CPUs between training workers and data tasks, which need at least one.

    Raises:
        ConfigError: if the cluster can never hold so many workers.
    """
    device = train.device
    if device == "auto":
        device = "cuda" if cluster.gpus >= 1 else "cpu"
    if device == "cuda" and train.workers > cluster.gpus:
        raise ConfigError(
            f"{train.workers} workers need as many GPUs, and this cluster can never have more than {cluster.gpus:g}; "
            f"set train.workers={max(1, int(cluster.gpus))}" + ("" if cluster.gpus >= 1 else " and train.device=cpu")
        )
    data_cpus = min(1.0, cluster.cpus / 2)  # a whole one where that can be: Ray Data rounds its share down
    task_cpus = min(TASK_CPUS, data_cpus)
    spare = cluster.cpus - data_cpus - SWEEP_CPUS
    if train.cpus_per_worker is not None:
        if train.workers * train.cpus_per_worker > spare:
            share = _floor(spare / train.workers)
            raise ConfigError(
                f"{train.workers} workers of {train.cpus_per_worker:g} CPUs leave no CPU for data tasks: this cluster "
                f"can never have more than {cluster.cpus:g}; set train.cpus_per_worker={share:g}"
            )
        return WorkerShape(device, train.cpus_per_worker, task_cpus)
    if train.workers > cluster.cpus:
        raise ConfigError(
            f"{train.workers} workers are more than the {cluster.cpus:g} CPUs that this cluster can ever have; "
            f"set train.workers={int(cluster.cpus)}, or train.cpus_per_worker to let them share CPUs"
        )
    return WorkerShape(device, min(1.0, _floor(spare / train.workers)), task_cpus)


def _floor(cpus: float) -> float:
    """Rounded down to hundredths, so that shares add up to no more than the whole."""
    return math.floor(cpus * 100) / 100
