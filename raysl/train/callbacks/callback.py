"""Callbacks, which observe a run, and the names that the file of a callback needs beside them."""

import inspect
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

from raysl import distributed as dist
from raysl.components import resolve
from raysl.config.schema import CallbackConfig as CallbackConfig
from raysl.config.schema import RunConfig
from raysl.data.batch import Batch
from raysl.errors import ConfigError as ConfigError
from raysl.errors import log
from raysl.methods.method import StepOutput as StepOutput
from raysl.plan.plan import TrainPlan
from raysl.schedule import Step as Step
from raysl.train.batches import BatchStream, some_images
from raysl.train.file_names import note_event
from raysl.train.late import Agreement
from raysl.train.reporter import Reporter
from raysl.train.state import TrainState

OF_LOOP = ("step", "epoch", "loss", "lr", "loss_scale", "images_per_s", "step_s", "data_wait", "memory_gb")
"""Names of the numbers that the loop logs."""


def check_names(who: str, names: Iterable[str]) -> None:
    """Refuse to log numbers under names of the loop's own, which they would replace."""
    if taken := sorted(set(names) & set(OF_LOOP)):
        raise ConfigError(f"{who} logs {', '.join(taken)}, which every run logs itself; choose other names")


def check_callbacks(callbacks: object) -> None:
    """Refuse what is not a list of callbacks, such as one alone or a class of them."""
    if not isinstance(callbacks, list | tuple):
        raise ConfigError(f"callbacks={callbacks!r} is no list; give callbacks=[...]")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(f"callbacks: {callback!r} is no callback; give an object such as Windows(), not a class")


class Run:
    """A run as callbacks see it: they may log numbers, write files, and stop it.

    Attributes:
        state: method, optimizer and step.
        plan: number of steps, epochs and batch size.
        metrics: the newest value of every number logged so far.
        line: the numbers logged at this step.
        batch: this rank's rows of the current step; None before the first one.
        stopped: the reason given to `stop` or `finish`, or None.
        is_save_asked: whether a checkpoint is saved after this step because `save` was called.
        callback_s: seconds that this start has spent in callbacks after its steps.
        agreement: exchanges flags between ranks, once a step.
    """

    def __init__(
        self, state: TrainState, plan: TrainPlan, reporter: Reporter | None = None, stream: BatchStream | None = None
    ) -> None:
        self.state = state
        self.plan = plan
        self.metrics: dict[str, float] = {}
        self.line: dict[str, float] = {}
        self.batch: Batch | None = None
        self.stopped: str | None = None
        self.is_save_asked = False
        self.callback_s = 0.0
        self.agreement = Agreement()
        self._reporter = reporter
        self._stream = stream

    def is_log_due(self, step: Step) -> bool:
        """Return whether a line is logged after the update that led to `step`."""
        return self.plan.log_every.is_due(step) or step.index == step.total

    def log(self, numbers: dict[str, float]) -> None:
        """Add numbers to the line of this step. All ranks must log the same names at the same steps.

        Raises:
            ConfigError: if a name is one of the loop's own, see `OF_LOOP`.
        """
        check_names("a callback", numbers)
        self.add(numbers)

    def add(self, numbers: dict[str, float]) -> None:
        """`log` for the loop itself, under any name."""
        self.line.update(numbers)
        self.metrics.update(numbers)

    def save(self) -> None:
        """Save a checkpoint after this step. All ranks must call it at the same step."""
        self.is_save_asked = True

    def stop(self, reason: str) -> None:
        """End training after this step, with a checkpoint; the same command goes on from there.

        All ranks must call it at the same step.
        """
        self.stopped = reason

    def finish(self, reason: str) -> None:
        """End the run after this step for good: it counts as finished, and is measured.

        All ranks must call it at the same step.
        """
        self.stopped = self.state.ended = reason

    def images(self, most: int) -> Iterator[Batch]:
        """Yield this rank's part of at most `most` training images, a sample of the dataset, without augmentation.

        The images are at even distances, or those of a few whole units of a dataset that is read in units. Each batch
        has the group "image" with one view. Where `fit` was given a list of batches, these are the first views of its
        first images.

        Raises:
            ConfigError: if the run has no batches, outside of `fit`.
        """
        if self._stream is None:
            raise ConfigError("this Run has no batches; the one that fit hands to its callbacks has")
        return some_images(self._stream, most, self.state.device)

    @contextmanager
    def writing(self) -> Iterator[Path]:
        """Yield the local folder for files of the run, which are uploaded with its logs; for the main rank only.

        A full disk ends the run with a message.

        Raises:
            ConfigError: if the run keeps no files.
        """
        with self._folder() as folder:
            if folder is None:
                raise ConfigError("a callback writes files, and this run keeps none; give LocalReporter a folder")
            folder.mkdir(parents=True, exist_ok=True)
            yield folder

    def note(self, event: str) -> None:
        """Show the user a sentence and keep it with the run's files; does nothing on other ranks than the main one."""
        if not dist.is_main():
            return
        with self._folder() as folder:
            if folder is None:
                log.info(event)
            else:
                note_event(folder, event)

    def _folder(self) -> AbstractContextManager[Path | None]:
        return nullcontext() if self._reporter is None else self._reporter.writing()

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Count the time spent inside as time of callbacks."""
        start = time.perf_counter()
        yield
        self.callback_s += time.perf_counter() - start


class Callback:
    """Observes training on every rank, without changing weights or gradients; its methods do nothing unless overridden.

    A callback with settings nests a frozen `Config`.

    Attributes:
        config: settings, an instance of `Config`.
        key: key of its state in checkpoints; None stands for the name of its class.

    >>> class Print(Callback):
    ...     def on_log(self, run, step, line):
    ...         print(step.index, line["loss"])
    >>> Print().state_key
    'Print'
    """

    Config: ClassVar[type[CallbackConfig]] = CallbackConfig
    key: str | None = None
    stored: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that must survive a restart: numbers, text and tensors."""

    def __init__(self, config: CallbackConfig | None = None) -> None:
        self.config: Any = self.Config() if config is None else config

    @property
    def state_key(self) -> str:
        """Key of its state in checkpoints."""
        return self.key or type(self).__name__

    def on_train_start(self, run: Run) -> None:
        """Before the first step of this start."""

    def on_backward(self, run: Run, step: Step) -> None:
        """After gradients are reduced over ranks, before they are clipped; `step` is the one before the update."""

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """After an update; `step` is the one after it."""

    def on_epoch_end(self, run: Run, step: Step) -> None:
        """After the last update of an epoch."""

    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        """After `on_step_end` of all callbacks, at steps that log a line."""

    def on_non_finite(self, run: Run, step: Step) -> None:
        """On all ranks before a loss that is not finite ends the run; `step` is the one before its update."""

    def before_checkpoint(self, run: Run) -> None:
        """On all ranks, before a checkpoint is saved."""

    def on_checkpoint(self, run: Run, folder: Path) -> None:
        """On the main rank, before a checkpoint is written to a local folder; files put there become part of it."""

    def on_train_end(self, run: Run) -> None:
        """After the last step."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive a restart, numbers, text and tensors only; default: the attributes in `stored`."""
        return {name: getattr(self, name) for name in self.stored}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name in self.stored:
            if name in state:
                setattr(self, name, state[name])


def configured(config: RunConfig) -> tuple[Callback, ...]:
    """Build the callbacks of `config.callbacks`, in that order."""
    callbacks = []
    for key, settings in config.callbacks.items():
        kind = resolve("callback", settings.name)
        if not issubclass(kind, Callback):
            raise ConfigError(f"callbacks.{key}: {kind.__name__} is not a raysl.train.Callback; derive it from that")
        try:
            inspect.signature(kind).bind(settings)
        except TypeError as error:
            raise ConfigError(
                f"callbacks.{key}: {kind.__name__}.__init__ takes other arguments than its settings ({error}); "
                "have it take config, and nest a frozen dataclass Config(CallbackConfig) in it"
            ) from error
        callback = kind(settings)
        callback.key = f"callbacks.{key}"
        callbacks.append(callback)
    return tuple(callbacks)
