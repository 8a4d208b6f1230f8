"""Runs on several nodes go on with fewer workers when one is lost for good, and with more when one comes."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raysl.runs.folder import RunFolder
from raysl.runs.follow import read_events
from raysl.train.callbacks.logs import parse_metrics
from tests.ray_nodes import RAY, client_environment, end_node, free_ports, kill_node, start_node, wait_for_line
from tests.runs.runs import finish, logged_step, start, wait_for_step

pytestmark = pytest.mark.slow

Node = subprocess.Popen[bytes]
LONG = ("train.epochs=1000", "train.checkpoint_every=5000st")  # no checkpoint but those on request


@pytest.fixture
def add_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Node]]:
    """A head with two CPUs; a function that adds another node like it."""
    (port,) = free_ports(1)
    sessions = tempfile.mkdtemp(prefix="ray_")  # short: the paths of its sockets have a limit
    nodes: list[Node] = []

    def add(*words: str) -> Node:
        log = tmp_path / f"node{len(nodes)}.log"
        nodes.append(start_node("--num-cpus=2", *words, log=log))
        wait_for_line("Ray runtime started", log, nodes[-1])
        return nodes[-1]

    try:
        add("--head", f"--port={port}", f"--temp-dir={sessions}", "--include-dashboard=false")
        for name, value in {**client_environment(), "RAY_ADDRESS": f"127.0.0.1:{port}"}.items():
            monkeypatch.setenv(name, value)
        yield lambda: add(f"--address=127.0.0.1:{port}")
    finally:
        for node in reversed(nodes):
            if node.poll() is None:
                end_node(node)
        shutil.rmtree(sessions, ignore_errors=True)


def wait_for_event(text: str, run: Path, process: subprocess.Popen[str], timeout: float = 180) -> str:
    """Wait until an event of the run contains a text; the event."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        found = [event for event in read_events(RunFolder(str(run))) if text in event]
        if found:
            return found[0]
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.2)
    raise TimeoutError(f"no event {text!r} within {timeout} s: {read_events(RunFolder(str(run)))}")


def drain(seconds: int) -> None:
    """Tell Ray that the node beside the head is taken away soon."""
    names = "print(*(n['NodeID'] for n in ray.nodes() if 'node:__internal_head__' not in n['Resources']))"
    code = f"import ray; ray.init(logging_level='ERROR'); {names}"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    command = [RAY, "drain-node", f"--node-id={told.stdout.split()[-1]}", "--reason=DRAIN_NODE_REASON_PREEMPTION"]
    command += ["--reason-message=spot", f"--deadline-remaining-seconds={seconds}"]
    subprocess.run([*command, f"--address={os.environ['RAY_ADDRESS']}"], check=True)


def test_a_run_that_loses_a_node_for_good_goes_on_with_fewer_workers_and_ends_alone(
    tmp_path: Path, add_node: Callable[[], Node]
) -> None:
    node, run = add_node(), tmp_path / "one"
    process = start(tmp_path, "one", "train.workers=[1,2]", "train.cpus_per_worker=1.2", "train.epochs=60")
    wait_for_step(run, 12, process)
    kill_node(node)
    killed = time.monotonic()
    change = wait_for_event("with 1 of 2 workers", run, process)
    step = int(change.split()[4])
    assert step % 5 == 0
    wait_for_step(run, 40, process)
    assert time.monotonic() - killed < 90
    output = finish(process)
    assert change in output
    assert "1 worker on cpu, 32 images each" in output
    lines = parse_metrics((run / "metrics.jsonl").read_bytes())
    assert [line["step"] for line in lines] == list(range(1, 481)), "each global batch counts once"


def test_a_run_of_fixed_size_that_loses_a_node_names_it_and_goes_on_with_fewer_as_it_says(
    tmp_path: Path, add_node: Callable[[], Node]
) -> None:
    node, run = add_node(), tmp_path / "one"
    settings = ("train.cpus_per_worker=1.2", "train.epochs=60")
    process = start(tmp_path, "one", "train.workers=2", *settings)
    wait_for_step(run, 12, process)
    kill_node(node)
    watchdog = threading.Timer(240, process.kill)
    watchdog.start()
    assert process.stdout is not None
    line = next((line for line in process.stdout if "waiting for 1 of 2 workers" in line), "")
    watchdog.cancel()
    advice = re.search(r"the same command with (train\.workers=\[1,2\]) goes on from step (\d+)", line)
    assert advice, line
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    output = finish(start(tmp_path, "one", advice[1], *settings))
    assert f"going on from step {advice[2]} with 1 of 2 workers" in output
    assert logged_step(run) == 480


def test_a_node_that_is_taken_away_after_a_notice_costs_no_step_before_it_and_is_no_failure(
    tmp_path: Path, add_node: Callable[[], Node]
) -> None:
    node, run = add_node(), tmp_path / "one"
    settings = ("train.workers=[1,2]", "train.cpus_per_worker=1.2", "train.max_failures=0", *LONG)
    process = start(tmp_path, "one", *settings)
    wait_for_step(run, 5, process)
    drain(20)
    saved = wait_for_event("saved checkpoint", run, process)
    kill_node(node)
    change = wait_for_event("with 1 of 2 workers", run, process)
    assert int(change.split()[4]) == int(saved.rpartition("_")[2]) >= 5
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)


def test_a_run_grows_when_a_node_comes_from_a_checkpoint_saved_for_that(
    tmp_path: Path, add_node: Callable[[], Node]
) -> None:
    run = tmp_path / "one"
    process = start(tmp_path, "one", "train.workers=[1,2]", "train.cpus_per_worker=1.2", *LONG)
    assert wait_for_event("starting with", run, process) == "starting with 1 of 2 workers"
    wait_for_step(run, 5, process)
    add_node()
    change = wait_for_event("with all 2 workers", run, process)
    step = int(change.split()[4])
    assert step > 5, "a checkpoint was saved for this"
    wait_for_step(run, step + 1, process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    lines = parse_metrics((run / "metrics.jsonl").read_bytes())
    assert [line["step"] for line in lines] == list(range(1, logged_step(run) + 1))
