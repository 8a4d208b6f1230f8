"""A checkpoint for workers that are about to be started anew, because their cluster has grown."""

import threading

import ray
from typing_extensions import override

from raysl import distributed as dist
from raysl.cluster.resources import places
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.callbacks.stop import ask_to_save

LOOK_EVERY_S = 10.0
"""Seconds between looks for nodes that have come; Ray Train looks as often."""
SAVES = 12
"""Checkpoints at most, one a look, until Ray Train starts more workers on new nodes, or has shown that it does not."""


class SaveForNewNodes(Callback):
    """Saves checkpoints of an elastic run from when nodes have come until Ray Train starts more workers there.

    Ray Train starts them from the newest checkpoint without asking the run.

    Args:
        resources: amounts that a worker needs, by name.
        most: largest number of workers.
    """

    def __init__(self, resources: dict[str, float], most: int) -> None:
        self.resources = resources
        self.most = most
        self.has_ended = threading.Event()

    @override
    def on_train_start(self, run: Run) -> None:
        if dist.is_main() and dist.world() < self.most:
            threading.Thread(target=self._look, name="raysl-new-nodes", daemon=True).start()

    @override
    def on_train_end(self, run: Run) -> None:
        self.has_ended.set()

    def _look(self) -> None:
        known, saves = self._places(), 0
        while not self.has_ended.wait(LOOK_EVERY_S):
            now = self._places()
            saves = SAVES if now > known else saves - 1
            known = now
            if saves > 0 and now > dist.world():
                ask_to_save()

    def _places(self) -> int:
        nodes = (node["Resources"] for node in ray.nodes() if node["Alive"])
        return sum(places(node, self.resources) for node in nodes)
