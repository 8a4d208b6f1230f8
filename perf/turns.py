"""Taking turns: contenders stay alive and wait, without using a CPU, for their turn of some steps.

A contender holds a `Gate` in each of its processes, the measuring process a `Starter`. They talk over a Unix socket in
lines of JSON, and whoever waits is blocked in a read; no process waits inside a collective.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from raysl.data.batch import Batch
from raysl.errors import RunFailed
from raysl.train.meter import most_used_gb

HELLO_S = 180.0  # a contender that has not set itself up by then is given up


@dataclass(frozen=True)
class Turn:
    """Steps to run: `num_warmup` untimed ones, then `num_steps` timed ones. The last turn ends training."""

    num_warmup: int
    num_steps: int
    is_last: bool = False


LAST_TURN = Turn(num_warmup=1, num_steps=0, is_last=True)


class Line:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.file = connection.makefile("rw", encoding="utf-8")
        connection.close()  # the file keeps it open

    def send(self, message: dict[str, Any]) -> None:
        """Send a message."""
        self.file.write(json.dumps(message) + "\n")
        self.file.flush()

    def receive(self) -> dict[str, Any]:
        """Wait for a message.

        Raises:
            EOFError: if the other side is gone.
        """
        text = self.file.readline()
        if not text:
            raise EOFError("the other side of the measurement is gone")
        message: dict[str, Any] = json.loads(text)
        return message


def join(path: str, name: str, rank: int = 0, facts: Mapping[str, Any] | None = None) -> Line:
    """Connect a contender's process to the starter, and identify it.

    Args:
        path: of the starter's socket.
        name: of the contender.
        rank: of this process in it.
        facts: what else to tell.
    """
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    line = Line(connection)
    line.send(
        {
            "name": name,
            "rank": rank,
            "threads": torch.get_num_threads(),
            "niceness": os.nice(0),
            "pid": os.getpid(),
            **(facts or {}),
        }
    )
    return line


class Gate:
    """A contender's stream of batches: it blocks between turns, and times the steps in between.

    Args:
        path: of the starter's socket.
        name: of the contender.
        rank: of this process in it.
        batches: what the stream goes through again and again.
        device: that trains; a GPU is waited for at the ends of what is timed.
        facts: of this process, for the starter.
    """

    def __init__(
        self,
        path: str,
        name: str,
        rank: int,
        batches: Sequence[Batch],
        device: torch.device | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.batches = batches
        self.device = device or torch.device("cpu")
        self.line = join(path, name, rank, facts)

    def from_step(self, step: int) -> Iterator[Batch]:
        """Batches from `step` on. A step counts as done when the next batch is asked for; the last turn has no next."""
        turn = Turn(0, 0)
        while not turn.is_last:
            turn = Turn(**self.line.receive())
            start = time.perf_counter()
            for done in range(turn.num_warmup + turn.num_steps):
                if done == turn.num_warmup:
                    start = self._now()
                yield self.batches[step % len(self.batches)]
                step += 1
            if not turn.is_last:
                self.line.send({"seconds": self._now() - start, "memory_gb": most_used_gb(self.device)})

    def plain(self) -> Iterator[Batch]:
        """Return the batches, once."""
        return iter(self.batches)

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


class Starter:
    """Lets one contender at a time run.

    Args:
        folder: an empty local folder for the socket.
    """

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "turns")
        self.lines: dict[str, dict[int, Line]] = {}
        self.hellos: dict[str, dict[int, dict[str, Any]]] = {}
        self.memory: dict[str, float] = {}
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        self.listener.settimeout(0.5)

    def __enter__(self) -> "Starter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections; a contender that still waits for its turn ends with an error."""
        self.listener.close()
        for lines in self.lines.values():
            for line in lines.values():
                line.file.close()

    def wait_for(self, name: str, num_processes: int, check: Callable[[], None]) -> list[dict[str, Any]]:
        """Wait until all processes of a contender are ready.

        Args:
            name: of the contender.
            num_processes: that it consists of.
            check: called now and then; raises if the contender has failed.

        Returns:
            What each process says of itself, by rank.

        Raises:
            RunFailed: if they are not ready in time.
        """
        end = time.monotonic() + HELLO_S
        while len(self.hellos.get(name, {})) < num_processes:
            try:
                connection, _ = self.listener.accept()
            except TimeoutError:
                check()
                if time.monotonic() > end:
                    raise RunFailed(f"contender {name} was not ready after {HELLO_S:.0f} s") from None
                continue
            connection.setblocking(True)
            line = Line(connection)
            hello = line.receive()
            self.lines.setdefault(hello["name"], {})[hello["rank"]] = line
            self.hellos.setdefault(hello["name"], {})[hello["rank"]] = hello
        return [hello for _, hello in sorted(self.hellos[name].items())]

    def run(self, name: str, turn: Turn) -> float:
        """Have a contender run a turn; return the seconds of its slowest process. `memory` has its peak.

        Raises:
            EOFError: if one of its processes is gone.
        """
        lines = self.lines[name].values()
        for line in lines:
            line.send(asdict(turn))
        if turn.is_last:
            return 0.0
        replies = [line.receive() for line in lines]
        self.memory[name] = sum(one["memory_gb"] for one in replies)
        return float(max(one["seconds"] for one in replies))
