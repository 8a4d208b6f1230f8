"""Whole runs that are asked to stop, or cannot go on, by what comes from outside: signals and a full disk."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from raysl.checkpoint.checkpoint_folder import NewestCheckpoint
from raysl.config.load import load_config
from raysl.errors import Stopped
from raysl.pretraining import pretrain
from raysl.process.signals import Signals
from raysl.runs.folder import STOP_FILE, RunFolder
from raysl.runs.follow import read_events
from raysl.runs.run import _last_good
from raysl.runs.stopping import Stopping, describe_stop, noting_end
from raysl.train.callbacks.logs import parse_metrics
from tests.runs.boards import Notes
from tests.runs.runs import SMALL, assert_same, finish, kill_worker, logged_step, start, tensors, wait_for_step

LONG = (*SMALL, "train.epochs=60", "train.checkpoint_every=100%")
UNSHARE = ["unshare", "--map-root-user", "--mount"]
SCRIPT = """
import sys
import raysl
raysl.pretrain(raysl.load_config("quickstart", sys.argv[1:]))
"""


def start_group(how: str, storage: Path, *words: str) -> "subprocess.Popen[str]":
    """Start a run of 480 steps, by the command or in a script, in a process group of its own."""
    command = ["-m", "raysl", "pretrain", "quickstart"] if how == "command" else ["-c", SCRIPT]
    settings = [*LONG, f"storage={storage}", "name=one", *words]
    return subprocess.Popen(
        [sys.executable, *command, *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _wait_for_request() -> None:
    for thread in threading.enumerate():
        if thread.name == "raysl-ask":
            thread.join()


def test_another_thread_asks_the_workers_to_stop_once_they_have_made_a_step(tmp_path: Path) -> None:
    stop = threading.Event()
    board = Notes(group={"number": 2, "phase": "working"}, begun=2)
    request = Stopping(RunFolder(str(tmp_path)), board, Signals(), stop, lambda: "")
    with request.signals.saving(lambda: True):
        request.poll()
        assert not request.is_requested
        stop.set()
        assert request.is_requested
        request.poll()
        _wait_for_request()
        assert (tmp_path / STOP_FILE).exists()
        board.write("group", {"number": 2, "phase": "done"})
        request.poll()


@pytest.mark.parametrize(
    "notes",
    [
        pytest.param({}, id="before the first group"),
        pytest.param({"group": {"number": 1, "phase": "working"}}, id="before the first step"),
        pytest.param({"group": {"number": 1, "phase": "waiting"}, "begun": 1}, id="after a failure"),
        pytest.param({"group": {"number": 2, "phase": "working"}, "begun": 1}, id="before a step after a failure"),
    ],
)
def test_a_run_of_which_no_worker_trains_ends_at_once(tmp_path: Path, notes: dict[str, Any]) -> None:
    signals = Signals()
    request = Stopping(RunFolder(str(tmp_path)), Notes(**notes), signals, None, lambda: "checkpoint_5 is kept")
    with signals.saving(lambda: True):
        signals.handle(signal.SIGTERM, None)
        with pytest.raises(Stopped, match=r"^ended by SIGTERM; checkpoint_5 is kept$") as stopped:
            request.poll()
    assert stopped.value.code == 143
    assert not (tmp_path / STOP_FILE).exists()


def test_a_run_that_loses_its_workers_when_it_is_asked_to_stop_ends(tmp_path: Path) -> None:
    signals, board = Signals(), Notes(group={"number": 1, "phase": "working"}, begun=1)
    request = Stopping(RunFolder(str(tmp_path)), board, signals, None, lambda: "checkpoint_5 is kept")
    with signals.saving(lambda: True):
        signals.handle(signal.SIGINT, None)
        request.poll()
        _wait_for_request()
        assert (tmp_path / STOP_FILE).exists()
        board.write("group", {"number": 1, "phase": "waiting"})
        with pytest.raises(Stopped, match=r"^interrupted; checkpoint_5 is kept$"):
            request.poll()


def test_workers_that_do_not_stop_in_time_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raysl.runs.stopping.PATIENCE_S", 0.0)
    signals, board = Signals(), Notes(group={"number": 1, "phase": "working"}, begun=1)
    request = Stopping(RunFolder(str(tmp_path)), board, signals, None, lambda: "")
    with signals.saving(lambda: True):
        signals.handle(signal.SIGINT, None)
        for _ in range(3):
            request.poll()
        _wait_for_request()
    assert caplog.messages == ["the workers have not stopped for 0 s; once more to end at once"]


def test_the_note_of_an_end_names_the_command_for_readers_of_another_one(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path))
    with pytest.raises(Stopped), noting_end(folder):
        raise Stopped(describe_stop(8, 40, "checkpoint_8", folder.uri))
    way = f"the command that started it goes on from there ({folder.uri})"
    assert read_events(folder) == [f"stopped at step 8 of 40; saved checkpoint_8; {way}"]


def test_a_run_that_is_not_to_train_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("raysl.runs.run.connect")
    stop = threading.Event()
    stop.set()
    config = load_config("quickstart", [*SMALL, f"storage={tmp_path}", "name=one"])
    with pytest.raises(Stopped, match="stopped at step 0 of 40; no checkpoint was saved; the same command goes on"):
        pretrain(config, show_progress=False, stop=stop)


@pytest.mark.parametrize(
    ("moment", "left"),
    [
        ("prepare", "it had not started yet; the same command starts it"),
        ("connect", "nothing was saved yet; the same command starts it again"),
    ],
)
def test_a_run_that_is_interrupted_before_its_first_step_names_its_folder_and_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, left: str
) -> None:
    monkeypatch.setattr(f"raysl.runs.run.{moment}", lambda *_: signal.raise_signal(signal.SIGINT))
    config = load_config("quickstart", [*SMALL, f"storage={tmp_path}", "name=one"])
    with pytest.raises(Stopped) as stopped:
        pretrain(config, show_progress=False)
    assert str(stopped.value) == f"interrupted; {left} ({tmp_path}/one)"


def test_workers_that_cannot_be_asked_to_stop_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / STOP_FILE).mkdir()  # no file can take its place
    signals, board = Signals(), Notes(group={"number": 1, "phase": "working"}, begun=1)
    request = Stopping(RunFolder(str(tmp_path)), board, signals, None, lambda: "")
    with signals.saving(lambda: True):
        signals.handle(signal.SIGINT, None)
        request.poll()
        _wait_for_request()
    (told,) = caplog.messages
    assert told.startswith("the workers cannot be asked to save: cannot write ")
    assert told.endswith("; once more to end at once")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "number", "to_group"),
    [("command", signal.SIGINT, True), ("command", signal.SIGTERM, True), ("script", signal.SIGINT, False)],
)
def test_a_run_that_is_asked_to_stop_saves_says_so_and_goes_on_with_the_same_bits(
    tmp_path: Path, how: str, number: signal.Signals, to_group: bool
) -> None:
    run = tmp_path / "one"
    process = start_group(how, tmp_path)
    wait_for_step(run, 12, process)
    family = psutil.Process(process.pid).children(recursive=True)
    (os.killpg if to_group else os.kill)(process.pid, number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number, output
    step = logged_step(run)
    assert 12 <= step < 480
    assert "Traceback" not in output
    assert "error" not in output
    assert "raysl: saving a checkpoint and stopping; once more to end at once\n" in output
    saved = f"checkpoint_{step:09}"
    assert f"saved {saved}\n" in output
    assert f"raysl: stopped at step {step} of 480; saved {saved}; the same command goes on from there" in output
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not [child for child in alive if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]

    assert f"resumed at step {step} of 480" in finish(start(tmp_path, "one", *LONG))
    finish(start(tmp_path, "calm", *LONG))
    assert_same(tensors(tmp_path / "calm")["method"], tensors(run)["method"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "later_s"), [(signal.SIGINT, 0.0), (signal.SIGTERM, 1.0), (signal.SIGTERM, 1.5), (signal.SIGINT, 2.0)]
)
def test_a_run_that_is_asked_to_stop_before_its_first_step_ends_with_a_line(
    tmp_path: Path, number: signal.Signals, later_s: float
) -> None:
    process = start_group("command", tmp_path)
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    waited = [next(lines)]
    while "starting workers" not in waited[-1]:
        waited.append(next(lines))
    time.sleep(later_s)  # Ray Train's controller starts, and then the workers
    os.killpg(process.pid, number)
    rest = process.communicate(timeout=60)[0]
    next_step = f"the same command starts it again ({tmp_path}/one)"
    how = "interrupted" if number == signal.SIGINT else "ended by SIGTERM"
    assert process.returncode == 128 + number, rest
    assert rest.endswith(f"raysl: {how}; nothing was saved yet; {next_step}\n")
    words = [line.split(" s  ")[1] for line in waited]
    assert words == [
        "loading libraries ...\n",
        "reading the dataset ...\n",
        "starting Ray ...\n",
        "starting workers ...\n",
    ]
    assert float(waited[0].split()[0]) < 5


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGTERM, marks=pytest.mark.cluster), pytest.param(signal.SIGINT, marks=pytest.mark.slow)],
)
def test_a_run_that_is_asked_to_stop_while_a_worker_is_replaced_ends_at_once(
    tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "one"
    process = start(tmp_path, "one", *LONG, "train.checkpoint_every=5st")
    wait_for_step(run, 12, process)
    family = psutil.Process(process.pid).children(recursive=True)
    kill_worker(process)
    process.send_signal(number)
    asked = time.monotonic()
    output, _ = process.communicate(timeout=60)
    assert time.monotonic() - asked < 10, output  # 2 to 4 s on a machine that does nothing else
    assert process.returncode == 128 + number, output
    how = "interrupted" if number == signal.SIGINT else "ended by SIGTERM"
    newest = sorted(run.glob("checkpoint_*"))[-1]
    assert output.endswith(f"raysl: {how}; {newest} is the last checkpoint; the same command goes on from there\n")
    assert "Traceback" not in output
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not [child for child in alive if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert not RunFolder(str(run)).is_in_use()


def _can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


FULL = """
mount -t tmpfs -o size=1500k none "$1" || exit 99
shift
"$@"
code=$?
"$0" -c 'import sys, raysl; print("features", raysl.load_backbone(sys.argv[1]).feature_dim)' "$RUN"
cp "$RUN/metrics.jsonl" "$KEPT"
exit $code
"""


@pytest.mark.slow
@pytest.mark.skipif(not _can_mount(), reason="needs a file system of its own")
def test_a_run_whose_disk_gets_full_says_where_and_keeps_what_it_has(tmp_path: Path) -> None:
    disk, kept = tmp_path / "disk", tmp_path / "metrics.jsonl"
    disk.mkdir()
    words = [*LONG, "train.checkpoint_every=5st", "train.keep_checkpoints=100", f"storage={disk}", "name=one"]
    command = [sys.executable, "-m", "raysl", "pretrain", "quickstart", *words]
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", FULL, sys.executable, str(disk), *command],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "RUN": f"{disk}/one", "KEPT": str(kept)},
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert error.startswith(f"error: the disk is full: {disk}/one has ")
    assert f"; the last good checkpoint is {disk}/one/checkpoint_0" in error
    assert done.stdout == "features 16\n"
    steps = [line["step"] for line in parse_metrics(kept.read_bytes())]
    assert steps == list(range(1, len(steps) + 1))
    assert 5 < len(steps) < 480


def test_the_checkpoint_that_is_told_is_the_one_that_the_next_start_takes() -> None:
    first = NewestCheckpoint("checkpoint_4", {"step": 4}, ("checkpoint_8: backbone.safetensors is missing",))
    assert _last_good(NewestCheckpoint("checkpoint_8", {"step": 8}), first) == "checkpoint_4"
    assert _last_good(NewestCheckpoint("checkpoint_12", {"step": 12}), first) == "checkpoint_12"
    assert _last_good(NewestCheckpoint(), NewestCheckpoint()) is None
