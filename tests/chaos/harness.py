"""Runs that something happens to: what was done, what was seen, what is left, and the row that says so."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

import raysl
from raysl.checkpoint.checkpoint_folder import newest_whole
from raysl.runs.folder import RunFolder
from raysl.storage.folder import Folder
from raysl.train.callbacks.logs import parse_metrics
from tests.chaos import gate
from tests.runs.runs import SMALL

ROWS = "RAYSL_CHAOS_ROWS"  # folder that takes the rows; unset, they are not kept
MARK = "RAYSL_CHAOS"  # in the environment of all that a disturbed run starts
OF_A_RUN = ("ray::RayTrainWorker", "ray::TrainController", "ray::DatasetManager")
RAYSL = (sys.executable, "-m", "raysl")
NOTES = "{notes}"
GATED = (
    f"data.name={Path(gate.__file__)}:GatedDigits",
    f"data.notes={NOTES}",
    "data.mean=[0.31,0.31,0.31]",
    "data.std=[0.37,0.37,0.37]",
)
"""Settings of the digits with reads that wait."""
HOLD = 17  # between the checkpoints of steps 15 and 20, in the third of five epochs
NOT_ABOUT_IT = re.compile(
    r"^(step \d|saved checkpoint_|first step after|started on| *[\d.]+ s  |checkpoint  |run   |report  |$"
    r"|images of worker 0: "
    r"|\d{4}-\d\d-\d\d .* -- |Running entrypoint for job|Killed$"  # of `ray job submit`
    r"|data=\S+ has its own|views=\S+ from \S+ stays|settings adapted to |optim\.warmup=|benchmark  metric|---"
    r"|knn  |note  |verdict  |rank  trial|\d+     trial_|leaderboard )"
)


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Args:
        fault: in words.
        sees: lines that raysl printed about it.
        seconds: from the fault to the end of the next step, or to the end of the command where none follows; None
            where it would say nothing.
        again: steps that were done twice.
        same_bits: whether the result equals that of an undisturbed run; None where there is none.
        left: what remained and should not have.
        file: of the test.
        line: of the test in it.
    """

    fault: str
    sees: Sequence[str]
    seconds: float | None
    again: int | None
    same_bits: bool | None
    left: Sequence[str]
    file: str = ""
    line: int = 0


class Command:
    """A command, by default of raysl, in a session of its own, with the moment of each line that it prints."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], program: Sequence[str] = RAYSL) -> None:
        self.lines: list[tuple[float, str]] = []
        self.started_at = time.time()
        self.process = subprocess.Popen(
            [*program, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=dict(environment),
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.time(), line.rstrip("\n")))

    @property
    def output(self) -> str:
        """All that it has printed."""
        return "\n".join(line for _, line in self.lines)

    def until(self, holds: Callable[[], bool], timeout_s: float = 180) -> None:
        """Wait while it runs until something holds."""
        end = time.monotonic() + timeout_s
        while not holds():
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.output}"
            assert time.monotonic() < end, self.output
            time.sleep(0.02)

    def ended(self, code: int = 0, timeout_s: float = 240) -> str:
        """Wait for its end with an exit code; its output."""
        try:
            found = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it runs on after {timeout_s} s:\n{self.output}") from None
        self._reader.join(10)
        assert found == code, f"exit code {found}:\n{self.output}"
        return self.output

    def kill(self) -> None:
        """SIGKILL it and all that it started, as when a machine loses its power."""
        family = [self.process, *psutil.Process(self.process.pid).children(recursive=True)]
        for process in family:
            send(signal.SIGKILL, process.pid)
        self.process.wait(30)
        psutil.wait_procs(family[1:], timeout=30)


def send(number: signal.Signals, pid: int) -> None:
    """Send a signal to a process that may have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


@dataclass
class Workplace:
    """A folder for temporary files and a mark in the environment, by which all is found that was started there."""

    environment: dict[str, str]
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    # short: the paths of Ray's sockets have a limit
    temporary: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="c", dir="/tmp")))

    def __post_init__(self) -> None:
        root = str(Path(raysl.__path__[0]).parent)
        paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        own = {MARK: self.mark, "TMPDIR": str(self.temporary), "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        kept = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", ROWS)}
        self.environment = {**kept, **own, **self.environment}

    def processes(self, title: str = "") -> list[int]:
        """Ids of what lives of it, by a part of the command line."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() == psutil.STATUS_ZOMBIE or process.environ().get(MARK) != self.mark:
                    continue
                if title in " ".join(process.cmdline()):
                    found.append(process.pid)
            except psutil.Error:
                continue
        return sorted(found)

    def one(self, title: str) -> int:
        """Id of the youngest process by that title."""
        found = self.processes(title)
        assert found, f"no process with {title!r} in its command line"
        return found[-1]

    def left(self, is_over: bool = True, timeout_s: float = 30) -> list[str]:
        """Processes and folders that outlive what has ended; a cluster that goes on may keep idle processes."""
        end = time.monotonic() + timeout_s
        while (found := self._left(is_over)) and time.monotonic() < end:
            time.sleep(0.2)
        return found

    def _left(self, is_over: bool) -> list[str]:
        # a cluster keeps Ray Train's record of all its runs
        at_work = self.processes() if is_over else [pid for title in OF_A_RUN for pid in self.processes(title)]
        titles = [
            f"process {' '.join(psutil.Process(pid).cmdline())[:60]}" for pid in at_work if psutil.pid_exists(pid)
        ]
        return titles + [f"/tmp/{path.name}" for path in sorted(self.temporary.glob("raysl*"))]

    def close(self) -> None:
        """End what is left, and delete the folder."""
        for pid in self.processes():
            send(signal.SIGKILL, pid)
        shutil.rmtree(self.temporary, ignore_errors=True)


class Disturbed:
    """A run of 40 steps that waits at a step for something to happen to it.

    Args:
        folder: local, for its notes and, without a storage, for its files.
        words: settings, with NOTES for the folder of its notes; they stay the same at each start.
        storage: URI, else a local folder.
        hold: step to wait at; 0 for none.
        environment: variables.
    """

    def __init__(
        self,
        folder: Path,
        *words: str,
        storage: str = "",
        hold: int = HOLD,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.notes = folder / "notes"
        self.notes.mkdir(parents=True)
        self.storage = storage or str(folder / "runs")
        component = f"callbacks.gate.name={Path(gate.__file__)}:Gate"
        gated = [component, f"callbacks.gate.notes={self.notes}", f"callbacks.gate.hold={hold}"]
        words = tuple(word.replace(NOTES, str(self.notes)) for word in words)
        self.words = ["pretrain", "quickstart", *SMALL, *gated, f"storage={self.storage}", "name=one", *words]
        self.hold = hold
        self.workplace = Workplace(dict(environment or {}))
        self.starts: list[Command] = []
        self.hit_at = 0.0

    @property
    def run(self) -> RunFolder:
        """Its folder, by the address that a user gave."""
        base, mark, query = self.storage.partition("?")
        return RunFolder(f"{base}/one{mark}{query}")

    @property
    def last(self) -> Command:
        """The newest start."""
        return self.starts[-1]

    def start(self, *words: str) -> Command:
        """Give the command, once more where it was given before."""
        self.starts.append(Command([*self.words, *words], self.workplace.environment))
        return self.last

    def until_held(self, checkpoint: int | None = None) -> None:
        """Wait until it waits at its step, with the checkpoint before it in place."""
        before = (self.hold - 1) // 5 * 5 if checkpoint is None else checkpoint
        self.last.until(lambda: self.hold in [step for _, step in self.steps()])
        self.last.until(lambda: newest_whole(Folder(self.run.uri)).step >= before)

    def held_readers(self) -> list[int]:
        """Ids of data tasks that wait in a read."""
        return [int(path.name.removeprefix(gate.HELD)) for path in self.notes.glob(f"{gate.HELD}*")]

    def hit(self, fault: Callable[[], object]) -> None:
        """Let it happen, and remember when."""
        self.hit_at = time.time()
        fault()

    def let_go(self) -> None:
        """Let it go on behind the step at which it waits."""
        (self.notes / gate.GO).touch()

    def steps(self) -> list[tuple[float, int]]:
        """Moment and number of each step that was done, in the order in which they were."""
        path = self.notes / gate.STEPS
        lines = path.read_text().splitlines() if path.exists() else []
        return [(float(moment), int(step)) for moment, step in (line.split() for line in lines)]

    def steps_again(self) -> int:
        """Steps that were done more than once, as often."""
        return sum(count - 1 for count in Counter(step for _, step in self.steps()).values())

    def seconds(self) -> float:
        """From the fault to the next step, of the start that went on from it."""
        since = max(self.hit_at, self.last.started_at)
        return min(moment for moment, _ in self.steps() if moment > since) - self.hit_at

    def sees(self) -> list[str]:
        """What raysl has printed since the fault, less the lines that each undisturbed run has."""
        return readable(
            [line for start in self.starts for moment, line in start.lines if moment > self.hit_at], self.storage
        )

    def left(self, is_over: bool = True) -> list[str]:
        """What remains of it and should not: processes, temporary folders, half written files, the lock."""
        run = self.run
        parts = [name for name in run.names() if name.endswith(".part")]
        locked = ["the lock"] if run.is_in_use() else []
        return [*self.workplace.left(is_over), *parts, *locked]

    def row(self, fault: str, calm: Path | None, is_over: bool = True) -> Row:
        """How it ended, compared with an undisturbed run of this shape; None where the number of workers changes."""
        assert logged_steps(self.run) == list(range(1, 41))
        same = None if calm is None else result(self.run) == result(Folder(str(calm)))
        return Row(fault, self.sees(), self.seconds(), self.steps_again(), same, self.left(is_over))


def result(run: Folder) -> tuple[object, ...]:
    """What has to be equal, bit for bit: the newest backbone, and the logged loss of each step."""
    checkpoint = newest_whole(run)
    assert checkpoint.name is not None, f"no checkpoint in {run.uri}"
    losses = [(line["step"], line["loss"]) for line in parse_metrics(run.read("metrics.jsonl"))]
    return checkpoint.step, run.read(f"{checkpoint.name}/backbone.safetensors"), losses


def logged_steps(run: Folder) -> list[int]:
    """Steps that have a line in the log, in its order."""
    return [int(line["step"]) for line in parse_metrics(run.read("metrics.jsonl"))]


def readable(lines: Sequence[str], storage: str) -> list[str]:
    """Lines without the folders, process ids and dates of this machine, and without those that each command prints."""
    found = []
    for line in lines:
        line = re.sub(r"\x1b\[\d+m", "", line).strip()
        if NOT_ABOUT_IT.match(line):
            continue
        line = line.replace(storage.partition("?")[0], "runs").replace(storage, "runs")
        line = re.sub(r"\?endpoint_override=[^\s'\",;)]*[^\s'\",;:)]", "", line)
        line = re.sub(r"process \d+ on \S+ \(since [^)]*\)", "process N on HOST (since ...)", line)
        line = re.sub(r"\bbucket-[0-9a-f]{32}", "bucket", line)
        line = re.sub(r"\b\d+\.\d+\.\d+\.\d+\b", "HOST", line)
        line = re.sub(r"\bpid[= ]\d+", "pid N", line)
        line = re.sub(r"/tmp/pytest-of-\w+/pytest-\d+/", "", line)
        if line not in found:
            found.append(line)
    return found


def keep(row: Row, name: str) -> None:
    """Write a row where the environment says so."""
    if folder := os.environ.get(ROWS):
        file = Path(folder) / f"{re.sub(r'[^a-z0-9_]+', '-', name).strip('-')}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(row), indent=1, ensure_ascii=False) + "\n")
