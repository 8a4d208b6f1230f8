"""Runs that share a cluster: a waiting one names the other, and asks for nothing on behalf of one that was killed."""

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import wait_until
from tests.ray_nodes import client_environment, end_node, free_ports, start_node, wait_for_line
from tests.runs.runs import start

pytestmark = pytest.mark.slow

REQUESTS = """
import ray
ray.init(logging_level="ERROR", log_to_driver=False)
coordinator = ray.get_actor("AutoscalingCoordinator", namespace="AutoscalingCoordinator")
requests = ray.get(coordinator.__ray_call__.remote(lambda self: list(self._ongoing_reqs)))
print(*(request for request in requests if request.startswith("train-")))
"""


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


def requests_for_nodes() -> set[str]:
    return set(subprocess.run([sys.executable, "-c", REQUESTS], capture_output=True, text=True).stdout.split())


@pytest.mark.usefixtures("cluster")
def test_a_waiting_run_names_the_one_at_work_and_withdraws_its_request_once_it_was_killed(tmp_path: Path) -> None:
    long = ("train.epochs=200",)
    first = start(tmp_path, "b", *long)
    wait_until(lambda: (tmp_path / "b" / "startup.json").exists(), 120)
    (request,) = requests_for_nodes()
    second = start(tmp_path, "c", *long)
    try:
        assert second.stdout is not None
        line = next(line for line in second.stdout if "waiting for" in line)
        need = r"waiting for 1 worker of 0\.95 CPU and a data task of 0\.5 CPU"
        used = r"the cluster has 2 CPUs, of which [\d.]+ (is|are) in use by other work \(run b\)"
        assert re.search(f"{need}: {used}", line), line
        first.send_signal(signal.SIGKILL)
        wait_until(lambda: (tmp_path / "c" / "startup.json").exists(), 120)
        requests = requests_for_nodes()
        assert len(requests) == 1
        assert request not in requests
    finally:
        for process in (first, second):
            process.kill()
            process.communicate(timeout=60)
