"""What a training worker tells about itself: that its group has made a step, and where it is."""

from typing_extensions import override

from raysl import distributed as dist
from raysl.cluster.board import Board
from raysl.methods.method import StepOutput
from raysl.runs.failures import FailureNotes, Position
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run

_run: Run | None = None
"""The run that this process trains."""


class Presence(Callback):
    """Notes the first step of this group of workers, which from then on can save a checkpoint when asked to stop."""

    def __init__(self, board: Board) -> None:
        self.notes = FailureNotes(board)
        self.group, _ = self.notes.group()
        self.is_noted = not dist.is_main()

    @override
    def on_train_start(self, run: Run) -> None:
        global _run
        _run = run

    @override
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        if not self.is_noted:
            self.is_noted = True
            self.notes.note_begun(self.group)


def position() -> Position:
    """Return where this worker is; another thread may train meanwhile."""
    return {"step": 0 if _run is None else _run.state.step, "collectives": dist.num_collectives()}
