"""Ctrl-C and SIGTERM, in processes without Ray."""

import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from raysl.errors import RunFailed, Stopped
from raysl.process.screen import unmute_native_code
from raysl.process.signals import ONE_REQUEST_S, handling_signals
from tests.processes import has_ended, wait_until

WAITS = """
import threading
from raysl.process.signals import handling_signals
with handling_signals():
    print("ready", flush=True)
    threading.Event().wait(60)
"""
SWALLOWS = """
import threading
from raysl.process.signals import handling_signals
with handling_signals() as signals:
    try:
        print("ready", flush=True)
        threading.Event().wait(60)
    except KeyboardInterrupt:
        pass
    with signals.saving(lambda: True):
        print("goes on", flush=True)
"""
LOADS = """
import threading
from raysl.process.signals import handling_signals
with handling_signals() as signals, signals.loading():
    try:
        print("ready", flush=True)
        threading.Event().wait(60)
    except BaseException:  # as an import may do
        threading.Event().wait(60)
"""
SAVES = """
import threading
from raysl.process.signals import handling_signals
asked = threading.Event()
with handling_signals() as signals, signals.saving(lambda: asked.set() or True):
    print("ready", flush=True)
    asked.wait(60)
    print("saved", signals.received.name, flush=True)
"""
TWICE = """
import signal, threading
from raysl.process.signals import handling_signals
with handling_signals() as signals, signals.saving(lambda: True):
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    threading.Event().wait(0.2)
    print("saved", flush=True)
"""
NATIVE = """
import contextlib, os, signal, sys
from raysl.process.signals import handling_signals
os.write(2, b"before\\n")
with contextlib.suppress(KeyboardInterrupt, SystemExit), handling_signals():
    signal.raise_signal(signal.SIGINT)
os.write(2, b"[2026-11-23 16:00:00 E 1 2] core_worker.cc:1: lost\\n")
print("of Python", file=sys.stderr)
with handling_signals():
    os.write(2, b"later\\n")
    print("of Python, later", file=sys.stderr)
"""
HANGS = """
import hashlib, subprocess, sys, threading
from raysl.process.signals import handling_signals
with handling_signals():
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    threading.Timer(1.0, print, ("ready", child.pid), {"flush": True}).start()  # the main thread hashes by then
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # minutes in which no handler of Python's is called
"""


def start(code: str) -> tuple["subprocess.Popen[str]", str]:
    """A process that has said that it is ready, and what else it said."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdout is not None
    return process, process.stdout.readline()


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGINT, "raysl: interrupted; nothing was saved yet\n"),
        (signal.SIGTERM, "raysl: ended by SIGTERM; nothing was saved yet\n"),
    ],
)
@pytest.mark.parametrize("code", [WAITS, SWALLOWS, LOADS])
def test_a_signal_before_anything_is_trained_ends_a_script_with_one_line(
    code: str, number: signal.Signals, said: str
) -> None:
    process, _ = start(code)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (128 + number, "", said)


@pytest.mark.cluster
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_there_is_something_to_save_lets_the_work_end_by_itself(number: signal.Signals) -> None:
    process, _ = start(SAVES)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, f"saved {number.name}\n", "")


@pytest.mark.cluster
def test_a_signal_that_comes_twice_at_a_time_as_from_timeout_is_one_request() -> None:
    process, said = start(TWICE)
    process.communicate(timeout=30)
    assert (process.returncode, said) == (0, "saved\n")


@pytest.mark.cluster
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="children are found in /proc")
def test_the_second_signal_ends_a_process_that_hangs_and_all_that_it_started() -> None:
    process, said = start(HANGS)
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2 * ONE_REQUEST_S)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143
    wait_until(lambda: has_ended(int(said.split()[1])))


def test_the_alarm_by_which_rays_core_aborts_a_process_after_a_signal_is_called_off() -> None:
    with handling_signals() as signals, signals.saving(lambda: True):
        signal.alarm(60)
        signal.raise_signal(signal.SIGTERM)
        wait_until(lambda: signal.getitimer(signal.ITIMER_REAL)[0] == 0)
    unmute_native_code()


def test_an_exit_by_the_handler_that_ray_has_while_it_starts_is_told_as_a_signal(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(Stopped) as raised, handling_signals():
        sys.exit(signal.SIGTERM)
    assert (raised.value.code, capfd.readouterr().err) == (143, "raysl: ended by SIGTERM; nothing was saved yet\n")


def test_handlers_are_as_before_when_a_block_is_left_and_blocks_may_nest() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with handling_signals() as outer, handling_signals() as inner:
        assert inner is outer
        assert signal.getsignal(signal.SIGTERM) == outer.handle
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_stop_is_caught_as_a_failed_run_is_and_is_an_exit_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RunFailed, match="stopped at step 3") as caught, handling_signals():
        raise Stopped("stopped at step 3", 143)
    assert isinstance(caught.value, SystemExit)
    assert caught.value.code == 143
    assert capsys.readouterr().err == "raysl: stopped at step 3\n"


def test_what_is_left_is_told_also_while_another_line_is_written(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Writing(io.StringIO):
        def write(self, text: str) -> int:
            raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")

    def asked_to_end() -> None:
        with handling_signals() as signals:
            signals.handle(signal.SIGTERM, None)

    monkeypatch.setattr(sys, "stderr", Writing())
    with pytest.raises(Stopped, match="nothing was saved yet"):
        asked_to_end()
    assert capfd.readouterr().err.startswith("raysl: ended by SIGTERM; nothing was saved yet\n")


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("command", "left"), [("benchmark", "finished results are kept"), ("extract", "continues with the features")]
)
def test_a_measurement_ends_with_a_line_on_what_is_left(command: str, left: str, tmp_path: Path) -> None:
    (tmp_path / "checkpoint_000000001").mkdir()  # a run at first sight
    words = [sys.executable, "-m", "raysl", command, "--checkpoint", str(tmp_path)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)
    assert process.stderr is not None
    assert "loading libraries" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 143
    assert re.fullmatch(rf"raysl: ended by SIGTERM; .*{left}.*\n", said)


@pytest.mark.cluster
def test_native_code_is_not_heard_after_a_signal_until_the_next_start() -> None:
    def said(**environment: str) -> list[str]:
        command = [sys.executable, "-c", NATIVE]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment})
        return done.stderr.splitlines()

    interrupted = "raysl: interrupted; nothing was saved yet"
    assert said() == ["before", interrupted, "of Python", "later", "of Python, later"]
    assert "[2026-11-23 16:00:00 E 1 2] core_worker.cc:1: lost" in said(RAYSL_VERBOSE="1")
