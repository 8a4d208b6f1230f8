"""Independent pieces of a benchmark, side by side on the cluster."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import ray

Result = TypeVar("Result")


def run_jobs(function: Callable[..., Result], shared: Any, jobs: Sequence[tuple[Any, ...]]) -> list[Result]:
    """What `function(shared, *job)` gives for each of the jobs, in their order.

    Where Ray runs, each is a task of one CPU, and what they share is put into the object store once, from where arrays
    are read without a copy and must not be written to; also inside a task, which gives its own CPU away as it waits.
    Without Ray they run here, one after another.

    Args:
        function: of the top level of a module.
        shared: what all of them read.
        jobs: what each of them is given beside it; those that take longest first.
    """
    if not ray.is_initialized() or len(jobs) < 2:
        return [function(shared, *job) for job in jobs]
    reference, task = ray.put(shared), ray.remote(num_cpus=1)(function)
    return list(ray.get([task.remote(reference, *job) for job in jobs]))
