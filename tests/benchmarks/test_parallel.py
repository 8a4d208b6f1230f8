import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from raysl.benchmarks import parallel
from raysl.benchmarks.parallel import run_jobs
from raysl.cluster.connection import connect
from tests.benchmarks.jobs import look_up

JOBS = [(3,), (1,), (4,)]


def test_jobs_answer_in_their_order_and_tasks_read_what_they_share_without_a_copy(
    own_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = [(3, True), (1, True), (4, True)]
    with monkeypatch.context() as patch:
        patch.setattr(parallel, "WORTH_S", 0.0)
        assert run_jobs(look_up, np.arange(5), JOBS) == here
        connect()
        assert run_jobs(look_up, np.arange(5), JOBS) == [(3, True), (1, False), (4, False)]
        assert run_jobs(look_up, np.arange(5), JOBS, cores=2) == [(3, True), (1, False), (4, False)]
        assert run_jobs(look_up, np.arange(5), JOBS, cores=1) == here
        assert run_jobs(look_up, np.arange(5), []) == []
    assert run_jobs(look_up, np.arange(5), JOBS) == here  # too little work for tasks


class CountingRay:
    """Ray whose tasks run until they are waited for, and which counts those that run side by side."""

    def __init__(self) -> None:
        self.running: list[int] = []
        self.most = 0

    def is_initialized(self) -> bool:
        return True

    def put(self, shared: Any) -> Any:
        return shared

    def remote(self, **options: Any) -> Callable[[Any], Any]:
        return lambda function: SimpleNamespace(remote=self._start)

    def _start(self, shared: Any, number: int) -> int:
        self.running.append(number)
        self.most = max(self.most, len(self.running))
        return number

    def wait(self, tasks: list[int]) -> tuple[list[int], list[int]]:
        self.running.remove(tasks[-1])
        return tasks[-1:], tasks[:-1]

    def get(self, tasks: list[int]) -> list[int]:
        return tasks


@pytest.mark.parametrize(("cores", "most"), [(2, 2), (3, 3), (None, 5)])
def test_no_more_tasks_run_side_by_side_than_there_are_cores_for(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, most: int
) -> None:
    ray = CountingRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(parallel, "WORTH_S", 0.0)
    assert run_jobs(lambda shared, number: number, None, [(number,) for number in range(6)], cores) == [*range(6)]
    assert ray.most == most
