"""Contenders as processes that stay alive and wait, without using a CPU, for their turns.

A contender joins the `Lineup` of the measuring process, over a Unix socket in lines of JSON. Whoever waits is blocked
in a read; no process waits inside a collective.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from perf.harness import Numbers, child_words, last_lines
from raysl.data.batch import Batch
from raysl.errors import RunFailed
from raysl.process.memory import keep_freed_memory
from raysl.process.proc import PROC, cpu_ticks, descendants
from raysl.train.meter import most_used_gb

READY_S = 180.0  # a contender must have joined by then
END_S = 30.0  # a contender has this long to end after its last turn


class Line:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.file = connection.makefile("rw", encoding="utf-8")
        connection.close()  # the file keeps it open

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message."""
        self.file.write(json.dumps(message) + "\n")
        self.file.flush()

    def receive(self) -> Numbers:
        """Wait for a message.

        Raises:
            EOFError: if the other side has ended.
        """
        text = self.file.readline()
        if not text:
            raise EOFError("the other side of the measurement has ended")
        message: Numbers = json.loads(text)
        return message


def join(path: str, name: str, rank: int = 0, **facts: Any) -> Line:
    """Connect a process of a contender to the socket of a lineup, which gets to know the facts."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    line = Line(connection)
    line.send({"name": name, "rank": rank, "threads": torch.get_num_threads(), "niceness": os.nice(0), **facts})
    return line


class Gate:
    """A contender's stream of batches: it blocks between turns, and times the steps of a turn.

    Args:
        line: connection to the lineup.
        batches: endless batches.
        device: device that trains; a GPU is waited for where times are taken.
    """

    def __init__(self, line: Line, batches: Iterator[Batch], device: torch.device | None = None) -> None:
        self.line, self.batches = line, batches
        self.device = device or torch.device("cpu")

    def from_step(self, step: int) -> Iterator[Batch]:
        """Yield the batches of all turns, and one more after the last. A step is done when the next is asked for."""
        while not (turn := self.line.receive()).get("is_last"):
            for _ in range(turn["num_warmup"]):
                yield next(self.batches)
            start = self._now()
            for _ in range(turn["num_steps"]):
                yield next(self.batches)
            self.line.send({"seconds": self._now() - start, "memory_gb": most_used_gb(self.device)})
        self.line.send({})  # now, because training may end without asking for another batch
        yield next(self.batches)

    def plain(self) -> Iterator[Batch]:
        """Contenders of a step have no precise BN."""
        raise NotImplementedError

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


class Child:
    """A contender in a child process.

    Args:
        command: program and its arguments.
        log: file for its output; its name is that of the contender.
        options: further options of `subprocess.Popen`.
    """

    def __init__(self, command: Sequence[str], log: Path, **options: Any) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, **options
            )

    @classmethod
    def of(cls, function: Callable[..., Any], arguments: Numbers, log: Path, world: int = 1) -> "Child":
        """Call a function in a new process, or in several under torchrun."""
        torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={world}", "-m"] if world > 1 else []
        return cls([sys.executable, "-m", *torchrun, *child_words(function, arguments)], log)

    def check(self) -> None:
        """Raise RunFailed with the end of its output if it has ended with an error."""
        if self.process.poll():
            output = last_lines(self.log.read_text(errors="replace"))
            raise RunFailed(f"contender {self.log.stem} ended with code {self.process.returncode}:\n{output}")

    def end(self) -> None:
        """Wait for its end, and kill it after a while. Connections must be closed before."""
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait()


class RayRun:
    """A run of Ray Train on this machine, driven by a thread.

    Args:
        task: settings of the contender, with its `name`, `folder` and `world`.
        program: training function, which gets `{"task": task}`.
    """

    def __init__(self, task: Any, program: Callable[[Numbers], None]) -> None:
        import ray
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        self.name = task.name
        self.error: Exception | None = None
        self.trainer = TorchTrainer(
            program,
            train_loop_config={"task": task},
            scaling_config=ScalingConfig(
                num_workers=task.world,
                resources_per_worker={"CPU": 0, "memory": 1 << 20},  # a fraction of a CPU would cost Ray Data a whole
                label_selector={"ray.io/node-id": ray.get_runtime_context().get_node_id()},
            ),
            run_config=RunConfig(name=task.name, storage_path=task.folder),
        )
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def check(self) -> None:
        if self.error is not None:
            raise RunFailed(f"contender {self.name} failed: {self.error}") from self.error

    def end(self) -> None:
        self.thread.join(END_S)

    def _run(self) -> None:
        try:
            self.trainer.fit()
        except Exception as error:  # noqa: BLE001 - whatever it is, `check` passes it on
            self.error = error


class Lineup:
    """The started contenders, each waiting for its turn. At the end of its context all are ended.

    Args:
        folder: an empty local folder for the socket.
    """

    def __init__(self, folder: Path) -> None:
        self.socket = str(folder / "turns")
        self.running: dict[str, Child | RayRun] = {}
        self.lines: dict[str, list[Line]] = {}
        self.facts: dict[str, list[Numbers]] = {}
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.socket)
        self.listener.listen()
        self.listener.settimeout(0.5)

    def __enter__(self) -> "Lineup":
        return self

    def __exit__(self, *error: object) -> None:
        self.listener.close()
        # A contender that still waits for its turn ends when its connection is closed, so this comes first.
        for lines in self.lines.values():
            for line in lines:
                line.file.close()
        for running in self.running.values():
            running.end()

    def add(self, name: str, running: Child | RayRun, world: int = 1) -> list[Numbers]:
        """Wait until all processes of a contender have joined, and return their facts by rank.

        Raises:
            RunFailed: if it has failed, or has not joined in time.
        """
        self.running[name], self.lines[name] = running, []
        facts: list[Numbers] = []
        end = time.monotonic() + READY_S
        while len(facts) < world:
            try:
                connection, _ = self.listener.accept()
            except TimeoutError:
                running.check()
                if time.monotonic() > end:
                    raise RunFailed(f"contender {name} was not ready after {READY_S:.0f} s") from None
                continue
            connection.setblocking(True)
            self.lines[name].append(Line(connection))
            facts.append(self.lines[name][-1].receive())
        self.facts[name] = sorted(facts, key=lambda fact: int(fact["rank"]))
        return self.facts[name]

    def turn(self, name: str, **turn: Any) -> list[Numbers]:
        """Have all processes of a contender take a turn, and return their replies.

        Raises:
            RunFailed: if one of them has ended, with the end of its output.
        """
        try:
            for line in self.lines[name]:
                line.send(turn)
            return [line.receive() for line in self.lines[name]]
        except (EOFError, OSError) as error:
            self.running[name].end()
            self.running[name].check()  # says more of what went wrong
            raise RunFailed(f"contender {name} ended before its time") from error


def prepare_process(niceness: int, threads: int) -> None:
    """Set niceness, threads of torch and memory allocator, the same for all contenders.

    A process that Ray has made nicer stays so.
    """
    os.nice(max(0, niceness - os.nice(0)))
    torch.set_num_threads(threads)
    keep_freed_memory()


def cpu_seconds() -> float | None:
    """Return the CPU time of this process and its children, all together; None without /proc."""
    if not PROC.is_dir():
        return None
    return sum(map(cpu_ticks, [os.getpid(), *descendants(os.getpid())])) / os.sysconf("SC_CLK_TCK")
