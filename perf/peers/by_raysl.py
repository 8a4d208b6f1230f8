"""raysl's own loop in one process, without Ray: what `raysl.pretrain` does on each worker."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from typing_extensions import override

from perf.peers.task import Clock, Features, Task, frozen
from raysl import distributed as dist
from raysl.data.stream.loader import LocalBatches
from raysl.methods.method import StepOutput
from raysl.schedule import Step
from raysl.train import LocalReporter, fit
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.prepare import Prepared, prepare
from raysl.train.state import TrainState


def train(task: Task) -> tuple[Features, dict[str, float]]:
    """Train, and return the features of the exported backbone and the seconds of the loop."""
    run = prepared(task)
    loader = replace(run.loader, augment_in_task=True)
    state = TrainState.create(run.setup, classes=run.classes)
    clock = Clock(task)
    model, stream, reporter = dist.data_parallel(state.method), LocalBatches(loader), LocalReporter(show_progress=False)
    fit(state, model, run.setup.plan, stream, callbacks=[Timed(clock)], reporter=reporter)
    times = clock.stop()
    return frozen(state.exported(as_copy=True)), times


def prepared(task: Task) -> Prepared:
    """Prepare raysl's run on the first images of the training split, which the others learn from.

    `data.limit` would take images at even distances instead.
    """
    num = len(task.encoded("train", task.images)[0])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "first.txt"
        path.write_text("".join(f"{row}\n" for row in range(num)))
        data = replace(task.config.data, limit=None, subset=str(path), subset_by="index")
        return prepare(replace(task.config, data=data))


class Timed(Callback):
    """Tells a clock of each update that begins."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    @override
    def on_train_start(self, run: Run) -> None:
        self.clock.begin(0)

    @override
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        self.clock.begin(step.index)
