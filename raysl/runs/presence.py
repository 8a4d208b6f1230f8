"""What a training worker tells the controller and the driver of its run: where it is, and how far."""

import os
import threading

import ray
import ray.util
from typing_extensions import override

from raysl import distributed as dist
from raysl.cluster.board import Board
from raysl.cluster.failures import Worker
from raysl.methods.method import StepOutput
from raysl.runs.failures import FailureNotes, pack_actor
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run

NOTE_EVERY_S = 0.3


def note_place(notes: FailureNotes) -> None:
    """Note where this worker is."""
    context = ray.get_runtime_context()
    actor = pack_actor(context.current_actor)
    notes.note_handle("placement_group", ray.util.get_current_placement_group())
    notes.note_worker(dist.rank(), Worker(ray.util.get_node_ip_address(), os.getpid(), context.get_node_id(), actor))


class Presence(Callback):
    """Notes the first step of this group of workers, which from then on can save a checkpoint when asked to stop.

    A thread of the main rank notes each step soon after it, so that no step waits for the head of the cluster.
    """

    def __init__(self, board: Board) -> None:
        self.notes = FailureNotes(board)
        self.group, _ = self.notes.group()
        self.is_noted = not dist.is_main()
        self.has_ended = threading.Event()
        self.step = 0

    @override
    def on_train_start(self, run: Run) -> None:
        self.step = run.state.step
        if dist.is_main():
            threading.Thread(target=self._note_steps, name="raysl-presence", daemon=True).start()

    @override
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        self.step = step.index
        if not self.is_noted:
            self.is_noted = True
            self.notes.note_begun(self.group)

    @override
    def on_train_end(self, run: Run) -> None:
        self.has_ended.set()

    def _note_steps(self) -> None:
        noted = -1
        while not self.has_ended.wait(NOTE_EVERY_S):
            if self.step != noted:
                noted = self.step
                self.notes.note_step(noted)
