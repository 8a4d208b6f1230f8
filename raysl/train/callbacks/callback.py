"""What observes a run."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from raysl import distributed as dist
from raysl.config.schema import CallbackConfig
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.method import StepOutput
from raysl.plan.plan import TrainPlan
from raysl.schedule import Step
from raysl.train.batches import BatchStream, some_images
from raysl.train.files import note_event
from raysl.train.reporter import Reporter
from raysl.train.state import TrainState

log = logging.getLogger("raysl")


class Run:
    """What callbacks see of a run, and what they may do to it: log numbers, write files, and ask it to stop.

    Attributes:
        state: what is trained.
        plan: how.
        metrics: the newest value of every number logged so far.
        line: what has been logged at this step.
        batch: this rank's rows of the step at hand; None before the first one.
        stopped: the reason given to `stop` or `finish`, or None.
        callback_s: seconds that this start has spent in callbacks after its steps.
    """

    def __init__(
        self,
        state: TrainState,
        plan: TrainPlan,
        reporter: Reporter | None = None,
        stream: BatchStream | None = None,
    ) -> None:
        self.state = state
        self.plan = plan
        self.metrics: dict[str, float] = {}
        self.line: dict[str, float] = {}
        self.batch: Batch | None = None
        self.stopped: str | None = None
        self.callback_s = 0.0
        self._reporter = reporter
        self._stream = stream

    def is_log_due(self, step: Step) -> bool:
        """Whether a line is logged at `step`, the point behind an update."""
        return self.plan.log_every.is_due(step) or step.index == step.total

    def log(self, numbers: dict[str, float]) -> None:
        """Add numbers to the line of this step. All ranks log the same names at the same steps."""
        self.line.update(numbers)
        self.metrics.update(numbers)

    def stop(self, reason: str) -> None:
        """End training after this step, with a checkpoint; the same command goes on from there. All ranks must ask at
        the same step."""
        self.stopped = reason

    def finish(self, reason: str) -> None:
        """End the run after this step for good: it counts as finished, and is measured. All ranks must ask at the same
        step."""
        self.stopped = self.state.ended = reason

    def images(self, most: int) -> Iterator[Batch]:
        """This rank's part of at most `most` training images, an even share of the dataset's order, without
        augmentation, as the group "image" of one view. Where `fit` was given a list of batches: the first view of its
        first images.

        Raises:
            ConfigError: if the run has no batches, outside of `fit`.
        """
        if self._stream is None:
            raise ConfigError("this Run has no batches; the one that fit hands to its callbacks has")
        return some_images(self._stream, most, self.state.device)

    @contextmanager
    def writing(self) -> Iterator[Path]:
        """The local folder for files of the run, which go where the run is kept; for the main rank alone. A disk that
        is full ends the run with a word about it.

        Raises:
            ConfigError: if nothing is kept.
        """
        if self._reporter is None:
            raise ConfigError(_NO_FOLDER)
        with self._reporter.writing() as folder:
            if folder is None:
                raise ConfigError(_NO_FOLDER)
            folder.mkdir(parents=True, exist_ok=True)
            yield folder

    def note(self, event: str) -> None:
        """Tell the user in a sentence, kept with the run where it keeps files; the main rank alone does."""
        if not dist.is_main():
            return
        if self._reporter is None:
            log.info(event)
            return
        with self._reporter.writing() as folder:
            if folder is None:
                log.info(event)
            else:
                note_event(folder, event)

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Time spent inside counts as that of callbacks."""
        start = time.perf_counter()
        yield
        self.callback_s += time.perf_counter() - start


_NO_FOLDER = "a callback writes files, and this run keeps none; give LocalReporter a folder"


class Callback:
    """Observes training on every rank; it touches neither weights nor gradients. Does nothing unless overridden.

    One that has settings nests a frozen `Config`; made from a run's settings or without any, `config` is one of them.

    Attributes:
        config: settings.
        key: under which its state is kept; None: the name of its class.
    """

    Config: ClassVar[type[CallbackConfig]] = CallbackConfig
    key: str | None = None

    def __init__(self, config: CallbackConfig | None = None) -> None:
        self.config: Any = self.Config() if config is None else config

    @property
    def state_key(self) -> str:
        """Where a checkpoint keeps its state."""
        return self.key or type(self).__name__

    def on_train_start(self, run: Run) -> None:
        """Before the first step of this start."""

    def on_backward(self, run: Run, step: Step) -> None:
        """When gradients are complete, over ranks too, before they are clipped; `step` is the point before the
        update."""

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """After an update; `step` is the point behind it."""

    def on_epoch_end(self, run: Run, step: Step) -> None:
        """After the last update of an epoch."""

    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        """After the other callbacks of a step at which something was logged."""

    def on_non_finite(self, run: Run, step: Step) -> None:
        """On all ranks when the loss of a step is not finite on some rank, before that ends the run; `step` is the
        point before its update."""

    def before_checkpoint(self, run: Run) -> None:
        """On all ranks, when a checkpoint is about to be saved."""

    def on_checkpoint(self, run: Run, folder: Path) -> None:
        """When a checkpoint is about to be written to a local folder, on the main rank; what is put there joins it."""

    def on_train_end(self, run: Run) -> None:
        """After the last step."""

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart: numbers, text and tensors only."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
