"""What a run waits for when the cluster has too few nodes for its workers, in a line each minute."""

from collections.abc import Mapping, Sequence

from raysl.cluster.connection import node_resources
from raysl.cluster.resources import WorkerShape, places
from raysl.cluster.waiting_for_nodes import growth_now
from raysl.config.schema import TrainConfig
from raysl.errors import log
from raysl.process.screen import duration
from raysl.runs.watch import saved_step

EVERY_S = 60.0
ROOM_S = 300.0
"""Seconds of waiting about which nothing is said where there is room for all workers, which are probably starting."""

Nodes = Sequence[Mapping[str, float]]
"""Resources of each node that lives, by name."""


class MissingLines:
    """Says each minute which workers have no place, while a run waits for them.

    Args:
        uri: folder of the run, whose last saved step the lines name.
    """

    def __init__(self, train: TrainConfig, shape: WorkerShape, uri: str) -> None:
        self.train = train
        self.shape = shape
        self.uri = uri
        self.since: float | None = None
        self.num_said = 0

    def poll(self, is_waiting: bool, now: float) -> None:
        """Log a line if it is time for one.

        Args:
            now: seconds of a clock that goes on evenly.
        """
        if not is_waiting:
            self.since, self.num_said = None, 0
            return
        self.since = now if self.since is None else self.since
        waited_s = now - self.since
        if waited_s < EVERY_S * (self.num_said + 1):
            return
        self.num_said += 1
        nodes = node_resources()
        if waited_s >= ROOM_S or num_fitting(self.train, self.shape, nodes) < self.train.least_workers:
            step, growth = saved_step(self.uri), growth_now()
            log.warning(describe_missing(self.train, self.shape, nodes, step, waited_s, growth))


def describe_missing(
    train: TrainConfig, shape: WorkerShape, nodes: Nodes, step: int, waited_s: float, activity: str = ""
) -> str:
    """Describe how many workers have no place, and how the run goes on without them.

    >>> train, shape = TrainConfig(workers=2), WorkerShape("cpu", cpus=1.0, task_cpus=0.5)
    >>> print(describe_missing(train, shape, [{"CPU": 1.0}], step=40, waited_s=180))
    waiting for 1 of 2 workers since 3 min: the cluster has 1 of 2 CPUs; the same command with \
train.workers=[1,2] goes on from step 40 with as many as there are

    Args:
        activity: state of the autoscaler, in words; empty if it does nothing.
    """
    fit = num_fitting(train, shape, nodes)
    name, amount = ("GPU", shape.gpus) if shape.device == "cuda" else ("CPU", shape.cpus)
    num, have = train.least_workers, sum(node.get(name, 0.0) for node in nodes)
    since, workers = duration(waited_s), "worker" if num == 1 else "workers"
    if fit == num:
        need = f"waiting for {num} {workers} since {since}: other programs use what they need"
    else:
        need = (
            f"waiting for {num - fit} of {num} {workers} since {since}: the cluster has {have:g} of "
            f"{num * amount:g} {name}s{', ' if activity else ''}{activity}"
        )
    fewest = max(fit, 1 if train.parallel == "ddp" else 2)
    # a range of workers cannot be combined with reference_workers, so it is no advice then
    if fewest >= num or train.reference_workers is not None:
        return need
    return (
        f"{need}; the same command with train.workers=[{fewest},{train.most_workers}] goes on from step {step} with as "
        "many as there are"
    )


def num_fitting(train: TrainConfig, shape: WorkerShape, nodes: Nodes) -> int:
    """Return how many of the least workers of a run have a place."""
    return min(train.least_workers, sum(places(node, shape.resources) for node in nodes))
