"""What a run waits for when the cluster has too few nodes for its workers, in one line."""

from collections.abc import Iterable, Mapping

from raysl.cluster.resources import WorkerShape
from raysl.config.schema import TrainConfig
from raysl.process.screen import duration


def describe_missing(
    train: TrainConfig, shape: WorkerShape, nodes: Iterable[Mapping[str, float]], step: int, waited_s: float
) -> str:
    """Describe how many workers have no place, and how the run goes on without them.

    >>> train, shape = TrainConfig(workers=2), WorkerShape("cpu", cpus=1.0, task_cpus=0.5)
    >>> print(describe_missing(train, shape, [{"CPU": 1.0}], step=40, waited_s=180))
    waiting for 1 of 2 workers since 3 min: the cluster has 1 of 2 CPUs; the same command with \
train.workers=[1,2] goes on from step 40 with as many as there are

    Args:
        train: settings of the run.
        shape: resources of each worker.
        nodes: resources of each node that lives, by name.
        step: the last saved step, in updates of the run.
        waited_s: seconds since the wait began.
    """
    nodes = list(nodes)
    name, amount = ("GPU", shape.gpus) if shape.device == "cuda" else ("CPU", shape.cpus)
    num, have = train.least_workers, sum(node.get(name, 0.0) for node in nodes)
    fit = min(num, sum(_num_fitting(shape, node) for node in nodes))
    since, workers = duration(waited_s), "worker" if num == 1 else "workers"
    if fit == num:
        need = f"waiting for {num} {workers} since {since}: other programs use what they need"
    else:
        need = (
            f"waiting for {num - fit} of {num} {workers} since {since}: the cluster has {have:g} of "
            f"{num * amount:g} {name}s"
        )
    fewest = max(fit, 1 if train.parallel == "ddp" else 2)
    if fewest >= num or train.reference_workers is not None:
        return need
    return (
        f"{need}; the same command with train.workers=[{fewest},{train.most_workers}] goes on from step {step} with as "
        "many as there are"
    )


def _num_fitting(shape: WorkerShape, node: Mapping[str, float]) -> int:
    return min(int(node.get(name, 0.0) / amount + 1e-6) for name, amount in shape.resources.items())
