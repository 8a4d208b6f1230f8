"""Runs that share a cluster: a waiting one names the other, and takes its place once that was killed."""

import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raysl.cluster import board as module
from tests.processes import wait_until
from tests.ray_nodes import client_environment, end_node, free_ports, start_node, wait_for_line
from tests.runs.runs import start


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A node of 2 CPUs, started by hand."""
    (port,) = free_ports(1)
    sessions = tempfile.mkdtemp(prefix="ray_")  # short: the paths of its sockets have a limit
    words = ("--head", "--num-cpus=2", f"--port={port}", f"--temp-dir={sessions}", "--include-dashboard=false")
    node = start_node(*words, log=tmp_path / "head.log")
    try:
        wait_for_line("Ray runtime started", tmp_path / "head.log", node)
        for name, value in {**client_environment(), "RAY_ADDRESS": f"127.0.0.1:{port}"}.items():
            monkeypatch.setenv(name, value)
        yield
    finally:
        end_node(node)
        shutil.rmtree(sessions, ignore_errors=True)


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Notes on the head, in place of a cluster."""
    notes: dict[str, Any] = {}
    for board in (module._RUNS, module._SUBMISSIONS):
        monkeypatch.setattr(board, "write", notes.__setitem__)
        monkeypatch.setattr(board, "read", notes.get)
        monkeypatch.setattr(board, "remove", notes.pop)
        monkeypatch.setattr(board, "names", lambda prefix: [name for name in notes if name != "job 1"])
    context = SimpleNamespace(get_job_id=lambda: "job 1")
    monkeypatch.setattr(module.ray, "get_runtime_context", lambda: context)
    return notes


def test_a_run_at_work_is_named_while_its_driver_renews_the_note(
    board: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RENEW_S", 0.01)
    with module.at_work("a"):
        wait_until(lambda: module.runs_at_work() == ["a"], 5)
        (note,) = board
        first = board[note][1]
        wait_until(lambda: board[note][1] > first, 5)
        board["killed"] = ["b", time.time() - module.STALE_S]
        assert module.runs_at_work() == ["a"]
    assert module.runs_at_work() == []
    monkeypatch.setattr(module, "submission_id", lambda: "raysubmit_1")
    module.note_submission()
    with module.at_work("c"):
        wait_until(lambda: module.runs_at_work() == ["c of the Ray job raysubmit_1"], 5)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_waiting_run_names_the_one_at_work_and_starts_once_that_was_killed(tmp_path: Path) -> None:
    long = ("train.epochs=200",)
    first = start(tmp_path, "b", *long)
    wait_until(lambda: (tmp_path / "b" / "startup.json").exists(), 120)
    second = start(tmp_path, "c", *long)
    try:
        assert second.stdout is not None
        line = next(line for line in second.stdout if "waiting for" in line)
        need = r"waiting for 1 worker of 0\.95 CPU and a data task of 0\.5 CPU"
        used = r"the cluster has 2 CPUs, of which [\d.]+ (is|are) in use by other work \(run b\)"
        assert re.search(f"{need}: {used}", line), line
        first.send_signal(signal.SIGKILL)
        wait_until(lambda: (tmp_path / "c" / "startup.json").exists(), 120)
    finally:
        for process in (first, second):
            process.kill()
            process.communicate(timeout=60)
