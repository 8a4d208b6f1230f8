"""The parts of a dataset as Ray tasks."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import ray
from ray.exceptions import RayTaskError

from raysl.cluster.connection import cluster_resources, connect
from raysl.cluster.waiting_for_nodes import wait_for_nodes
from raysl.data.ingest.split_parts import SplitPart
from raysl.data.source import Split
from raysl.errors import ConfigError, RunFailed
from raysl.process.code_errors import explaining_code

T = TypeVar("T")


def on_ray(
    work: Callable[[Split, SplitPart], T], splits: Mapping[str, Split], parts: Sequence[SplitPart]
) -> Iterator[T]:
    """Work on parts as tasks of one CPU each, as many at a time as the cluster has CPUs or can scale up to.

    Ray repeats the task of a lost node elsewhere.
    """
    connect()
    wait_for_nodes([{"CPU": 1.0}], "ingest tasks")
    most_running = max(1, int(cluster_resources().cpus))
    task = ray.remote(num_cpus=1)(_work_on)
    work_ref = ray.put(work)
    split_refs = {name: ray.put(split) for name, split in splits.items()}
    waiting = deque(parts)
    running: list[Any] = []
    while waiting or running:
        while waiting and len(running) < most_running:
            part = waiting.popleft()
            running.append(task.remote(work_ref, split_refs[part.split], part))
        done, running = ray.wait(running)
        try:
            yield from ray.get(done)
        except RayTaskError as error:
            if isinstance(error.cause, ConfigError | RunFailed):
                raise error.cause from error
            raise


@explaining_code(of_users=True)
def _work_on(work: Callable[[Split, SplitPart], T], split: Split, part: SplitPart) -> T:
    return work(split, part)
