"""A private cluster: out of the way of signals, and quiet about its own processes."""

import subprocess
import sys

import pytest

from raysl.cluster import _print_less

DRIVER = """
import os, signal
from raysl.cluster import connect, disconnect
from raysl.family import descendants
from raysl.signals import heeding
import ray
with heeding() as signals, signals.saving(lambda: True):
    connect()
    family = descendants(os.getpid())
    print("own session:", os.getsid(0) in {os.getsid(pid) for pid in family}, len(family) > 3)
    os.killpg(0, signal.SIGTERM)
    print("heard:", signals.asked.name, "and Ray works:", ray.cluster_resources()["CPU"] > 0)
    print("ended:", disconnect(), ray.is_initialized())
"""


def test_a_signal_to_the_process_group_reaches_the_driver_and_not_ray() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], capture_output=True, text=True, timeout=120, start_new_session=True
    )
    assert done.stdout == "own session: False True\nheard: SIGTERM and Ray works: True\nended: True False\n", (
        done.stderr
    )
    assert "SIGTERM received" not in done.stderr, "what Ray's core says of signals that it takes"


def test_what_the_raylet_says_of_its_worker_processes_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    many = "WARNING: 8 PYTHON worker processes have been started on node: ab with address: 10.0.0.1, which is"
    _print_less({"lines": [many], "pid": "raylet", "is_err": False}, ignore_prefix=False)
    assert capsys.readouterr().out == ""
    _print_less({"lines": ["No space left for objects"], "pid": "raylet", "is_err": False}, ignore_prefix=False)
    assert "No space left for objects" in capsys.readouterr().out
