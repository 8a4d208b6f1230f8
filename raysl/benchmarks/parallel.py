"""Independent jobs of a benchmark, side by side on the cluster."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Result = TypeVar("Result")

ANYWHERE = "DEFAULT"
"""Where tasks run. Left to itself Ray keeps those of a trial of Ray Tune to the trial's own place, which is small."""
WORTH_S = 30.0
"""Seconds of work from which on tasks pay: each new process of Ray's takes some to import torch and scikit-learn."""


def run_jobs(
    function: Callable[..., Result], shared: Any, jobs: Sequence[tuple[Any, ...]], cores: int | None = None
) -> list[Result]:
    """Return `function(shared, *job)` for each job, in order.

    The first runs here. Where Ray runs, and as many more of its length would take long, each of the others is a task of
    one CPU, and what they share is put into the object store once, from where arrays are read without a copy and must
    not be written to; also inside a task, which gives its own CPU away as it waits. Else they run here, too.

    Args:
        function: function of the top level of a module.
        shared: input of all of them.
        jobs: further arguments of each; those that take longest first.
        cores: tasks at a time at most; None: as many as there is room for.
    """
    # CPU time, so that other processes on the machine do not make a short job look long
    began = time.process_time()
    results = [function(shared, *job) for job in jobs[:1]]
    rest, seconds = jobs[1:], time.process_time() - began
    ray = sys.modules.get("ray")  # which a process that has not loaded it does not use
    if cores == 1 or ray is None or not ray.is_initialized() or len(rest) < 2 or seconds * len(rest) < WORTH_S:
        return [*results, *(function(shared, *job) for job in rest)]
    reference, task = ray.put(shared), ray.remote(num_cpus=1, scheduling_strategy=ANYWHERE)(function)
    tasks: list[Any] = []
    running: list[Any] = []
    for job in rest:
        if len(running) == cores:
            _, running = ray.wait(running)
        tasks.append(task.remote(reference, *job))
        running.append(tasks[-1])
    return [*results, *ray.get(tasks)]
