import numpy as np
import ray

from raysl.benchmarks.parallel import run_jobs
from raysl.cluster import connect
from tests.benchmarks.jobs import look_up


def test_jobs_answer_in_their_order_and_tasks_read_what_they_share_without_a_copy(ray_here: None) -> None:
    ray.shutdown()
    assert run_jobs(look_up, np.arange(5), [(3,), (1,)]) == [(3, True), (1, True)]
    connect()
    assert run_jobs(look_up, np.arange(5), [(3,), (1,)]) == [(3, False), (1, False)]
    assert run_jobs(look_up, np.arange(5), []) == []
