"""Notes that a run's controller, workers and driver exchange about groups of workers and their failures.

Ray Train's controller imports this module, so it imports nothing that trains.
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
"""Why a run is not tried again: an exception in code, wrong settings or images, or too many failures."""
Phase = Literal["waiting", "working", "done"]
"""State of the newest group of workers: not there yet or being replaced, training, or finished."""


@dataclass(frozen=True)
class Outcome:
    """How training ended; rank 0 returns it to the driver.

    Args:
        failure: reason of a failure that a new attempt would repeat, or None.
        is_input_wrong: whether the user's settings are that reason.
        ended: reason for which a callback ended the run for good before its last step, or None.
    """

    step: int
    failure: str | None = None
    is_input_wrong: bool = False
    ended: str | None = None


@dataclass(frozen=True)
class Failure:
    """The loss of a worker, a data task, a node or the controller.

    Args:
        time: seconds since 1970.
        text: one line on what happened, where and why, and what follows.
        dump: tracebacks, and the messages of Ray.
        step: updates that were done, as far as known.
        group: number of the group of workers that the failure ended; 0 if it ended none.
        end: reason for not trying the run again, or None if it is tried again.
        saved: last saved step; None if the failure does not count towards `train.max_failures`.
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
    """Number of failures of a run since it last saved a new step.

    Args:
        most: number of failures after which the run is still tried again; -1 for no limit.
        step: last saved step.

    >>> failures = FailureCount(most=1, step=10)
    >>> [failures.add(saved) for saved in (10, 15, 15)]
    [True, True, False]
    """

    most: int
    step: int = 0
    num: int = 0

    @classmethod
    def of(cls, failures: Sequence[Failure], most: int, step: int) -> "FailureCount":
        """Count the failures of a start that went on from `step`."""
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
    """Notes on the board of a run about its groups of workers."""

    def __init__(self, board: Board) -> None:
        self.board = board

    def begin_group(self) -> None:
        """Note that another group of workers starts; the controller calls this.

        If the group before ended because the cloud takes back a node, no worker raised an error. Its failure is noted
        here.
        """
        number, phase = self.group()
        if phase == "working" and self.has_notice(number):
            text = "lost workers: a node is taken back by the cloud; this does not count as a failure"
            self.add(Failure(time.time(), text, "", self.step(), number))
        self.note_pid(os.getpid())
        self.write_group(number + 1, "working")

    def write_group(self, number: int, phase: Phase) -> None:
        """Note the phase of a group of workers, which is now the newest."""
        self.board.write("group", {"number": number, "phase": phase})

    def group(self) -> tuple[int, Phase]:
        """Return number and phase of the newest group of workers; (0, "waiting") before the first."""
        note = self.board.read("group") or {"number": 0, "phase": "waiting"}
        return note["number"], note["phase"]

    def note_worker(self, rank: int, worker: Worker) -> None:
        """Note where a worker of the present group is."""
        self.note_pid(worker.pid)
        self.board.write(f"worker/{self.group()[0]}/{rank}", asdict(worker))

    def workers(self, group: int) -> dict[int, Worker]:
        """Return the workers of a group, by rank, that have called `note_worker`."""
        names = self.board.names(f"worker/{group}/")
        return {int(name.rpartition("/")[2]): Worker(**self.board.read(name)) for name in names}

    def note_step(self, step: int) -> None:
        """Note the number of updates done."""
        self.board.write("step", step)

    def step(self) -> int:
        """Return the number of updates done, as last noted."""
        return int(self.board.read("step") or 0)

    def note_begun(self, group: int) -> None:
        """Note that a group has done a step: from then on it can save a checkpoint when it is asked to stop."""
        self.board.write("begun", group)

    def can_save(self) -> bool:
        """Whether the newest group of workers trains and has done a step."""
        number, phase = self.group()
        return phase == "working" and self.board.read("begun") == number

    def note_notice(self) -> None:
        """Note that the cloud is about to take away a node of the present group."""
        self.board.write("notice", self.group()[0])

    def has_notice(self, group: int) -> bool:
        """Whether `note_notice` was called for a group."""
        return bool(self.board.read("notice") == group)

    def note_pid(self, pid: int) -> None:
        """Note the process of a worker or of the controller; the driver drops Ray's messages about its end."""
        self.board.write(f"pid/{pid}", pid)

    def pids(self) -> set[int]:
        """Return the ids of the processes noted so far."""
        return {int(name.rpartition("/")[2]) for name in self.board.names("pid/")}

    def note_handle(self, name: Literal["controller", "placement_group"], handle: Any) -> None:
        """Note the actor that is the controller of this start, or the placement group of its workers."""
        self.board.write(name, pack_actor(handle))

    def handle(self, name: Literal["controller", "placement_group"]) -> Any:
        """Return the handle that `note_handle` has noted; None before that."""
        note = self.board.read(name)
        return None if note is None else unpack_actor(note)

    def add(self, failure: Failure) -> None:
        """Note a failure."""
        # leading zeros make the order of names that of the times
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
    """Return the number of updates done, as far as known, when the group before this one was lost.

    >>> step_before([Failure(1.0, "lost worker 0", "", step=7, group=1)], group=2)
    7

    Returns:
        None if there was no failure between the two groups.
    """
    steps = [each.step for each in failures if each.group == group - 1 > 0]
    return max(steps, default=None)
