"""What a run's controller, its workers and its driver tell each other about groups of workers and what was lost."""

from dataclasses import asdict, dataclass
from typing import Literal, TypedDict

from raysl.cluster.board import Board

Phase = Literal["waiting", "working", "done"]
"""Whether workers are there: none yet or being replaced, there, or at the end of their work."""


class Position(TypedDict):
    """Where a worker is.

    Attributes:
        step: updates done.
        collectives: collective operations that it has begun.
    """

    step: int
    collectives: int


@dataclass(frozen=True)
class Failure:
    """Something that was lost.

    Args:
        time: in seconds since 1970.
        text: what, where, why, and what follows, in one line.
        step: updates that were done, as far as known.
        group: number of the group of workers that ended with it; 0 if none did.
        is_retried: whether the run goes on.
    """

    time: float
    text: str
    dump: str
    step: int = 0
    group: int = 0
    is_retried: bool = True


class FailureNotes:
    """The notes of a run about its groups of workers."""

    def __init__(self, board: Board) -> None:
        self.board = board

    def write_group(self, number: int, phase: Phase) -> None:
        """Note what the newest group of workers does."""
        self.board.write("group", {"number": number, "phase": phase})

    def group(self) -> tuple[int, Phase]:
        """Return number and phase of the newest group of workers; (0, waiting) before the first."""
        note = self.board.read("group") or {"number": 0, "phase": "waiting"}
        return note["number"], note["phase"]

    def note_begun(self, group: int) -> None:
        """Note that a group has made a step, so that it can save a checkpoint when it is asked to stop."""
        self.board.write("begun", group)

    def can_save(self) -> bool:
        """Whether a group of workers is there that has made a step."""
        number, phase = self.group()
        return phase == "working" and self.board.read("begun") == number

    def add_pids(self, pids: list[int]) -> None:
        """Note processes of training workers and of their controller, whose end the controller or the driver tells."""
        self.board.write("pids", sorted({*self.pids(), *pids}))

    def pids(self) -> set[int]:
        """Return the processes that were noted so far."""
        return set(self.board.read("pids") or ())

    def add(self, failure: Failure) -> None:
        """Note a failure."""
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


def step_before(failures: list[Failure], group: int) -> int | None:
    """Return the updates that were done, as far as known, when the group before this one was lost.

    >>> step_before([Failure(1.0, "lost worker 0", "", step=7, group=1)], group=2)
    7

    Args:
        failures: all so far.
        group: number of the new group of workers.

    Returns:
        None if nothing was lost between the two groups.
    """
    steps = [each.step for each in failures if each.group == group - 1 > 0]
    return max(steps, default=None)
