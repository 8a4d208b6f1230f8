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
