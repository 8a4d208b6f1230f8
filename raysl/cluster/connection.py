"""The Ray cluster: connecting to one or starting one, and the resources that it has or can add."""

import logging
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from ipaddress import ip_address
from typing import Any

import ray

from raysl.cluster.attaching import TOKEN, prepare, why_no_token
from raysl.cluster.autoscaler import read_autoscaler
from raysl.cluster.board import note_submission, send_files
from raysl.cluster.growth import Growth, NodeGroup
from raysl.cluster.private import show_by, starting_fast
from raysl.cluster.resources import Resources
from raysl.cluster.settings import cluster_settings
from raysl.config.schema import ClusterConfig, TrainConfig
from raysl.errors import ConfigError, RunFailed
from raysl.process import forked
from raysl.process.cpus import ONE_HEAP, WAIT_SETTINGS, thread_variables
from raysl.process.environment import ray_job
from raysl.process.signals import install_handlers

log = logging.getLogger("raysl")

_SETTINGS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.3",  # a report of a worker may wait this long
    "RAY_DATA_AUTOSCALING_REQUEST_EXPIRE_TIME_S": "30",  # seconds that a killed stream keeps its CPUs
    "RAY_idle_worker_killing_time_threshold_ms": "600000",  # keeps idle data tasks during a slow step
}
_ATTACHED_SETTINGS = {
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "1",  # an actor on the head lists runs and workers in the dashboard
}
_PRIVATE_SETTINGS = {
    "RAY_prestart_worker_first_driver": "1",  # so many as `starting_fast` says
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # one process less; a local machine is not preempted
    "RAY_DATA_USAGE_DISABLED": "1",  # one process less; without a dashboard nobody sends what it collects
    # What a run sets: processes that have it from the cluster are ready at once.
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": f"{TrainConfig().hang_timeout:g}",
    "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC": "0",
    "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S": "5",
}


def connect(with_state: bool = False, is_needed: Callable[[], bool] = lambda: True) -> None:
    """Use the cluster that RAY_ADDRESS names (set inside a Ray job), else start a private one on this machine.

    The output of Ray's processes is shown when the environment has RAYSL_VERBOSE=1. Signals to the process group of
    this process, such as Ctrl-C in a terminal, do not reach a private cluster on Linux.

    Args:
        with_state: whether a private cluster serves its state. Ray Train needs that to free the resources of a stopped
            trial; it makes the start slower.
        is_needed: asked while a private cluster starts; if it is not needed any more, that ends as a failure.

    Raises:
        ConfigError: if RAY_ADDRESS is no address, no cluster answers there, or it wants a token that is not at hand, or
            this process was forked after its parent had connected.
        RunFailed: if Ray does not start.
    """
    check_forked()
    if ray.is_initialized():
        send_files()
        return
    forked.has_dead_ray = False
    # set before Ray starts, as its processes inherit them; what the user has set stays
    for name, value in {**_SETTINGS, **thread_variables(os.environ)}.items():
        os.environ.setdefault(name, value)
    is_verbose = os.environ.get("RAYSL_VERBOSE") == "1"
    level = logging.INFO if is_verbose else logging.ERROR
    show_by((lambda show, *printed: show(*printed)) if is_verbose else _show_less)
    if address := os.environ.get("RAY_ADDRESS"):
        prepare(address)
        for name, value in _ATTACHED_SETTINGS.items():
            os.environ.setdefault(name, value)
        with _explain_failures(f"cannot attach to the cluster at {address}"):
            ray.init(logging_level=level, log_to_driver=is_verbose, runtime_env={"env_vars": _job_variables()})
        note_submission()
    else:
        for name, value in _PRIVATE_SETTINGS.items():
            os.environ.setdefault(name, value)
        _keep_token_private()
        with _explain_failures(), starting_fast(is_needed, with_state):
            ray.init(address="local", include_dashboard=with_state, logging_level=level, log_to_driver=is_verbose)
        global _private_address, _inherited
        _private_address, _inherited = ray.get_runtime_context().gcs_address, dict(os.environ)
        if not ip_address(ray.util.get_node_ip_address()).is_loopback:
            log.warning("this private cluster listens on all addresses of the machine; import raysl before ray")
    install_handlers()  # Ray's core has replaced ours for SIGTERM
    send_files()


def check_forked() -> None:
    """Refuse a connection that this process has from its parent: without threads, it would wait forever."""
    if ray.is_initialized() and forked.has_dead_ray:
        raise ConfigError(
            "this process was forked after Ray had started in its parent, and cannot reach Ray; start it by "
            "multiprocessing.get_context('spawn')"
        )


@contextmanager
def _explain_failures(what: str = "Ray has not started") -> Iterator[None]:
    """Turn the errors of a failed start of Ray, which may be of any class, into one line that begins with `what`."""
    try:
        yield
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
        raise RunFailed(
            f"{what}: {first}; on a machine that is busy or short of memory try again later; "
            "RAYSL_VERBOSE=1 shows what Ray says"
        ) from error


def _job_variables() -> dict[str, str]:
    """Return the variables that processes on an attached cluster need, without those that a Ray job gives them itself.

    Ray refuses a variable that both name, even with equal values.
    """
    job = ray_job().get("runtime_env") or {}
    chosen = {name: os.environ[name] for name in (*WAIT_SETTINGS, *ONE_HEAP) if name in os.environ}
    return {name: value for name, value in {**_SETTINGS, **chosen}.items() if name not in job.get("env_vars", {})}


def _keep_token_private() -> None:
    """Let only this user read the token of its clusters; Ray writes it when the first one starts, readable by all."""
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return
    path = TOKEN.expanduser()
    if why_no_token():
        with suppress(OSError):  # another process does the same, or Ray says what is wrong
            path.parent.mkdir(parents=True, exist_ok=True)
            # `x` never replaces a token of another process, and nobody else can read the file at any moment
            with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(secrets.token_hex(32))
    with suppress(OSError):  # of another user, or given by a variable in place of a file
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)


_private_address = ""  # of the cluster that `connect` has started
_inherited: dict[str, str] = {}  # environment of its processes


def disconnect() -> bool:
    """End the private cluster that `connect` started and everything in it; return whether there was one."""
    was_private = is_private()
    if was_private:
        ray.shutdown()
    return was_private


def is_private() -> bool:
    """Return whether this process is connected to a private cluster that `connect` started, which never grows."""
    return bool(ray.is_initialized() and ray.get_runtime_context().gcs_address == _private_address)


def not_inherited(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those of some environment variables that processes of the cluster do not have of themselves.

    Those of a private cluster have the variables of this process at its start. Ray starts a process that needs others
    in a slower way.
    """
    inherited = _inherited if is_private() else {}
    return {name: value for name, value in variables.items() if inherited.get(name) != value}


def inherited_settings() -> dict[str, str]:
    """Return the settings of Ray that processes of a private cluster have from this process."""
    return {name: value for name, value in _inherited.items() if name.startswith("RAY_")}


_NO_ACTION = re.compile(r"worker processes have been started|infeasible resource requests")
_listeners: list[Callable[[str], None]] = []


@contextmanager
def hearing(listen: Callable[[str], None]) -> Iterator[None]:
    """Hand what Ray prints to `listen`, in a thread of Ray's, in place of the terminal while inside."""
    _listeners.append(listen)
    try:
        yield
    finally:
        _listeners.remove(listen)


def _show_less(show: Callable[..., None], data: dict[str, Any], ignore_prefix: bool) -> None:
    """Show what Ray prints without notes that need no action, and a failure in one line."""
    text = "\n".join(data["lines"])
    for listen in list(_listeners):
        listen(text)
    if _listeners:
        return
    from raysl.cluster.failures import describe_message  # imports Ray Train, which may wait until something is lost

    if line := describe_message(text):
        log.warning(line)
    elif not _NO_ACTION.search(text):
        show(data, ignore_prefix)


_trials = 0


def share_cluster(trials: int) -> None:
    """Make this process, which drives one of several concurrent trials, use only its part of the cluster.

    That holds for its workers and its benchmarks.

    Args:
        trials: number of concurrent trials; 0 makes the whole cluster available again.
    """
    global _trials
    _trials = trials


def count_gpus(train: TrainConfig) -> float:
    """Return the GPUs that the workers of a run hold; 0 on CPUs, and without a connection to a cluster."""
    if not ray.is_initialized():
        return 0.0
    is_on_gpus = train.device == "cuda" or (train.device == "auto" and cluster_resources().gpus >= 1)
    return train.most_workers * train.gpus_per_worker if is_on_gpus else 0.0


def cluster_resources() -> Resources:
    """Return the resources that the connected cluster has or may add, shared as set by `share_cluster`."""
    if is_private():
        return Resources.of(_nodes(), None, ClusterConfig(), "", _trials)
    address = ray.get_runtime_context().gcs_address
    return Resources.of(_nodes(), _growth(address), cluster_settings(), MAY_GROW, _trials)


def node_resources() -> list[dict[str, float]]:
    """Return the resources of each node of the connected cluster that lives, by name."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _nodes() -> list[NodeGroup]:
    return [NodeGroup(resources.get("CPU", 0.0), resources.get("GPU", 0.0)) for resources in node_resources()]


MAY_GROW = "; if its autoscaler adds nodes, set {} to what it may add up to"
"""Advice where nobody knows whether a cluster grows: it has no autoscaler, or one that cannot be asked.

`{}` stands for the settings that say it."""


@cache
def _growth(address: str) -> Growth | None:
    """Return what the autoscaler of the connected cluster, which has this address, may add up to."""
    return read_autoscaler()
