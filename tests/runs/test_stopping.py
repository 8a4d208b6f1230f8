"""Whole runs that are asked to stop, or cannot go on, by what comes from outside: signals and a full disk."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from raysl.config.load import load_config
from raysl.errors import Stopped
from raysl.pretraining import pretrain
from raysl.process.signals import Signals
from raysl.runs.folder import STOP_FILE, RunFolder
from raysl.runs.stopping import stopping
from raysl.train.callbacks.logs import parse_metrics
from raysl.train.files import STARTUP_FILE
from tests.runs.runs import SMALL, assert_same, finish, logged_step, start, tensors, wait_for_step

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


def test_another_thread_asks_the_workers_to_stop_once_they_have_made_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = threading.Semaphore(0)
    monkeypatch.setattr("raysl.runs.stopping.LOOK_EVERY_S", 0.001)
    monkeypatch.setattr("raysl.runs.stopping._has_begun", lambda folder: (looks.release(), begun.is_set())[1])
    begun, stop = threading.Event(), threading.Event()
    with stopping(RunFolder(str(tmp_path)), Signals(), stop) as asked:
        assert not asked()
        stop.set()
        assert asked()
        assert all(looks.acquire(timeout=20) for _ in range(3)), "it goes on looking"
        assert not (tmp_path / STOP_FILE).exists()
        begun.set()
        for thread in threading.enumerate():
            if thread.name == "raysl-heed":
                thread.join(20)
        assert (tmp_path / STOP_FILE).exists()


def test_a_run_that_is_not_to_train_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("raysl.runs.run.connect")
    stop = threading.Event()
    stop.set()
    config = load_config("quickstart", [*SMALL, f"storage={tmp_path}", "name=one"])
    with pytest.raises(Stopped, match="stopped at step 0 of 40; no checkpoint was saved; the same command goes on"):
        pretrain(config, show_progress=False, stop=stop)


def test_workers_that_cannot_be_asked_to_stop_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / STARTUP_FILE).write_text("{}")
    (tmp_path / STOP_FILE).mkdir()  # no file can take its place
    signals = Signals()
    with stopping(RunFolder(str(tmp_path)), signals):
        signals.handle(signal.SIGINT, None)
        for thread in threading.enumerate():
            if thread.name == "raysl-ask":
                thread.join()
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
def test_a_run_that_is_asked_to_stop_before_its_first_step_ends_with_a_line(tmp_path: Path) -> None:
    process = start_group("command", tmp_path)
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    waited = [next(lines)]
    while "starting workers" not in waited[-1]:
        waited.append(next(lines))
    os.killpg(process.pid, signal.SIGINT)
    rest = process.communicate(timeout=60)[0]
    assert (process.returncode, rest) == (130, "raysl: interrupted; nothing was trained yet\n")
    words = [line.split(" s  ")[1] for line in waited]
    assert words == [
        "loading libraries ...\n",
        "reading the dataset ...\n",
        "starting Ray ...\n",
        "starting workers ...\n",
    ]
    assert float(waited[0].split()[0]) < 5


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
