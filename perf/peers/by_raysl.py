"""raysl's own loop in one process, without Ray: what `raysl.pretrain` does on each worker."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from perf.peers.task import Clock, Features, Task, frozen
from raysl import distributed as dist
from raysl.data.batch import Batch
from raysl.data.stream.loader import LocalBatches
from raysl.train import LocalReporter, fit
from raysl.train.prepare import Prepared, prepare
from raysl.train.state import TrainState


def train(task: Task) -> tuple[Features, dict[str, float]]:
    """Train, and return the features of the exported backbone and the seconds of the loop."""
    run = prepared(task)
    loader = replace(run.loader, augment_in_task=True)
    state = TrainState.create(run.setup, classes=run.classes)
    clock = Clock(task)
    stream, reporter = Watched(LocalBatches(loader), clock), LocalReporter(show_progress=False)
    fit(state, dist.data_parallel(state.method), run.setup.plan, stream, reporter=reporter)
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


class Watched:
    """Batches whose requests a clock sees."""

    def __init__(self, batches: LocalBatches, clock: Clock) -> None:
        self.batches, self.clock = batches, clock

    def from_step(self, step: int) -> Iterator[Batch]:
        """See `BatchStream.from_step`."""
        stream = self.batches.from_step(step)
        while True:
            self.clock.begin(step)
            yield next(stream)
            step += 1

    def plain(self) -> Iterator[Batch]:
        """See `BatchStream.plain`."""
        return self.batches.plain()
