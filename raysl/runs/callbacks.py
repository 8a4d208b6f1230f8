"""Callbacks of training workers on Ray: numbers for its dashboard, notes of progress, checkpoints for new nodes."""

import os
import threading

import ray
import ray.util
from ray.util.metrics import Gauge
from typing_extensions import override

from raysl import distributed as dist
from raysl.cluster.failures import Worker
from raysl.cluster.names import ray_name
from raysl.cluster.resources import places
from raysl.config.schema import RunConfig
from raysl.methods.method import StepOutput
from raysl.runs.failures import FailureNotes, pack_actor
from raysl.schedule import Step
from raysl.storage.addresses import cut
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.callbacks.stop import ask_to_save

_GAUGES = {
    "step": ("raysl_step", "Updates that the run has done."),
    "images_per_s": ("raysl_images_per_second", "Images that all workers train on in a second."),
    "loss": ("raysl_loss", "Loss of the last logged step."),
    "data_wait": ("raysl_data_wait", "Share of the step time that workers wait for data, 0 to 1."),
    "step_s": ("raysl_step_seconds", "Seconds of a step."),
}
"""Name and description of each gauge, by the name of the number in a logged line."""


def tags_of(config: RunConfig, is_trial: bool) -> dict[str, str]:
    """Return the tags of a run's metrics, `run` and `trial`; `trial` is empty but in a sweep, whose name is `run`."""
    if not is_trial:
        return {"run": ray_name(config.name), "trial": ""}
    return {"run": ray_name(cut(config.storage.rstrip("/"))[1]), "trial": ray_name(config.name)}


class RayMetrics(Callback):
    """Hands the logged lines of the main rank to Ray's dashboard and Prometheus, as `ray_raysl_loss` and so on."""

    def __init__(self, tags: dict[str, str]) -> None:
        super().__init__()
        self.tags = tags
        self.gauges: dict[str, Gauge] = {}

    @override
    def on_train_start(self, run: Run) -> None:
        self._set({"step": run.state.step})

    @override
    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        self._set({"step": step.index, **line})

    def _set(self, numbers: dict[str, float]) -> None:
        if not dist.is_main():
            return
        for name in _GAUGES.keys() & numbers.keys():
            if name not in self.gauges:
                gauge = Gauge(*_GAUGES[name], tag_keys=tuple(self.tags))
                self.gauges[name] = gauge.set_default_tags(self.tags)
            self.gauges[name].set(numbers[name])


def note_place(notes: FailureNotes) -> None:
    """Note where this worker is, for the controller and the driver of its run."""
    context = ray.get_runtime_context()
    actor = pack_actor(context.current_actor)
    notes.note_handle("placement_group", ray.util.get_current_placement_group())
    notes.note_worker(dist.rank(), Worker(ray.util.get_node_ip_address(), os.getpid(), context.get_node_id(), actor))


NOTE_EVERY_S = 0.3


class Presence(Callback):
    """Notes the first step of this group of workers, which from then on can save a checkpoint when asked to stop.

    A thread of the main rank notes each step soon after it, so that no step waits for the head of the cluster.
    """

    def __init__(self, notes: FailureNotes) -> None:
        self.notes = notes
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


LOOK_EVERY_S = 10.0
"""Seconds between looks for nodes that have come; Ray Train looks as often."""
SAVES = 12
"""Checkpoints at most, one a look, until Ray Train starts more workers on new nodes, or has shown that it does not."""


class SaveForNewNodes(Callback):
    """Saves checkpoints of an elastic run from when nodes have come until Ray Train starts more workers there.

    Ray Train starts them from the newest checkpoint without asking the run.
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
