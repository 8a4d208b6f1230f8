"""`raysl doctor` of clusters of real nodes: a healthy one, a sick one, and one without nodes that train."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import raysl
from raysl.process.environment import JOB_VARIABLE
from tests.autoscaler import autoscaled_cluster
from tests.processes import wait_until
from tests.ray_nodes import client_environment, end_node, free_ports, start_node, wait_for_line
from tests.runs.runs import SMALL

STORE = "--object-store-memory=600000000"


class Nodes:
    """A head and the nodes that a test adds, as child processes."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.processes: list[subprocess.Popen[bytes]] = []
        (self.port,) = free_ports(1)
        self.sessions = tempfile.mkdtemp(prefix="ray_")  # short: the paths of its sockets have a limit

    def add(self, *words: str, before: str = "") -> subprocess.Popen[bytes]:
        """Start the head, then further nodes, and wait until each is up."""
        first = ("--head", f"--port={self.port}", f"--temp-dir={self.sessions}", "--include-dashboard=false")
        where = (f"--address=127.0.0.1:{self.port}",) if self.processes else first
        log = self.logs / f"node_{len(self.processes)}.log"
        process = start_node(*where, *words, STORE, log=log, before=before)
        self.processes.append(process)
        wait_for_line("Ray runtime started", log, process)
        return process

    def doctor(self, folder: Path, *words: str) -> dict[str, Any]:
        """Return what `raysl doctor --json` says of the cluster."""
        return doctor(folder, client_environment() | {"RAY_ADDRESS": f"127.0.0.1:{self.port}"}, *words)


def doctor(folder: Path, environment: dict[str, str], *words: str) -> dict[str, Any]:
    """Return what `raysl doctor --json` says with the variables of an environment."""
    command = [sys.executable, "-m", "raysl", "doctor", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert set(told["cluster"]["problems"]) <= set(told["problems"])
    return told


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    monkeypatch.setenv("PYTHONPATH", str(Path(raysl.__file__).parents[1]))
    started = Nodes(tmp_path)
    yield started
    for process in reversed(started.processes):
        end_node(process)
    shutil.rmtree(started.sessions, ignore_errors=True)


@pytest.mark.slow
def test_a_healthy_cluster_has_no_finding_and_a_node_that_is_frozen_is_one(nodes: Nodes, tmp_path: Path) -> None:
    nodes.add("--num-cpus=1")
    nodes.add("--num-cpus=1")
    storage = tmp_path / "runs"
    storage.mkdir()
    told = nodes.doctor(tmp_path, f"storage={storage}")
    cluster = told["cluster"]
    assert [problem for problem in cluster["problems"] if "of memory left" not in problem] == []  # of a busy machine
    assert cluster["growth"] is None
    assert [node["is_head"] for node in cluster["nodes"]] == [True, False]
    assert [node["packages"]["raysl"] for node in cluster["nodes"]] == [raysl.__version__] * 2
    assert all(0 < node["memory"]["free"] <= node["memory"]["total"] for node in cluster["nodes"])
    assert all(abs(node["clock_s"]) <= node["clock_bound_s"] < 1 for node in cluster["nodes"]), "it is the same clock"
    assert all(node["load"] >= 0 and node["cores"] == os.cpu_count() for node in cluster["nodes"])
    assert cluster["all_reduce"]["backend"] == "gloo"
    assert cluster["all_reduce"]["gb_per_s"] > 0
    assert cluster["images"]["images_per_s"] > 0
    assert [node["arrives"] for node in cluster["storage"]["nodes"].values()] == [True, True]
    assert list(storage.iterdir()) == [], "it leaves nothing behind"

    frozen = psutil.Process(nodes.processes[1].pid).children(recursive=True)
    for process in frozen:
        process.suspend()
    start = time.monotonic()
    lines = nodes.doctor(tmp_path)["cluster"]["problems"]
    assert time.monotonic() - start < 200
    for process in frozen:
        process.resume()
    name = cluster["nodes"][1]["name"]
    assert re.match(rf"node {re.escape(name)}: no answer within \d+ s; look at its load", lines[0])


@pytest.mark.cluster
def test_sigterm_ends_a_look_at_a_cluster_in_a_line(nodes: Nodes, tmp_path: Path) -> None:
    nodes.add("--num-cpus=1")
    environment = client_environment() | {"RAY_ADDRESS": f"127.0.0.1:{nodes.port}"}
    command = [sys.executable, "-m", "raysl", "doctor"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment)
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "decoding images" in line:
            process.terminate()
    assert process.wait(60) == 143
    assert lines[-1].startswith("raysl: ended by SIGTERM; ")
    assert not any("SIGTERM received" in line or "Traceback" in line for line in lines)


@pytest.mark.slow
def test_a_folder_that_is_not_shared_and_another_raysl_are_findings(nodes: Nodes, tmp_path: Path) -> None:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("this user may not give a process other mounts than its own")
    storage, other = tmp_path / "runs", tmp_path / "other"
    storage.mkdir()
    shutil.copytree(Path(raysl.__file__).parent, other / "raysl", ignore=shutil.ignore_patterns("configs"))
    package = other / "raysl" / "__init__.py"
    package.write_text(package.read_text().replace(f'"{raysl.__version__}"', '"0.0.1"'))
    nodes.add("--num-cpus=1")
    path = f"{other}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    nodes.add("--num-cpus=1", before=f"mount -t tmpfs none {storage} && export PYTHONPATH={path}")
    cluster = nodes.doctor(tmp_path, f"storage={storage}")["cluster"]
    name = cluster["nodes"][1]["name"]
    versions, blind = cluster["problems"]
    assert versions == (
        f"node {name} has raysl 0.0.1, this machine {raysl.__version__}; install raysl {raysl.__version__} on it, or "
        "submit a job with --working-dir"
    )
    assert blind.startswith(f"storage {storage} is another folder on the node {name} than on this machine; give")
    assert list(storage.iterdir()) == []


@pytest.mark.cluster
def test_a_cluster_that_starts_from_no_nodes_says_so_and_what_may_come(tmp_path: Path) -> None:
    with autoscaled_cluster() as started:
        cluster = doctor(tmp_path, started.environment)["cluster"]
        assert started.num_nodes() == 0, "nothing is started to look at it"
    assert [node["cpus"] for node in cluster["nodes"]] == [0]
    assert (cluster["growth"]["cpus"], cluster["growth"]["gpus"]) == (4, 0)
    assert cluster["growth"]["origin"] == str(started.config_file)
    assert cluster["all_reduce"] is None
    assert cluster["images"] is None
    assert [problem for problem in cluster["problems"] if "of memory left" not in problem] == []  # of a busy machine
    assert any("fewer than two nodes with CPUs or GPUs are up" in note for note in cluster["notes"])


@pytest.mark.slow
def test_beside_a_run_it_says_which_one_holds_the_cpus_and_measures_all_the_same(nodes: Nodes, tmp_path: Path) -> None:
    nodes.add("--num-cpus=2")
    environment = client_environment() | {"RAY_ADDRESS": f"127.0.0.1:{nodes.port}"}
    job = {"runtime_env": {}, "metadata": {"job_submission_id": "raysubmit_7"}}
    command = [sys.executable, "-m", "raysl", "pretrain", "quickstart", *SMALL, "train.epochs=5000"]
    run = subprocess.Popen(
        [*command, f"storage={tmp_path}", "name=mine"],
        env=environment | {JOB_VARIABLE: json.dumps(job)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: (tmp_path / "mine" / "startup.json").exists(), 200)
        told = nodes.doctor(tmp_path)["cluster"]
        (note,) = [note for note in told["notes"] if "in use by other work" in note]
        assert "(run mine of the Ray job raysubmit_7): wait for it, or stop it by `ray job stop raysubmit_7`" in note
        second = subprocess.run(
            [*command, f"storage={tmp_path}", "name=mine"], env=environment, capture_output=True, text=True, timeout=200
        )
        assert second.returncode == 2
        assert "in use by the Ray job raysubmit_7, process" in second.stderr
        assert "stop it by `ray job stop raysubmit_7`, or give this one another name=" in second.stderr
    finally:
        run.terminate()
        run.wait(60)
