"""A private cluster: out of the way of signals, and quiet about its own processes."""

import json
import os
import socket
import subprocess
import sys
from typing import Any

import pytest
import ray

from raysl.cluster import connection as cluster
from raysl.cluster.connection import _show_less, connect, count_gpus, hearing
from raysl.cluster.resources import Resources
from raysl.config.schema import TrainConfig
from raysl.errors import ConfigError, RunFailed
from raysl.process.cpus import WAIT_SETTINGS
from raysl.process.environment import JOB_VARIABLE

DRIVER = """
import os, signal
from raysl.cluster.connection import connect, disconnect
from raysl.process.proc import descendants
from raysl.process.signals import handling_signals
import ray
with handling_signals() as signals, signals.saving(lambda: True):
    connect()
    family = descendants(os.getpid())
    print("own session:", os.getsid(0) in {os.getsid(pid) for pid in family}, len(family) > 3)
    os.killpg(0, signal.SIGTERM)
    print("heard:", signals.received.name, "and Ray works:", ray.cluster_resources()["CPU"] > 0)
    print("ended:", disconnect(), ray.is_initialized())
"""


FORKED = """
import multiprocessing, ray, raysl, sys
def child():
    from raysl.cluster.connection import connect
    try:
        connect()
    except ValueError as error:
        print(error, flush=True)
ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR")
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join(60)
print(process.exitcode, ray.cluster_resources()["CPU"])
"""


def _show(data: dict[str, Any], ignore_prefix: bool) -> None:
    print(*data["lines"])


@pytest.mark.cluster
def test_a_signal_to_the_process_group_reaches_the_driver_and_not_ray() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], capture_output=True, text=True, timeout=120, start_new_session=True
    )
    assert done.stdout == "own session: False True\nheard: SIGTERM and Ray works: True\nended: True False\n", (
        done.stderr
    )
    assert "SIGTERM received" not in done.stderr, "what Ray's core says of signals that it takes"


@pytest.mark.cluster
def test_a_process_that_was_forked_from_one_with_ray_is_refused_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120)
    assert done.stdout == (
        "this process was forked after Ray had started in its parent, and cannot reach Ray; start it by "
        "multiprocessing.get_context('spawn')\n0 1.0\n"
    ), done.stderr


def test_what_the_raylet_says_of_its_worker_processes_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    many = "WARNING: 8 PYTHON worker processes have been started on node: ab with address: 10.0.0.1, which is"
    _show_less(_show, {"lines": [many]}, ignore_prefix=False)
    infeasible = "There are tasks with infeasible resource requests that cannot be scheduled. See https://docs.ray.io"
    _show_less(_show, {"lines": [infeasible]}, ignore_prefix=False)
    assert capsys.readouterr() == ("", "")
    _show_less(_show, {"lines": ["No space left for objects"]}, ignore_prefix=False)
    assert "No space left for objects" in capsys.readouterr().out


def test_what_ray_prints_is_heard_and_not_shown(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []
    lost = "A worker died or was killed while executing a task.\n Worker IP address: 10.0.0.2 Worker port: 7 "
    lost += "Worker PID: 12 Worker exit type: SYSTEM_ERROR Worker exit detail: The process receives a SIGTERM."
    with hearing(heard.append):
        _show_less(_show, {"lines": ["No space left for objects"]}, ignore_prefix=False)
    _show_less(_show, {"lines": lost.splitlines()}, ignore_prefix=False)
    assert heard == ["No space left for objects"]
    assert capsys.readouterr().out == ""
    assert caplog.messages == [
        "lost a data task or another process of Ray on 10.0.0.2 (process 12): its process was ended by SIGTERM; its "
        "work is done again"
    ]


def test_an_address_at_which_nothing_listens_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody else gets this port, and nobody listens there
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        monkeypatch.setattr(os, "environ", {**os.environ, "RAY_ADDRESS": f"127.0.0.1:{taken.getsockname()[1]}"})
        with pytest.raises(ConfigError, match=r"no Ray cluster answers at RAY_ADDRESS=127.* or unset RAY_ADDRESS"):
            connect()


@pytest.mark.parametrize(
    ("job", "chosen", "spin"),
    [
        (None, {}, None),
        (None, {"GOMP_SPINCOUNT": "7"}, "7"),
        ({}, {"GOMP_SPINCOUNT": "7"}, "7"),
        ({"GOMP_SPINCOUNT": "7", "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "2"}, {"GOMP_SPINCOUNT": "7"}, None),
    ],
)
def test_an_attached_cluster_gets_the_variables_that_a_job_does_not_give_itself(
    job: dict[str, str] | None, chosen: dict[str, str], spin: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray refuses a variable that both name."""
    inherited = {name: value for name, value in os.environ.items() if name not in WAIT_SETTINGS}
    submitted = {} if job is None else {JOB_VARIABLE: json.dumps({"runtime_env": {"env_vars": job}, "metadata": {}})}
    monkeypatch.setattr(os, "environ", {**inherited, **submitted, **chosen})
    variables = cluster._job_variables()
    assert variables.get("GOMP_SPINCOUNT") == spin
    assert variables.keys() | (job or {}).keys() >= cluster._SETTINGS.keys()
    assert not variables.keys() & (job or {}).keys()


def test_ray_that_does_not_start_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**settings: object) -> None:
        raise Exception("The current node timed out during startup.\nThis could be due to ...")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(os, "environ", {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"})
    with pytest.raises(RunFailed) as told:
        connect()
    assert str(told.value).startswith("Ray has not started: The current node timed out during startup; on a machine")
    assert "\n" not in str(told.value)


def test_hours_of_gpus_are_those_of_the_shares_that_workers_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    assert count_gpus(TrainConfig(device="cuda")) == 0, "nobody knows"
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(cluster, "cluster_resources", lambda: Resources(16, 4))
    assert count_gpus(TrainConfig(workers=2)) == 2, "auto takes those that are there"
    assert count_gpus(TrainConfig(gpus_per_worker=0.25)) == 0.25
    assert count_gpus(TrainConfig(device="cpu")) == 0
    monkeypatch.setattr(cluster, "cluster_resources", lambda: Resources(2, 0))
    assert count_gpus(TrainConfig(workers=4)) == 0, "also of what does not fit"
    assert count_gpus(TrainConfig(device="cuda")) == 1
