"""The Ray cluster: attach or start one, and what it has or can come to have."""

import logging
import math
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
TRIAL_CPUS = 0.01  # of the process that drives a trial; its workers and data tasks have their own
SWEEP_CPUS = 0.05  # stay free for those processes, or more where there are more of them
LEAST_CPUS = 0.01  # of a worker


def _send_user_files() -> None:
    """Have components from a user's file pickled by value: workers do not know the file."""
    for name, module in list(sys.modules.items()):
        if name.startswith("raysl_user_"):
            ray.cloudpickle.register_pickle_by_value(module)


@dataclass(frozen=True)
class Resources:
    """CPUs and GPUs that the cluster has, or that its autoscaler can add.

    Args:
        cpus, gpus: all of them.
        trials: of a Ray Tune, that have them at the same time; 0: one run has them, and nothing else does.
    """

    cpus: float
    gpus: float
    trials: int = 0

    @classmethod
    def of_cluster(cls) -> "Resources":
        """Of the cluster that this process is connected to, shared as `share_cluster` has said."""
        have = ray.cluster_resources()
        at_most = ray._private.state.state.get_max_resources_from_cluster_config() or {}
        cpus, gpus = (max(have.get(name, 0.0), float(at_most.get(name, 0))) for name in ("CPU", "GPU"))
        return cls(cpus, gpus, _trials)

    def shared(self, trials: int) -> "Resources":
        """The same for each of so many concurrent trials: `worker_shape` gives each no more than its part.

        Their workers and the processes that drive them leave CPUs to data tasks and, where there are 2 or more, a
        whole one to benchmarks of trials that have trained.
        """
        return replace(self, trials=trials)

    @property
    def own_gpus(self) -> float:
        """GPUs that one of the trials has once its workers have ended; others may never be free."""
        return self.gpus / max(1, self.trials)

    @property
    def benchmark_cpus(self) -> float:
        """CPUs that tasks may ask for once the workers of a run have ended; more of them may never be free."""
        if self.trials == 0:
            return self.cpus
        return self.cpus - self._driver_cpus if self.trials == 1 else min(1.0, self.cpus / 2)

    @property
    def kept_cpus(self) -> float:
        """CPUs that no worker gets: those of data tasks, benchmarks, and the processes that drive trials."""
        tasks = min(1.0, self.cpus / 2)  # a whole one where that can be: Ray Data rounds its share down
        if self.trials > 1 and self.cpus >= 4:
            tasks += TASK_CPUS  # of those that train, while the benchmarks of another one have the whole CPU
        return tasks + self._driver_cpus

    @property
    def _driver_cpus(self) -> float:
        return max(SWEEP_CPUS, self.trials * TRIAL_CPUS)

    def most_cpus(self, workers: int) -> float:
        """CPUs that each worker of each trial can have, where every trial has so many workers."""
        return _floor((self.cpus - self.kept_cpus) / (max(1, self.trials) * workers))


_trials = 0


def share_cluster(trials: int) -> None:
    """Have this process, which drives one of so many concurrent trials, count on its part of the cluster alone: for
    its workers, and for its benchmarks, which else ask for all of it, and of that the drivers of trials have a part."""
    global _trials
    _trials = trials


@dataclass(frozen=True)
class WorkerShape:
    """What each training worker gets.

    Args:
        device: `cpu` or `cuda`.
        cpus: CPUs that Ray reserves for it.
        task_cpus: CPUs that each data task takes.
        gpus: GPUs that Ray reserves for it where the device is one: 1, or a share.
    """

    device: str
    cpus: float
    task_cpus: float
    gpus: float = 1.0

    @property
    def resources(self) -> dict[str, float]:
        """As Ray Train takes it."""
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.device == "cuda" else {})


def worker_shape(train: TrainConfig, cluster: Resources) -> WorkerShape:
    """Share the cluster's CPUs between training workers, of all trials at a time, and data tasks.

    Raises:
        ConfigError: if the cluster can never hold so many workers.
    """
    device = train.device
    if device == "auto":
        device = "cuda" if cluster.gpus >= 1 else "cpu"
    if device == "cuda":
        _check_gpus(train, cluster)
    most, cpus = cluster.most_cpus(train.workers), train.cpus_per_worker
    if cpus is not None and cpus > most >= LEAST_CPUS:
        raise ConfigError(
            f"{_who(train, cluster)} of {cpus:g} CPUs leave no CPU for data tasks: this cluster can never have more "
            f"than {cluster.cpus:g}; set train.cpus_per_worker={most:g}" + _or_fewer(train, cluster)
        )
    if cpus is None and train.workers > cluster.cpus:
        raise ConfigError(
            f"{train.workers} workers are more than the {cluster.cpus:g} CPUs that this cluster can ever have; "
            f"set train.workers={int(cluster.cpus)}, or train.cpus_per_worker to let them share CPUs"
        )
    if most < LEAST_CPUS:
        raise ConfigError(
            f"{_who(train, cluster)} do not fit the {cluster.cpus:g} CPUs that this cluster can ever have beside data "
            f"tasks{_or_fewer(train, cluster).replace(', or run', '; run') or '; set train.workers to less'}"
        )
    return WorkerShape(
        device, min(1.0, most) if cpus is None else cpus, min(TASK_CPUS, cluster.cpus / 2), train.gpus_per_worker
    )


def most_trials(train: TrainConfig, cluster: Resources) -> int:
    """How many runs the cluster holds at a time, each with as much as it would have alone; at least one.

    Raises:
        ConfigError: if it can never hold one.
    """
    shape = worker_shape(train, cluster)
    num = int(cluster.cpus // (train.workers * shape.cpus + shape.task_cpus))
    if shape.device == "cuda":
        num = min(num, _most_workers(train, cluster) // train.workers)
    return max(1, num)


def _most_workers(train: TrainConfig, cluster: Resources) -> int:
    """Workers that the GPUs hold; one that has a share of a GPU has it of one GPU alone."""
    return int(cluster.gpus) * int(1 / train.gpus_per_worker + 1e-6)


def _check_gpus(train: TrainConfig, cluster: Resources) -> None:
    """Refuse more workers than the GPUs hold."""
    fit = _most_workers(train, cluster)
    if max(1, cluster.trials) * train.workers <= fit:
        return
    have = f"this cluster can never have more than {cluster.gpus:g}"
    if cluster.trials <= 1:
        raise ConfigError(
            f"{train.workers} workers need as many GPUs, and {have}; set train.workers={max(1, int(cluster.gpus))}"
            + ("" if cluster.gpus >= 1 else " and train.device=cpu")
        )
    ways = [f"run {fit // train.workers} at a time"] if fit >= train.workers else []
    if train.workers == 1 and cluster.gpus >= 1:
        each = _floor(1 / math.ceil(cluster.trials / int(cluster.gpus)))
        ways.append(f"set train.gpus_per_worker={each:g}")
    need = f"{train.gpus_per_worker:g} of a GPU each" if train.gpus_per_worker < 1 else "a GPU each"
    raise ConfigError(f"{_who(train, cluster)} need {need}, and {have}; {', or '.join(ways) or 'set train.device=cpu'}")


def _who(train: TrainConfig, cluster: Resources) -> str:
    workers = f"{train.workers} workers" if train.workers > 1 or cluster.trials <= 1 else "1 worker"
    return workers if cluster.trials <= 1 else f"{cluster.trials} trials at a time of {workers}"


def _or_fewer(train: TrainConfig, cluster: Resources) -> str:
    """How many trials at a time would fit, as the end of a sentence; empty where not even two do."""
    wanted = LEAST_CPUS if train.cpus_per_worker is None else train.cpus_per_worker
    for trials in range(cluster.trials - 1, 0, -1):
        if cluster.shared(trials).most_cpus(train.workers) >= wanted:
            return f", or run {trials} at a time"
    return ""


def _floor(cpus: float) -> float:
    """Rounded down to hundredths, so that shares add up to no more than the whole."""
    return math.floor(cpus * 100) / 100
