"""Processes that take more memory than the machine has, as far as Ray's monitor is told."""

import psutil
import pytest

from tests.chaos.conftest import Calm, Disturb, Record
from tests.chaos.harness import GATED
from tests.processes import has_ended

pytestmark = pytest.mark.slow

EATEN_GB = 7.0
ROOM_GB = 5.0


def little_memory() -> dict[str, str]:
    """Variables with which Ray kills processes once 5 GB more than now are in use; a run takes about 3."""
    memory = psutil.virtual_memory()
    if memory.available < (ROOM_GB + EATEN_GB + 2) * 2**30:
        pytest.skip("needs 14 GB of free memory")
    share = (memory.total - memory.available + ROOM_GB * 2**30) / memory.total
    return {"RAY_memory_usage_threshold": f"{share:.3f}", "RAY_memory_monitor_refresh_ms": "100"}


def test_a_data_task_without_memory_is_repeated(disturb: Disturb, calm: Calm, record: Record) -> None:
    # The first read is the driver's, of a sample.
    run = disturb(*GATED, "data.hold_read=2", f"data.eat_gb={EATEN_GB}", hold=0, environment=little_memory())
    run.start()
    run.last.until(run.held_readers)
    eater = run.held_readers()[0]
    run.hit(lambda: run.last.until(lambda: has_ended(eater)))
    run.let_go()
    run.last.ended()
    record(run.row("out of memory in a data task", calm()))
    assert run.steps_again() == 0


def test_a_worker_without_memory_is_replaced(disturb: Disturb, calm: Calm, record: Record) -> None:
    run = disturb(f"callbacks.gate.eat_gb={EATEN_GB}", environment=little_memory())
    run.start()
    run.until_held()
    worker = run.workplace.one("RayTrainWorker")
    run.hit(lambda: run.last.until(lambda: has_ended(worker)))
    run.let_go()
    run.last.ended()
    row = run.row("out of memory in a worker", calm())
    record(row)
    assert not [line for line in row.sees if "is free for data tasks" in line], "the lost worker's CPU is held"
