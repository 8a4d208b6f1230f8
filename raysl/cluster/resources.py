"""Shares of a cluster for workers, data tasks, benchmarks and concurrent trials, computed without Ray."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from raysl.cluster.growth import Growth, NodeGroup
from raysl.config.schema import ClusterConfig, TrainConfig
from raysl.errors import ConfigError

TASK_CPUS = 0.5  # two data tasks a CPU: Ray Data starts the next one up to 0.1 s after one has ended
TRIAL_CPUS = 0.01  # for the driver of a trial, beside its workers and data tasks
SWEEP_CPUS = 0.05  # least share kept free for all drivers of trials
LEAST_CPUS = 0.01  # for a worker


@dataclass(frozen=True)
class Resources:
    """CPUs and GPUs that a cluster has, or that its autoscaler can add.

    Args:
        trials: concurrent trials of Ray Tune that share them; 0: one run has them alone.
        node_cpus: CPUs of its largest node; with GPUs, of the largest node that has one; None: unknown.
        origins: sources that say how many CPUs and GPUs the cluster can ever have, for messages: ` by FILE`.
        advices: next steps where that may be wrong, as the ends of messages about CPUs and GPUs.

    >>> Resources(cpus=8, gpus=0).most_cpus(workers=2)
    3.47
    """

    cpus: float
    gpus: float
    trials: int = 0
    node_cpus: float | None = None
    origins: tuple[str, str] = ("", "")
    advices: tuple[str, str] = ("", "")

    @classmethod
    def of(
        cls, up: Sequence[NodeGroup], growth: Growth | None, settings: ClusterConfig, may_grow: str, trials: int
    ) -> "Resources":
        """Return the most that a cluster can have.

        Args:
            growth: resources that its autoscaler may add up to, where that is known.
            may_grow: next step where nobody knows whether it grows; `{}` stands for the settings to give.

        >>> nodes, settings = [NodeGroup(cpus=8, gpus=0)], ClusterConfig(max_gpus=4)
        >>> have = Resources.of(nodes, None, settings, "; or set {}", trials=0)
        >>> have.cpus, have.gpus, have.origins, have.advices
        (8.0, 4.0, ('', ' by cluster.max_gpus=4'), ('; or set cluster.max_cpus', ''))
        """
        cpus, gpus = (sum(getattr(node, kind) for node in up) for kind in ("cpus", "gpus"))
        if growth is not None:
            cpus, gpus = max(cpus, growth.cpus), max(gpus, growth.gpus)
        limits = {"cluster.max_cpus": settings.max_cpus, "cluster.max_gpus": settings.max_gpus}
        known = "" if growth is None else growth.origin
        # a setting is named as the source where it decides, not where the cluster has more already
        origins = [
            f"{name}={limit:g}" if limit is not None and limit >= have else known
            for (name, limit), have in zip(limits.items(), (cpus, gpus), strict=True)
        ]
        unset = " and ".join(name for name, limit in limits.items() if limit is None)
        advices = ["" if growth or limit is not None else may_grow.format(unset) for limit in limits.values()]
        cpus, gpus = max(cpus, settings.max_cpus or 0.0), max(gpus, settings.max_gpus or 0.0)
        groups = [group for group in (*up, *(growth.groups if growth else ())) if group.most > 0]
        sizes = [group.cpus for group in groups if group.gpus >= 1] or [group.cpus for group in groups]
        # a limit that the user gives does not tell how large the nodes to come are
        is_given = any(limit is not None for limit in limits.values())
        return cls(
            float(cpus),
            float(gpus),
            trials,
            node_cpus=None if is_given else max(sizes, default=0.0) or None,
            origins=(_by(origins[0]), _by(origins[1])),
            advices=(advices[0], advices[1]),
        )

    @property
    def origin(self) -> str:
        """What says how many CPUs the cluster can ever have, as part of a message."""
        return self.origins[0]

    @property
    def advice(self) -> str:
        """What to do where the number of CPUs may be wrong, as the end of a message."""
        return self.advices[0]

    def shared(self, trials: int) -> "Resources":
        """Return the resources as shared by concurrent trials, so that `worker_shape` gives each only its part.

        Workers and drivers leave CPUs to data tasks and, with 2 or more trials, a whole CPU to benchmarks of trials
        that have finished training.
        """
        return replace(self, trials=trials)

    @property
    def own_gpus(self) -> float:
        """GPUs of one trial, free once its workers have ended; the others may never be free."""
        return self.gpus / max(1, self.trials)

    @property
    def benchmark_cpus(self) -> float:
        """CPUs that tasks may request once the workers of a run have ended; the others may never be free."""
        if self.trials == 0:
            return self.cpus
        return self.cpus - self._driver_cpus if self.trials == 1 else min(1.0, self.cpus / 2)

    @property
    def task_cpus(self) -> float:
        """CPUs that one task may request once the workers of a run have ended: it lies on one node."""
        node_cpus = 1.0 if self.node_cpus is None else self.node_cpus - (self._driver_cpus if self.trials else 0.0)
        return min(self.benchmark_cpus, node_cpus)

    @property
    def kept_cpus(self) -> float:
        """CPUs that no worker gets: those of data tasks, benchmarks and drivers of trials."""
        tasks = min(1.0, self.cpus / 2)  # a whole CPU if possible: Ray Data rounds its share down
        if self.trials > 1 and self.cpus >= 4:
            # for data tasks of training trials, while benchmarks of another trial use the whole CPU
            tasks += TASK_CPUS
        return tasks + self._driver_cpus

    @property
    def _driver_cpus(self) -> float:
        return max(SWEEP_CPUS, self.trials * TRIAL_CPUS)

    def most_cpus(self, workers: int) -> float:
        """Return the CPUs that each worker can have, given the number of workers of each trial."""
        return _floor((self.cpus - self.kept_cpus) / (max(1, self.trials) * workers))


@dataclass(frozen=True)
class WorkerShape:
    """Resources of each training worker.

    Args:
        gpus: GPUs that Ray reserves for it on `cuda`: 1, or a share of one.
    """

    device: str
    cpus: float
    task_cpus: float
    gpus: float = 1.0

    @property
    def resources(self) -> dict[str, float]:
        """The resources in the form that Ray Train takes."""
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.device == "cuda" else {})


def worker_shape(train: TrainConfig, cluster: Resources) -> WorkerShape:
    """Share the cluster's CPUs between the training workers of all concurrent trials and data tasks."""
    device = train.device
    if device == "auto":
        device = "cuda" if cluster.gpus >= 1 else "cpu"
    if device == "cuda":
        _check_gpus(train, cluster)
    num = _num_workers(train, cluster, device)
    most, cpus = cluster.most_cpus(num), train.cpus_per_worker
    shape = WorkerShape(
        device, min(1.0, most) if cpus is None else cpus, min(TASK_CPUS, cluster.cpus / 2), train.gpus_per_worker
    )
    # An elastic run that has lost nodes goes on, and may be started, where one data task has room.
    has_room = train.is_elastic and fitting_workers(train, shape, cluster) >= train.least_workers
    if cpus is not None and cpus > most >= LEAST_CPUS and not has_room:
        raise ConfigError(
            f"{_workers(train, cluster)} of {cpus:g} CPUs leave no CPU for data tasks: this cluster can never have "
            f"more than {cluster.cpus:g}{cluster.origin}; set train.cpus_per_worker={most:g}"
            f"{_or_fewer(train, cluster)}{cluster.advice}"
        )
    if cpus is not None and cluster.node_cpus is not None and cpus > cluster.node_cpus >= LEAST_CPUS:
        raise ConfigError(
            f"a worker of {cpus:g} CPUs fits no node: the largest of this cluster has {cluster.node_cpus:g}"
            f"{cluster.origin}; set train.cpus_per_worker={cluster.node_cpus:g} or less{cluster.advice}"
        )
    if cpus is None and num > cluster.cpus:
        fit = max(1, int(cluster.cpus))
        each = min(1.0, cluster.most_cpus(fit))
        fewer = f"; set train.workers={fit} ({each:g} CPU each, the rest for data tasks), or train.cpus_per_worker"
        fewer += f"={most:g} to let {num} share them" if most >= LEAST_CPUS else " to let them share CPUs"
        raise ConfigError(
            f"{_count(num)} {'is' if num == 1 else 'are'} more than the {cluster.cpus:g} CPUs that this cluster can "
            f"ever have{cluster.origin}{fewer if cluster.cpus >= 1 else ''}{cluster.advice}"
        )
    if most < LEAST_CPUS:
        fewer = _or_fewer(train, cluster).replace(", or run", "; run") or "; set train.workers to less"
        raise ConfigError(
            f"{_workers(train, cluster)} do not fit the {cluster.cpus:g} CPUs that this cluster can ever have"
            f"{cluster.origin} beside data tasks{fewer}{cluster.advice}"
        )
    # on GPUs it is their number that limits the workers on a node
    is_counted_by_cpus = train.is_elastic and device == "cpu" and cluster.node_cpus is not None
    return _with_room(shape, cluster.node_cpus or 0.0) if is_counted_by_cpus else shape


def _with_room(shape: WorkerShape, node_cpus: float) -> WorkerShape:
    """Return a shape of which a node holds one worker less, where as many as it holds leave no CPU for a data task.

    Ray Train starts as many workers of an elastic run as the nodes hold.

    >>> _with_room(WorkerShape("cpu", cpus=0.9, task_cpus=0.5), node_cpus=2).cpus
    1.01
    """
    # 1e-6 makes up for rounding: 0.3 / 0.1 is just below 3
    num = max(1, int((node_cpus - shape.task_cpus) / shape.cpus + 1e-6))
    if int(node_cpus / shape.cpus + 1e-6) <= num:
        return shape
    # just above an equal share for num + 1 workers, so that no more than num fit
    return replace(shape, cpus=_floor(node_cpus / (num + 1)) + 0.01)


def places(node: Mapping[str, float], resources: Mapping[str, float]) -> int:
    """Return how many workers that need some resources a node holds.

    >>> places({"CPU": 8.0, "GPU": 2.0}, {"CPU": 1.0, "GPU": 1.0})
    2
    """
    return min(int(node.get(name, 0.0) / amount + 1e-6) for name, amount in resources.items())


def fitting_workers(train: TrainConfig, shape: WorkerShape, cluster: Resources) -> int:
    """Return how many workers of a shape the cluster holds beside a data task, by CPUs; of a trial, in its share.

    >>> train, shape = TrainConfig(workers=(1, 4)), WorkerShape("cpu", cpus=1.0, task_cpus=0.5)
    >>> [fitting_workers(train, shape, Resources(cpus, gpus=0)) for cpus in (4, 2, 1)]
    [3, 1, 0]
    """
    share = cluster.cpus / max(1, cluster.trials)
    fit = int((share - shape.task_cpus) / max(shape.cpus, LEAST_CPUS) + 1e-6)
    return fit if train.cpus_per_worker is not None else min(fit, int(share))


def run_bundles(train: TrainConfig, shape: WorkerShape, cluster: Resources) -> list[dict[str, float]]:
    """Return what a run needs at its start, each on one node: its workers and, unless trials share them, a data task.

    >>> run_bundles(TrainConfig(workers=2), WorkerShape("cpu", cpus=1.0, task_cpus=0.5), Resources(8, 0))
    [{'CPU': 1.0}, {'CPU': 1.0}, {'CPU': 0.5}]
    """
    task = [] if cluster.trials > 1 else [{"CPU": shape.task_cpus}]
    return [shape.resources] * train.least_workers + task


def describe_bundles(bundles: Sequence[Mapping[str, float]], num_workers: int) -> str:
    """Describe what `run_bundles` returns: the bundles of workers and what else is there.

    >>> describe_bundles([{"CPU": 1.0, "GPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}, {"CPU": 0.5}], num_workers=2)
    '2 workers of 1 GPU and 1 CPU each and a data task of 0.5 CPU'
    >>> describe_bundles([{"CPU": 0.5}, {"CPU": 0.5}], num_workers=1)
    '1 worker of 0.5 CPU and a data task of 0.5 CPU'
    """
    amounts = " and ".join(amount(bundles[0][kind], kind) for kind in ("GPU", "CPU") if kind in bundles[0])
    text = f"{_count(num_workers)} of {amounts}{' each' if num_workers > 1 else ''}"
    tasks = [f" and a data task of {amount(bundle['CPU'], 'CPU')}" for bundle in bundles[num_workers:]]
    return text + "".join(tasks)


def amount(num: float, kind: str) -> str:
    """Return a number of CPUs or GPUs in words.

    >>> amount(0.5, "CPU"), amount(2.0, "GPU")
    ('0.5 CPU', '2 GPUs')
    """
    return f"{num:g} {kind}{'' if num <= 1 else 's'}"


def most_trials(train: TrainConfig, cluster: Resources) -> int:
    """Return how many runs the cluster holds at a time, each with as much as it would have alone; at least one."""
    shape = worker_shape(train, cluster)
    num_workers = _num_workers(train, cluster, shape.device)
    num = int(cluster.cpus // (num_workers * shape.cpus + shape.task_cpus))
    if shape.device == "cuda":
        num = min(num, _most_workers(train, cluster) // num_workers)
    return max(1, num)


def _num_workers(train: TrainConfig, cluster: Resources, device: str) -> int:
    """Return the number of workers to plan for: of an elastic run as many as the cluster can hold."""
    if not train.is_elastic:
        return train.most_workers
    if device == "cuda":
        fit = _most_workers(train, cluster) // max(1, cluster.trials)
    elif train.cpus_per_worker is None:
        fit = int(cluster.cpus) // max(1, cluster.trials)
    else:
        fit = int((cluster.cpus - cluster.kept_cpus) / (max(1, cluster.trials) * train.cpus_per_worker) + 1e-6)
    return max(train.least_workers, min(train.most_workers, fit))


def _most_workers(train: TrainConfig, cluster: Resources) -> int:
    """Return how many workers the GPUs hold; the share of a worker lies on a single GPU."""
    return int(cluster.gpus) * int(1 / train.gpus_per_worker + 1e-6)


def _check_gpus(train: TrainConfig, cluster: Resources) -> None:
    fit = _most_workers(train, cluster)
    if max(1, cluster.trials) * train.least_workers <= fit:
        return
    have = f"this cluster can never have more than {cluster.gpus:g}{cluster.origins[1]}"
    if cluster.trials <= 1:
        need = (
            "1 worker needs a GPU" if train.least_workers == 1 else f"{train.least_workers} workers need as many GPUs"
        )
        way = f"train.workers={int(cluster.gpus)}" if cluster.gpus >= 1 else "train.device=cpu"
        raise ConfigError(f"{need}, and {have}; set {way}{cluster.advices[1]}")
    ways = [f"run {fit // train.least_workers} at a time"] if fit >= train.least_workers else []
    if train.least_workers == 1 and cluster.gpus >= 1:
        each = _floor(1 / math.ceil(cluster.trials / int(cluster.gpus)))
        ways.append(f"set train.gpus_per_worker={each:g}")
    need = f"{train.gpus_per_worker:g} of a GPU each" if train.gpus_per_worker < 1 else "a GPU each"
    raise ConfigError(
        f"{_workers(train, cluster)} need {need}, and {have}; {', or '.join(ways) or 'set train.device=cpu'}"
        f"{cluster.advices[1]}"
    )


def _by(origin: str) -> str:
    return f" by {origin}" if origin else ""


def _count(num: int) -> str:
    return "1 worker" if num == 1 else f"{num} workers"


def _workers(train: TrainConfig, cluster: Resources) -> str:
    workers = f"{train.least_workers} workers" if train.least_workers > 1 or cluster.trials <= 1 else "1 worker"
    return workers if cluster.trials <= 1 else f"{cluster.trials} trials at a time of {workers}"


def _or_fewer(train: TrainConfig, cluster: Resources) -> str:
    """Return how many concurrent trials would fit, as the end of a sentence; empty where none would."""
    wanted = LEAST_CPUS if train.cpus_per_worker is None else train.cpus_per_worker
    for trials in range(cluster.trials - 1, 0, -1):
        if cluster.shared(trials).most_cpus(train.least_workers) >= wanted:
            return f", or run {trials} at a time"
    return ""


def _floor(cpus: float) -> float:
    """Round down to hundredths, so that shares never add up to more than the whole."""
    return math.floor(cpus * 100) / 100
