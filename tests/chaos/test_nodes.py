"""Nodes that lose their power while a run trains on them."""

import signal
import subprocess
import time
from dataclasses import replace

import psutil
import pytest

from tests.chaos.conftest import Calm, Disturb, Join, Record
from tests.chaos.harness import Row, send

pytestmark = pytest.mark.slow

TWO = ("train.workers=2",)
APART = ("train.workers=2", "train.cpus_per_worker=2")  # of nodes with three CPUs each has one worker
TRAINED_ON_S = 600
ELASTIC = "train.workers=[1,2]"


def cut_power(node: subprocess.Popen[bytes]) -> None:
    """SIGKILL a node and all that runs on it."""
    for process in [*psutil.Process(node.pid).children(recursive=True), psutil.Process(node.pid)]:
        send(signal.SIGKILL, process.pid)
    node.wait()


def test_a_node_that_comes_back_is_used_again(disturb: Disturb, join: Join, calm: Calm, record: Record) -> None:
    run = disturb(*APART)
    cluster = join(run, "--num-cpus=3")
    node = cluster.add("--num-cpus=3")
    run.start()
    run.until_held()
    run.hit(lambda: cut_power(node))
    run.let_go()
    cluster.add("--num-cpus=3")
    run.last.ended()
    row = run.row("a node of two loses its power, and comes back", calm(*TWO), is_over=False)
    record(replace(row, left=[*row.left, *cluster.placement_groups()]))
    assert run.steps_again() == 2


def test_an_elastic_run_goes_on_with_fewer_workers(disturb: Disturb, join: Join, record: Record) -> None:
    run = disturb(ELASTIC, "train.cpus_per_worker=2")
    cluster = join(run, "--num-cpus=3")
    node = cluster.add("--num-cpus=3")
    run.start()
    run.until_held()
    run.hit(lambda: cut_power(node))
    run.let_go()
    assert "going on from step 15 with 1 of 2 workers" in run.last.ended()
    row = run.row(f"a node of two is gone for good, {ELASTIC}", None, is_over=False)
    record(replace(row, left=[*row.left, *cluster.placement_groups()]))
    assert run.steps_again() == 2


def test_a_run_that_has_grown_trains_on(disturb: Disturb, join: Join, record: Record) -> None:
    run = disturb(ELASTIC, "train.cpus_per_worker=2", "train.epochs=100000", "train.log_every=1ep", hold=0)
    cluster = join(run, "--num-cpus=3")
    run.start()
    run.last.until(lambda: len(run.steps()) > 5)
    run.hit(lambda: cluster.add("--num-cpus=3"))
    run.last.until(lambda: "with all 2 workers" in run.last.output)
    seconds = time.time() - run.hit_at
    time.sleep(TRAINED_ON_S)
    assert run.last.output.count("resumed at step") == 1, "its workers are not started again"
    send(signal.SIGTERM, run.last.process.pid)
    run.last.ended(128 + signal.SIGTERM)
    left = [*run.left(is_over=False), *cluster.placement_groups()]
    record(
        Row(
            f"a node comes to {ELASTIC}, which trains on for 10 min", run.sees(), seconds, run.steps_again(), None, left
        )
    )


def test_a_run_of_fixed_size_says_what_is_missing_and_goes_on_with_fewer_workers(
    disturb: Disturb, join: Join, record: Record
) -> None:
    run = disturb(*APART)
    cluster = join(run, "--num-cpus=3")
    node = cluster.add("--num-cpus=3")
    run.start()
    run.until_held()
    run.hit(lambda: cut_power(node))
    run.let_go()
    run.last.until(lambda: any(ELASTIC in line for line in run.sees()))
    send(signal.SIGTERM, run.last.process.pid)
    run.last.ended(128 + signal.SIGTERM)
    assert "going on from step 15 with 1 of 2 workers" in run.start(ELASTIC).ended()
    row = run.row(f"a node of two is gone for good, train.workers=2, then {ELASTIC}", None, is_over=False)
    record(replace(row, left=[*row.left, *cluster.placement_groups()]))
    assert run.steps_again() == 2
