"""What a run says when a worker or a node is lost or hangs, and that it can be stopped while it waits."""

import json
import pickle
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ray.exceptions import RayTaskError

from raysl.errors import CodeError
from raysl.process.code_errors import explaining_code
from raysl.runs.failures import Failure, step_before
from raysl.runs.folder import RunFolder
from raysl.runs.ray_log import note_failures, reporting_failures
from raysl.runs.watch import MAX_DUMP, dump
from raysl.train.file_names import parse_events
from tests.processes import wait_until
from tests.ray_nodes import client_environment, end_node, free_ports, start_node, wait_for_line
from tests.runs.boards import Notes
from tests.runs.runs import start, wait_for_step, workers_of

LONG = ("train.epochs=60", "train.workers=2")
STALL = """
import time
from dataclasses import dataclass
from pathlib import Path
from raysl import distributed as dist
from raysl.config.schema import CallbackConfig
from raysl.train.callbacks.callback import Callback

class Stall(Callback):
    @dataclass(frozen=True, kw_only=True)
    class Config(CallbackConfig):
        once: str = ""

    def __init__(self, config):
        self.once = Path(config.once)

    def on_step_end(self, run, step, out):
        if dist.rank() == 1 and step.index == 12 and not self.once.exists():
            self.once.touch()
            time.sleep(1000)
"""


def test_a_failure_is_noted_once() -> None:
    first, second = (
        Failure(1.5, "lost worker 0", "", step=7, group=1),
        Failure(2.5, "lost worker 1", "", step=9, group=2),
    )
    events = note_failures(b"", [first])
    events += note_failures(events, [first, second])
    assert [(note["event"], note["kind"], note["time"]) for note in parse_events(events)] == [
        ("lost worker 0", "failure", 1.5),
        ("lost worker 1", "failure", 2.5),
    ]
    assert [step_before([first, second], group) for group in (1, 2, 3, 4)] == [None, 7, 9, None]


def test_failures_are_told_once_and_stand_in_the_events_and_ray_speaks_in_a_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, board = RunFolder(str(tmp_path)), Notes(**{"pid/12": 12})
    lost, last = (
        Failure(1.5, "lost worker 0", "Ray's 70 lines"),
        Failure(9e9, "no retry is left", "more", end="count"),
    )
    process = "Worker IP address: 10.0.0.2 Worker PID: {} Worker exit detail: The process receives a SIGTERM."
    with reporting_failures(folder, board) as reporter:
        for failure in (lost, last):
            reporter.notes.add(failure)
        for pid in (12, 13):  # a training worker, and another process
            reporter.hear(process.format(pid))
        reporter.poll()
        reporter.poll()
    (beside,) = [line for line in caplog.messages if "process 13" in line]
    assert caplog.messages == ["lost worker 0", beside], "the last one is the error of the run"
    assert _events(tmp_path) == ["lost worker 0", beside, "no retry is left"]
    said = (tmp_path / "ray.log").read_text()
    assert all(text in said for text in ("Ray's 70 lines", "more", "Worker PID: 12", "Worker PID: 13"))
    assert not board.notes


def test_the_line_that_raised_in_another_process_stands_once_in_what_is_kept_however_much_ray_says() -> None:
    labels = {0: "cat"}
    with pytest.raises(CodeError) as raised, explaining_code():
        labels[1]
    sent = pickle.loads(pickle.dumps(raised.value))  # it loses its traceback on the way
    said = dump({0: sent, 1: RayTaskError("train_worker", "", sent), 2: RuntimeError("x" * MAX_DUMP)})
    assert said.count("    labels[1]\n") == 1
    assert "worker 2: x" in said
    assert len(said) == MAX_DUMP


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """The folder of a run, which ends with the test."""
    yield tmp_path / "one"
    for process in psutil.process_iter():
        try:
            if f"storage={tmp_path}" in process.cmdline():
                process.kill()
        except psutil.Error:
            continue


def _events(run: Path) -> list[str]:
    return [json.loads(line)["event"] for line in (run / "events.jsonl").read_text().splitlines()]


def _stop(process: "subprocess.Popen[str]") -> str:
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 143, output
    assert "Traceback" not in output
    assert "https://" not in output
    assert "Worker exit type" not in output
    return output


def _goes_on(run: Path) -> bool:
    return any(event.startswith("going on at step ") for event in _events(run))


def _line(pattern: str, output: str) -> str:
    (line,) = [line for line in output.splitlines() if re.search(pattern, line)]
    return line


@pytest.mark.slow
def test_a_killed_worker_is_one_line_and_ray_speaks_in_a_file(run: Path) -> None:
    process = start(run.parent, "one", *LONG)
    wait_for_step(run, 12, process)
    workers_of(process)[-1].kill()
    wait_until(lambda: _goes_on(run), 150)
    wait_for_step(run, 12, process)
    output = _stop(process)
    lost = _line("lost worker", output)
    assert re.fullmatch(r"lost worker [01] on [\d.]+: its process was killed, as by SIGKILL or .*; retry 1 of 3", lost)
    again = _line("going on at step", output)
    found = re.match(r"going on at step (\d+), (\d+) steps? again, on 2 workers on cpu", again)
    assert found is not None
    step, repeated = map(int, found.groups())
    assert step % 5 == 0
    assert step + repeated >= 12
    events = _events(run)
    assert events.index(lost) < events.index(again)
    assert "Worker exit type" in (run / "ray.log").read_text()


@pytest.mark.slow
def test_a_worker_that_does_not_answer_is_named_and_replaced(run: Path) -> None:
    process = start(run.parent, "one", *LONG, "train.hang_timeout=10")
    wait_for_step(run, 12, process)
    workers_of(process)[-1].send_signal(signal.SIGSTOP)
    wait_until(lambda: _goes_on(run), 150)
    wait_for_step(run, 12, process)
    hung = _line("hung", _stop(process))
    assert re.fullmatch(r"worker [01] on [\d.]+ hung: it has not answered for 1\d s; retry 1 of 3", hung)


@pytest.mark.slow
def test_a_worker_for_which_the_others_wait_is_named_and_replaced(run: Path) -> None:
    run.parent.joinpath("stall.py").write_text(STALL)
    stall = (f"callbacks=[{run.parent}/stall.py:Stall]", f"callbacks.Stall.once={run.parent}/once")
    process = start(run.parent, "one", *LONG, "train.hang_timeout=8", *stall)
    wait_for_step(run, 11, process)
    wait_until(lambda: _goes_on(run), 150)
    wait_for_step(run, 20, process)
    hung = _line("hung", _stop(process))
    assert re.fullmatch(
        r"worker 1 on [\d.]+ hung: the other workers have waited for it for \d+ s at step 12; retry 1 of 3", hung
    )


@pytest.mark.slow
def test_a_lost_node_is_told_and_a_run_that_waits_for_another_one_ends_when_it_is_asked_to(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = free_ports(1)
    logs, sessions = run.parent, tempfile.mkdtemp(prefix="ray_")  # short: the paths of its sockets have a limit
    head = start_node("--head", "--num-cpus=2", f"--port={port}", f"--temp-dir={sessions}", log=logs / "head.log")
    nodes = [head]
    try:
        wait_for_line("Ray runtime started", logs / "head.log", head)
        nodes.append(start_node(f"--address=127.0.0.1:{port}", "--num-cpus=2", log=logs / "node.log"))
        wait_for_line("Ray runtime started", logs / "node.log", nodes[1])
        for name, value in {**client_environment(), "RAY_ADDRESS": f"127.0.0.1:{port}"}.items():
            monkeypatch.setenv(name, value)
        process = start(run.parent, "one", *LONG, "train.cpus_per_worker=1.4")
        wait_for_step(run, 12, process)
        for child in [*psutil.Process(nodes[1].pid).children(recursive=True), psutil.Process(nodes[1].pid)]:
            child.kill()
        wait_until(lambda: "lost worker" in (run / "ray.log").read_text() if (run / "ray.log").exists() else False, 100)
        process.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        output, _ = process.communicate(timeout=60)
        assert time.monotonic() - asked < 10, output  # 2 to 4 s on a machine that does nothing else
        assert process.returncode == 143, output
        assert re.fullmatch(r"lost worker [01] on [\d.]+: its node is gone; retry 1 of 3", _line("lost worker", output))
        newest = sorted(run.glob("checkpoint_*"))[-1]
        assert f"raysl: ended by SIGTERM; {newest} is the last checkpoint; the same command goes on" in output
        assert "Traceback" not in output
        assert not RunFolder(str(run)).is_in_use()
        left = [each for each in psutil.Process(head.pid).children(recursive=True) if "RayTrain" in each.name()]
        psutil.wait_procs(left, timeout=20)
        assert not [each for each in left if each.is_running()]
    finally:
        for node in reversed(nodes):
            if node.poll() is None:
                end_node(node)
        shutil.rmtree(sessions, ignore_errors=True)
