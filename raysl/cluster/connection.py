"""The Ray cluster: attach or start one, and ask what it has or can come to have."""

import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import ray
import ray._private.services
import ray._private.utils
import ray._private.worker
import ray.cloudpickle

from raysl.cluster.resources import Resources
from raysl.config.schema import TrainConfig
from raysl.errors import ConfigError, RunFailed
from raysl.process.signals import install_handlers

_SETTINGS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.3",  # a report of a worker may wait for one such interval
    "RAY_DATA_AUTOSCALING_REQUEST_EXPIRE_TIME_S": "30",  # so long a stream that was killed keeps its share of the CPUs
    "RAY_idle_worker_killing_time_threshold_ms": "600000",  # data tasks that wait for a slow step find their process
}
_PRIVATE_SETTINGS = {
    "RAY_prestart_worker_first_driver": "0",  # a process a CPU that Ray Train's, with settings of their own, cannot use
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # one process less: nobody takes this machine away from itself
}

ANSWER_S = 10.0
"""Seconds in which a cluster has to take a connection."""


def connect(with_state: bool = False) -> None:
    """Use the cluster that RAY_ADDRESS names (set inside a Ray job), else start a private one on this machine.

    Args:
        with_state: whether a private cluster answers questions about its state. Ray Train needs that to free the
            places of a trial that was stopped; it makes the start slower.

    What Ray's own processes print is shown when the environment has RAYSL_VERBOSE=1. Signals to the process group of
    this process, such as Ctrl-C in a terminal, do not reach those of a private cluster on Linux.

    Raises:
        ConfigError: if nothing answers at RAY_ADDRESS.
        RunFailed: if Ray does not start.
    """
    _send_user_files()
    if ray.is_initialized():
        return
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    is_verbose = os.environ.get("RAYSL_VERBOSE") == "1"
    level = logging.INFO if is_verbose else logging.ERROR
    ray._private.worker.print_to_stdstream = _print if is_verbose else _print_less
    if address := os.environ.get("RAY_ADDRESS"):
        _check_answers(address)
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        with _own_signals(), _failures_told():
            ray.init(logging_level=level, log_to_driver=is_verbose, runtime_env={"env_vars": _SETTINGS})
    else:
        for name, value in _PRIVATE_SETTINGS.items():
            os.environ.setdefault(name, value)
        with _own_signals(), _own_sessions(), _failures_told():
            ray.init(address="local", include_dashboard=with_state, logging_level=level, log_to_driver=is_verbose)
        global _own_node
        _own_node = ray._private.worker.global_worker.node
    install_handlers()  # Ray's core has put a handler of SIGTERM in the place of ours


def _check_answers(address: str) -> None:
    """Refuse an address at which nothing listens: Ray would try for minutes."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"no Ray cluster answers at RAY_ADDRESS={address} ({error}); start it, set the address of another one, or "
            "unset RAY_ADDRESS for a private one on this machine"
        ) from error


@contextmanager
def _failures_told() -> Iterator[None]:
    """Tell in a line why Ray has not started: it raises errors of all kinds, bare ones among them."""
    try:
        yield
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
        raise RunFailed(
            f"Ray has not started: {first}; on a machine that is busy or short of memory try again later; "
            "RAYSL_VERBOSE=1 shows what Ray says"
        ) from error


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


def _send_user_files() -> None:
    """Have components from a user's file pickled by value: workers do not know the file."""
    for name, module in list(sys.modules.items()):
        if name.startswith("raysl_user_"):
            ray.cloudpickle.register_pickle_by_value(module)


_trials = 0


def share_cluster(trials: int) -> None:
    """Have this process, which drives one of so many concurrent trials, count on its part of the cluster alone: for
    its workers, and for its benchmarks, which else ask for all of it, and of that the drivers of trials have a part."""
    global _trials
    _trials = trials


def gpus_of(train: TrainConfig) -> float:
    """GPUs that the workers of a run hold; 0 on CPUs, and in a process that is not connected to a cluster."""
    if not ray.is_initialized():
        return 0.0
    is_on_gpus = train.device == "cuda" or (train.device == "auto" and cluster_resources().gpus >= 1)
    return train.workers * train.gpus_per_worker if is_on_gpus else 0.0


def cluster_resources() -> Resources:
    """Those of the cluster that this process is connected to, shared as `share_cluster` has said."""
    have = ray.cluster_resources()
    at_most = ray._private.state.state.get_max_resources_from_cluster_config() or {}
    cpus, gpus = (max(have.get(name, 0.0), float(at_most.get(name, 0))) for name in ("CPU", "GPU"))
    return Resources(cpus, gpus, _trials)
