"""Training of any method on a pretended GPU: `trained(name)` runs `fit` over digits and returns what was seen."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from torch import Tensor
from torch.utils._pytree import tree_map_only

from raysl import distributed as dist
from raysl.benchmarks.online_knn import OnlineKNN
from raysl.checkpoint.tensors import save_tensors
from raysl.data.decode.corrupt import CorruptLog
from raysl.data.source import make_source
from raysl.data.stream import loader as loader_module
from raysl.data.stream.loader import LocalBatches
from raysl.plan.plan import TrainPlan
from raysl.train import LocalReporter, fit
from raysl.train.callbacks.callback import Callback
from raysl.train.callbacks.corrupt_images import CorruptImages
from raysl.train.callbacks.held_out import HeldOut
from raysl.train.callbacks.logs import MetricsLog
from raysl.train.callbacks.online_probe import OnlineProbe
from raysl.train.callbacks.stop import StopRequest
from raysl.train.callbacks.watch import CollapseWatch
from raysl.train.disk import Disk
from raysl.train.prepare import Prepared
from raysl.train.state import TrainState
from tests.fake_gpu.pretended import pretended_gpu
from tests.fake_gpu.watch import CUDA, Event, Watch, is_on_gpu
from tests.methods.properties import small

SETTINGS = ("train.epochs=1", "train.log_every=100st", "train.checkpoint_every=100st", "data.lanes=4")
"""Four steps, of which the last is logged and saved."""
AROUND = frozenset({"", "before epoch", "save", "start", "end"})
"""Phases that are no part of a step."""


@dataclass(frozen=True)
class Seen:
    """What a watch saw of a training.

    Args:
        watch: with all its events; an event's step counts the updates done.
        plan: of the training.
        stay: names of parameters and buffers that did not move to the GPU.
    """

    watch: Watch
    plan: TrainPlan
    stay: list[str]

    def in_steps(self) -> list[Event]:
        """Events of steps, without those of the line that the last step logs."""
        last = self.plan.total_steps
        found = (event for event in self.watch.events if is_in_step(event))
        return [event for event in found if not (event.phase == "observe" and event.step == last)]

    def before_the_last(self) -> list[Event]:
        """Events of all steps but the last, in which everything is due that happens every so often."""
        return [event for event in self.in_steps() if number_of(event) < self.plan.total_steps - 1]

    def of_the_last(self) -> list[Event]:
        """Events of the last step, with what is due then."""
        found = (event for event in self.watch.events if is_in_step(event))
        return [event for event in found if number_of(event) == self.plan.total_steps - 1]

    def kernels(self, of: str | None = None) -> float:
        """Kernels of a step, or of one of its phases."""
        counts = self.watch.kernels.items()
        num = sum(num for phase, num in counts if (phase == of if of else phase not in AROUND))
        return num / self.plan.total_steps


def is_in_step(event: Event) -> bool:
    """Whether an event belongs to a step, rather than to what comes before, between and after steps."""
    return event.phase not in AROUND


def number_of(event: Event) -> int:
    """Return the number of an event's step: callbacks see it when it is counted already."""
    return event.step - (event.phase == "observe")


def trained(name: str, *words: str, callbacks: Sequence[Callback] = ()) -> Seen:
    """Train a method of `configs/digits` for four steps, with a worker's own callbacks and further ones.

    Args:
        name: of the method.
        words: further settings.
        callbacks: called behind those of a worker.
    """
    return trained_run(on_gpu(small(name, *SETTINGS, *words)), callbacks)


def trained_run(run: Prepared, callbacks: Sequence[Callback] = (), is_saved: bool = True) -> Seen:
    """Train any run of `on_gpu`; one that is not saved needs no memory for its weights on the CPU."""
    save = nullcontext() if is_saved else mock.patch("raysl.train.loop._save", return_value=None)
    with TemporaryDirectory() as folder, pretended_gpu() as watch, save:
        state = TrainState.create(run.setup, CUDA, classes=run.classes)
        tensors = [*state.method.named_parameters(), *state.method.named_buffers()]
        watch.clear()
        watch.clock = lambda: state.step
        logs = Path(folder)
        own = [
            CorruptImages(CorruptLog(), Disk(logs), 10),
            StopRequest(lambda: False),
            CollapseWatch(Disk(logs)),
        ]
        plan = run.setup.plan
        with batches_on_this_thread(), _saved_from_the_gpu():
            stream = LocalBatches(run.loader, device=CUDA)
            every = [*own, *_measuring(run), *run.callbacks, *callbacks, MetricsLog(logs)]
            fit(state, dist.data_parallel(state.method), plan, stream, callbacks=every, reporter=LocalReporter(logs))
    return Seen(watch, plan, [name for name, values in tensors if not is_on_gpu(values)])


def _measuring(run: Prepared) -> list[Callback]:
    """Return the measurements of a run on held-out images, as a worker makes them."""
    knn_every, eval_every = run.config.train.online_knn_every, run.config.train.eval_every
    probe_every = run.config.train.online_probe
    if knn_every is None and eval_every is None and probe_every is None:
        return []
    test = make_source(run.config.data).required("test")
    made: list[Callback] = []
    if knn_every is not None:
        made.append(OnlineKNN(run.loader, test, run.setup.data.num_classes, knn_every))
    if probe_every is not None:
        blocks = LocalBatches(replace(run.loader, held_out=test)).chosen
        made.append(OnlineProbe(run.setup.data.num_classes, probe_every, 1e-3, (test, blocks)))
    if eval_every is not None:
        made.append(HeldOut(run.loader, test, eval_every))
    return made


def on_gpu(run: Prepared) -> Prepared:
    """Return a run with the plan of a GPU and views that are augmented there."""
    plan = TrainPlan.from_config(run.config, run.setup.data.num_samples, dist.world(), "cuda", run.setup.plan.lanes)
    loader = replace(run.loader, augment_in_task=False)
    return replace(run, loader=loader, setup=replace(run.setup, plan=plan))


def batches_on_this_thread() -> "mock._patch[object]":
    """Have batches made by the thread that trains, which is the one that is watched."""
    return mock.patch.object(loader_module, "batches_for", lambda source, device: source)


def _saved_from_the_gpu() -> "mock._patch[object]":
    """Have checkpoints copy tensors to the CPU first, as `torch.save` does in C++ with those of a GPU."""

    def save(tensors: dict[str, object], file: Path) -> None:
        save_tensors(tree_map_only(Tensor, lambda values: values.cpu(), tensors), file)

    return mock.patch("raysl.train.state.save_tensors", save)
