"""Runs as jobs of a cluster, whose driver or whose server of jobs is killed."""

import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.bucket import Bucket
from tests.chaos.cluster import Cluster
from tests.chaos.conftest import Calm, Disturb, Join, Record
from tests.chaos.harness import Command, Disturbed, send
from tests.processes import wait_until
from tests.ray_nodes import RAY, client_environment

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "jobs" / "pretrain.py"


def submit(run: Disturbed, cluster: Cluster, name: str) -> None:
    words = ["job", "submit", f"--address={cluster.jobs}", f"--submission-id={name}", "--", sys.executable, str(SCRIPT)]
    run.starts.append(Command([*words, *run.words[1:]], client_environment(), [RAY]))


def test_a_job_whose_driver_is_killed_goes_on_as_the_next_job(
    bucket: Bucket, disturb: Disturb, join: Join, calm: Calm, record: Record
) -> None:
    run = disturb(storage=bucket.storage)
    cluster = join(run, "--num-cpus=2")
    submit(run, cluster, "first")
    run.until_held()
    run.hit(lambda: send(signal.SIGKILL, run.workplace.one(str(SCRIPT))))
    run.last.ended(1)
    run.let_go()
    submit(run, cluster, "second")
    assert "resumed at step 15 of 40" in run.last.ended()
    row = run.row("SIGKILL of a job's driver, on S3", calm(), is_over=False)
    record(replace(row, left=[*row.left, *cluster.placement_groups()]))
    assert run.steps_again() == 2


def test_a_run_outlives_the_server_of_jobs(disturb: Disturb, join: Join, calm: Calm, record: Record) -> None:
    run = disturb()
    cluster = join(run, "--num-cpus=2", is_watched=False)
    submit(run, cluster, "only")
    run.until_held()
    run.hit(lambda: send(signal.SIGKILL, run.workplace.one("dashboard/dashboard.py")))
    run.let_go()
    wait_until(lambda: not run.workplace.processes(str(SCRIPT)), 180)
    row = run.row("SIGKILL of the head's server of jobs", calm(), is_over=False)
    record(replace(row, sees=row.sees[-1:]))  # of the traceback of `ray job submit`, which has lost its server
    assert run.steps_again() == 0
