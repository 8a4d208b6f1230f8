"""What a run's controller, its workers and its driver tell each other about groups of workers and how they end.

Ray Train's controller reads this module too, so it imports nothing that trains.
"""

import base64
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from raysl.cluster.board import Board
from raysl.cluster.failures import Worker

End = Literal["code", "input", "count"]
"""Why a run is not tried again: an exception of code, wrong settings or images, or too many failures."""
Phase = Literal["waiting", "working", "done"]
"""Whether workers are there: none yet or being replaced, there, or at the end of their work."""


@dataclass(frozen=True)
class Outcome:
    """How training ended; rank 0 returns it to the driver.

    Args:
        failure: why the run failed, if a new attempt would fail in the same way.
        is_input_wrong: whether the user's settings are the reason.
        ended: why a callback ended the run for good before its last step, or None.
    """

    step: int
    failure: str | None = None
    is_input_wrong: bool = False
    ended: str | None = None


@dataclass(frozen=True)
class Failure:
    """Something that was lost.

    Args:
        time: seconds since 1970.
        text: one line of what happened, where, why, and what follows.
        step: updates that were done, as far as known.
        group: number of the group of workers that ended with it; 0 if none did.
        end: None if the run is tried again.
        saved: last saved step, where the failure counts.
    """

    time: float
    text: str
    dump: str
    step: int = 0
    group: int = 0
    end: End | None = None
    saved: int | None = None


@dataclass
class FailureCount:
    """Number of failures of a run since it last saved a step that it had not saved before.

    Args:
        most: number of failures after which the run is tried again; -1 for no limit.

    >>> failures = FailureCount(most=1, step=10)
    >>> [failures.add(saved) for saved in (10, 15, 15)]
    [True, True, False]
    """

    most: int
    step: int = 0
    num: int = 0

    @classmethod
    def of(cls, failures: Sequence[Failure], most: int, step: int) -> "FailureCount":
        """Count failures of a start that went on from a step."""
        count = cls(most, step)
        for failure in failures:
            if failure.saved is not None:
                count.add(failure.saved)
        return count

    def add(self, saved: int) -> bool:
        """Count a failure; return whether the run is tried again."""
        if saved > self.step:
            self.step, self.num = saved, 0
        self.num += 1
        return self.most < 0 or self.num <= self.most

    def describe(self, is_retried: bool) -> str:
        """Describe what follows the last failure, such as `retry 1 of 3`."""
        if is_retried:
            return f"retry {self.num}" if self.most < 0 else f"retry {self.num} of {self.most}"
        num = "1 failure" if self.num == 1 else f"{self.num} failures without a saved step between them"
        return f"no retry is left, {num}"


class FailureNotes:
    """The notes of a run about its groups of workers."""

    def __init__(self, board: Board) -> None:
        self.board = board

    def begin_group(self) -> None:
        """Note that another group of workers starts, in the controller.

        One that ended without an error of a worker, because its node was to be taken back, has no failure yet.
        """
        number, phase = self.group()
        if phase == "working" and self.has_notice(number):
            text = "lost workers: a node is taken back by the cloud; this does not count as a failure"
            self.add(Failure(time.time(), text, "", self.step(), number))
        self.note_pid(os.getpid())
        self.write_group(number + 1, "working")

    def write_group(self, number: int, phase: Phase) -> None:
        """Note what the newest group of workers does."""
        self.board.write("group", {"number": number, "phase": phase})

    def group(self) -> tuple[int, Phase]:
        """Return number and phase of the newest group of workers; (0, waiting) before the first."""
        note = self.board.read("group") or {"number": 0, "phase": "waiting"}
        return note["number"], note["phase"]

    def note_worker(self, rank: int, worker: Worker) -> None:
        """Note where a worker of the present group is."""
        self.note_pid(worker.pid)
        self.board.write(f"worker/{self.group()[0]}/{rank}", asdict(worker))

    def workers(self, group: int) -> dict[int, Worker]:
        """Return the workers of a group that have noted where they are, by rank."""
        names = self.board.names(f"worker/{group}/")
        return {int(name.rpartition("/")[2]): Worker(**self.board.read(name)) for name in names}

    def note_step(self, step: int) -> None:
        """Note the updates done."""
        self.board.write("step", step)

    def step(self) -> int:
        """Return the updates done, as last noted."""
        return int(self.board.read("step") or 0)

    def note_begun(self, group: int) -> None:
        """Note that a group has made a step, so that it can save a checkpoint when it is asked to stop."""
        self.board.write("begun", group)

    def can_save(self) -> bool:
        """Whether a group of workers is there that has made a step."""
        number, phase = self.group()
        return phase == "working" and self.board.read("begun") == number

    def note_notice(self) -> None:
        """Note that a node of the present group is about to be taken away."""
        self.board.write("notice", self.group()[0])

    def has_notice(self, group: int) -> bool:
        """Whether a node of a group is, or was, about to be taken away."""
        return bool(self.board.read("notice") == group)

    def note_pid(self, pid: int) -> None:
        """Note a process, of a worker or of the controller, whose end the controller or the driver tells."""
        self.board.write(f"pid/{pid}", pid)

    def pids(self) -> set[int]:
        """Return the processes that were noted so far."""
        return {int(name.rpartition("/")[2]) for name in self.board.names("pid/")}

    def note_handle(self, name: Literal["controller", "placement_group"], handle: Any) -> None:
        """Note the actor that is the controller of this start, or the placement group of its workers."""
        self.board.write(name, pack_actor(handle))

    def handle(self, name: Literal["controller", "placement_group"]) -> Any:
        """Return what `note_handle` has noted; None before it is there."""
        note = self.board.read(name)
        return None if note is None else unpack_actor(note)

    def add(self, failure: Failure) -> None:
        """Note a failure."""
        # zeros in front make the order of names that of the times
        self.board.write(f"failure/{failure.time:017.6f}", asdict(failure))

    def names(self) -> list[str]:
        """Return the names of all failures so far, in the order of their times."""
        return self.board.names("failure/")

    def read(self, name: str) -> Failure:
        """Return a failure."""
        return Failure(**self.board.read(name))

    def all(self) -> list[Failure]:
        """Return all failures so far, in the order of their times."""
        return [self.read(name) for name in self.names()]


def pack_actor(actor: Any) -> str:
    """Return the handle of an actor as text, for a note."""
    import ray.cloudpickle

    return base64.b64encode(ray.cloudpickle.dumps(actor)).decode()


def unpack_actor(text: str) -> Any:
    """Return the handle of an actor that `pack_actor` has packed."""
    import ray.cloudpickle

    return ray.cloudpickle.loads(base64.b64decode(text))


def step_before(failures: list[Failure], group: int) -> int | None:
    """Return the updates that were done, as far as known, when the group before this one was lost.

    >>> step_before([Failure(1.0, "lost worker 0", "", step=7, group=1)], group=2)
    7

    Returns:
        None if nothing was lost between the two groups.
    """
    steps = [each.step for each in failures if each.group == group - 1 > 0]
    return max(steps, default=None)
