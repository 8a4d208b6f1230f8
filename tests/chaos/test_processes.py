"""Processes of a run that are killed, paused or asked to end."""

import signal
import time
from pathlib import Path

import pytest

from tests.chaos.conftest import Calm, Disturb, Record
from tests.chaos.harness import HOLD, Row, result, send

pytestmark = pytest.mark.slow

WORKERS = {1: (), 2: ("train.workers=2",), 3: ("train.workers=3", "train.cpus_per_worker=0.3", "train.uneven=true")}
WORKER = "RayTrainWorker"
PAUSE_S = 60
HANG_S = 20


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_killed_worker_is_replaced(workers: int, disturb: Disturb, calm: Calm, record: Record) -> None:
    run = disturb(*WORKERS[workers])
    run.start()
    run.until_held()
    run.hit(lambda: send(signal.SIGKILL, run.workplace.one(WORKER)))
    run.let_go()
    run.last.ended()
    record(run.row(f"SIGKILL of a worker, W = {workers}", calm(*WORKERS[workers])))
    assert run.steps_again() == 2


def test_a_worker_killed_while_its_group_starts_is_replaced(disturb: Disturb, calm: Calm, record: Record) -> None:
    run = disturb(*WORKERS[2])
    run.let_go()
    run.start()
    run.last.until(lambda: bool(run.workplace.processes(WORKER)))
    run.hit(lambda: send(signal.SIGKILL, run.workplace.one(WORKER)))
    run.last.ended()
    record(run.row("SIGKILL of a worker while its group starts, W = 2", calm(*WORKERS[2])))
    assert run.steps_again() == 0


def test_ten_starts_with_two_workers_meet_no_race(disturb: Disturb, record: Record) -> None:
    results, sees, left = [], [], []
    for _ in range(10):
        run = disturb(*WORKERS[2], "train.epochs=1", hold=0)
        run.start().ended()
        results.append(result(run.run))
        sees += run.sees()
        left += run.left()
    row = Row("ten starts one after another, W = 2", sees, None, 0, all(each == results[0] for each in results), left)
    record(row)


def test_a_killed_controller_is_replaced(disturb: Disturb, calm: Calm, record: Record) -> None:
    run = disturb()
    run.start()
    run.until_held()
    run.hit(lambda: send(signal.SIGKILL, run.workplace.one("TrainController")))
    run.let_go()
    run.last.ended()
    record(run.row("SIGKILL of Ray Train's controller", calm()))


def test_a_worker_that_is_paused_costs_the_time_and_no_step(disturb: Disturb, calm: Calm, record: Record) -> None:
    run = disturb(*WORKERS[2])
    run.start()
    run.until_held()
    paused = run.workplace.one(WORKER)
    run.hit(lambda: send(signal.SIGSTOP, paused))
    run.let_go()
    time.sleep(PAUSE_S)  # the fault itself
    assert run.steps()[-1][1] <= HOLD + 1
    send(signal.SIGCONT, paused)
    run.last.ended()
    record(run.row(f"SIGSTOP of a worker for {PAUSE_S} s, W = 2", calm(*WORKERS[2])))
    assert run.steps_again() == 0


def test_a_worker_that_hangs_is_named_and_replaced(disturb: Disturb, calm: Calm, record: Record) -> None:
    run = disturb(*WORKERS[2], f"train.hang_timeout={HANG_S}")
    run.start()
    run.until_held()
    run.hit(lambda: send(signal.SIGSTOP, run.workplace.one(WORKER)))
    run.let_go()
    run.last.ended()
    row = run.row(f"SIGSTOP of a worker for ever, W = 2, train.hang_timeout={HANG_S}", calm(*WORKERS[2]))
    assert any("rank 1" in line or "worker 1" in line for line in row.sees), row
    record(row)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_driver_goes_on_when_it_is_started_again(
    workers: int, disturb: Disturb, calm: Calm, record: Record
) -> None:
    run = disturb(*WORKERS[workers])
    run.start()
    run.until_held()
    run.hit(run.last.kill)
    run.let_go()
    assert "resumed at step 15 of 40" in run.start().ended()
    record(run.row(f"SIGKILL of the driver and all its processes, W = {workers}", calm(*WORKERS[workers])))
    assert run.steps_again() == 2


def test_a_killed_driver_takes_its_cluster_with_it(disturb: Disturb, calm: Calm, record: Record) -> None:
    run = disturb()
    run.start()
    run.until_held()
    run.hit(lambda: send(signal.SIGKILL, run.last.process.pid))
    run.last.ended(-signal.SIGKILL)
    assert [line for line in run.workplace.left() if line.startswith("process")] == []
    run.let_go()
    assert "resumed at step 15 of 40" in run.start().ended()
    record(run.row("SIGKILL of the driver alone", calm()))


def test_a_stopped_run_saves_and_goes_on(disturb: Disturb, calm: Calm, record: Record) -> None:
    run = disturb()
    run.start()
    run.until_held()
    run.hit(lambda: send(signal.SIGTERM, run.last.process.pid))
    run.last.until(lambda: (Path(run.run.path) / "stop").exists())
    run.let_go()
    run.last.ended(128 + signal.SIGTERM)
    assert "resumed at step " in run.start().ended()
    record(run.row("SIGTERM to the driver", calm()))
    assert run.steps_again() == 0


def test_a_second_driver_is_refused_and_the_first_one_is_not_disturbed(
    disturb: Disturb, calm: Calm, record: Record
) -> None:
    run = disturb()
    first = run.start()
    run.until_held()
    run.hit(run.start)
    run.last.ended(2)
    run.let_go()
    first.ended()
    record(run.row("a second driver of the same run", calm()))
    assert run.steps_again() == 0
