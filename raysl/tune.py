"""Runs of raysl as trials of a user's Ray Tune: `Tuner(raysl.tune.trainable(config), param_space=...)`."""

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ray.tune import PlacementGroupFactory, Trainable
from typing_extensions import override

from raysl.checkpoint.files import PREFIX, checkpoint_name, checkpoint_names, newest_whole
from raysl.checkpoint.lineage import read_parents
from raysl.cluster.connection import cluster_resources, connect, share_cluster
from raysl.cluster.resources import TRIAL_CPUS, worker_shape
from raysl.cluster.sent_files import receive_files
from raysl.cluster.settings import use_settings
from raysl.config.arguments import run_config
from raysl.config.load import apply_overrides, load_config
from raysl.config.schema import RunConfig
from raysl.data.dataset_note import DatasetNote
from raysl.errors import ConfigError, RunFailed, RunInUse, Stopped, StorageError, log
from raysl.pretraining import Result, pretrain
from raysl.redact import bare_tree, redact_uri
from raysl.report.stored import plain
from raysl.runs.folder import RunFolder
from raysl.runs.follow import read_events
from raysl.runs.fork import fork
from raysl.schedule import Step
from raysl.storage.folder import absolute, outlast
from raysl.storage.records import read_as
from raysl.sweeps.credentials import keep_credentials_out
from raysl.sweeps.trial import setting, trial_name
from raysl.train.callbacks.logs import parse_metrics
from raysl.train.callbacks.tensorboard import write_hparams
from raysl.train.files import METRICS_FILE

POINTER_FILE = "raysl.json"
KEPT_CHECKPOINTS = 4
"""Smallest number of checkpoints that a trial keeps, so that other trials find the one to go on from."""
STOP_S = 120.0
"""Seconds for a stopped trial to save and free its resources; then its process ends."""
UPLOAD_S = 60.0
"""Seconds to wait for a checkpoint that was noted and is not in the storage yet."""


def trainable(config: RunConfig | str, storage: str | None = None, concurrent: int = 1) -> type[Trainable]:
    """Return the class of trials for a `ray.tune.Tuner`: each trial is a run of raysl.

    The keys of the Tuner's `param_space` are settings, `{"optim.lr": tune.loguniform(0.02, 0.5)}`. A trial is the run
    `<storage>/<name>/trial_<hash of its settings>`, and goes on with that run if it exists. It reports the numbers of
    each checkpoint, with `epoch`, `step` and the `path` of the run, and finally those of the benchmarks. Tune's own
    checkpoints only name those of the run: if a scheduler such as PopulationBasedTraining gives a trial the checkpoint
    of another one, it goes on from there by `raysl.runs.fork`, in a folder named by its settings and that parent. A
    trial that is stopped or paused saves first.

    Connects to the cluster that RAY_ADDRESS names, or starts a private one, unless this process is connected already.

    Args:
        config: base settings of the trials, or the name of a configuration; its `name` names their folder.
        storage: default: the storage of the settings.
        concurrent: number of trials at a time, which share the CPUs; give the Tuner the same
            `TuneConfig(max_concurrent_trials=...)`.

    Raises:
        ConfigError: if a setting is wrong, or so many trials do not fit the cluster.
    """
    base = load_config(config) if isinstance(config, str) else run_config(config)
    base = replace(base, storage=absolute(base.storage if storage is None else storage))
    if concurrent < 1:
        raise ConfigError(f"concurrent={concurrent} is not a number of trials; give 1 or more")
    connect(with_state=True)
    keep_credentials_out()
    use_settings(base.cluster)
    worker_shape(base.train, cluster_resources().shared(concurrent))
    num_kept = max(KEPT_CHECKPOINTS, base.train.keep_checkpoints)
    base = replace(base, train=replace(base.train, keep_checkpoints=num_kept))
    return type("raysl", (RunTrainable,), {"base": base, "concurrent": concurrent, "__doc__": RunTrainable.__doc__})


@dataclass(frozen=True)
class Pointer:
    """The content of a checkpoint of Tune's: the name of a checkpoint of a run.

    Args:
        trial: Tune's name of the trial.
        settings: those that vary, without credentials.
    """

    run: str
    step: int
    trial: str
    settings: dict[str, Any]

    @classmethod
    def read(cls, folder: str) -> "Pointer":
        """Read the pointer in a local folder."""
        return read_as(cls, (Path(folder) / POINTER_FILE).read_bytes(), f"{folder}/{POINTER_FILE}")

    def write(self, folder: str) -> None:
        """Write the pointer into a local folder."""
        (Path(folder) / POINTER_FILE).write_text(json.dumps(asdict(self)))


class RunTrainable(Trainable):
    """A run of raysl as a trial of Ray Tune; `trainable` derives a class with settings.

    It trains in a thread, which goes on while Tune handles a report.
    """

    base: ClassVar[RunConfig]
    concurrent: ClassVar[int]

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """Return the resources of the process that drives the run; workers and data tasks ask for their own."""
        return PlacementGroupFactory([{"CPU": TRIAL_CPUS}])

    @override
    def setup(self, config: dict[str, Any]) -> None:
        """Set the trial's settings; nothing starts before the first step."""
        receive_files()
        share_cluster(self.concurrent)
        self.settings = flatten_space(config)
        self.parent: Pointer | None = None
        self.name = trial_name(self.settings, self.base.seed)
        self.last_step = 0
        self.training: _Training | None = None

    @override
    def load_checkpoint(self, checkpoint: Any) -> None:
        """Go on with the trial's own run, or fork that of another trial or of other settings."""
        pointer = Pointer.read(checkpoint)
        if pointer.trial == self.trial_id and pointer.settings == bare_tree(self.settings):
            self.name, self.last_step = pointer.run, pointer.step
        else:
            self.parent = pointer
            self.name = trial_name(self.settings, self.base.seed, parent=(pointer.run, pointer.step))

    @override
    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Pointer(self.name, self.last_step, self.trial_id, bare_tree(self.settings)).write(checkpoint_dir)

    @override
    def step(self) -> dict[str, Any]:
        """Train until the next checkpoint is saved, or to the end of the run."""
        if self.training is None:
            self.training = _Training(
                self._run(), self.parent, self.last_step or (self.parent.step if self.parent else 0)
            )
        while (saved := self.training.next_saved()) is not None:
            if saved > self.last_step and (numbers := self.training.numbers(saved)) is not None:
                return self._report(saved, numbers)
        result = self.training.result()
        return {**self._report(_parse_step(result.checkpoint), result.metrics), "done": True}

    def _report(self, step: int, numbers: Mapping[str, float]) -> dict[str, Any]:
        """Return what Tune gets to know of a checkpoint, and write the same for TensorBoard."""
        assert self.training is not None
        self.last_step, folder = step, self.training.folder
        metrics = {name: value for name, value in numbers.items() if name not in ("step", "epoch")}
        write_hparams(folder, self.settings, metrics, step)
        position = {"step": step, "epoch": self.training.epoch(step), "path": redact_uri(folder.uri)}
        return {**metrics, **position, "should_checkpoint": True}

    @override
    def cleanup(self) -> None:
        """Have the run save and stop."""
        if self.training is not None and not self.training.end(STOP_S):
            log.warning("%s has not stopped within %.0f s; its process ends", self.name, STOP_S)

    @override
    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take another trial into this process, once the run has stopped."""
        if self.training is not None and not self.training.end(STOP_S):
            return False
        self.setup(new_config)
        return True

    def _run(self) -> RunConfig:
        folder = RunFolder.of(self.base)
        varied = apply_overrides(self.base, [setting(key, value) for key, value in self.settings.items()])
        return replace(varied, storage=folder.uri, name=self.name)


def flatten_space(space: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return the varied settings of a trial by dotted key, with plain numbers in place of numpy's.

    >>> flatten_space({"optim": {"lr": 0.1}, "seed": 3})
    {'optim.lr': 0.1, 'seed': 3}
    """
    settings: dict[str, Any] = {}
    for key, value in space.items():
        inner = f"{above}{key}"
        settings |= flatten_space(value, f"{inner}.") if isinstance(value, Mapping) else {inner: plain(value)}
    return settings


class _Training:
    """A run that trains in its own thread.

    Args:
        parent: the checkpoint that it is forked from, or None.
        reported: step of the last checkpoint that Tune knows of; 0: what the run has saved before is not reported.
    """

    def __init__(self, config: RunConfig, parent: Pointer | None, reported: int = 0) -> None:
        self.config = config
        self.parent = parent
        self.folder = RunFolder.of(config)
        self.stop = threading.Event()
        self.outcome: Result | BaseException | None = None
        events = outlast(partial(read_events, self.folder))
        self.unreported = self._saved_beyond(events, reported)
        self.num_events = len(events)
        self.thread = threading.Thread(target=self._train, name="raysl-trial", daemon=True)
        self.thread.start()

    def _saved_beyond(self, events: list[str], reported: int) -> list[int]:
        """Return the steps of the checkpoints that the run has saved on its way after the last reported one.

        A run trains on while Tune handles a report, and a trial with equal settings may have trained it before. What
        was saved is reported all the same: a scheduler that compares trials at each epoch waits for ever for a trial
        that skips one.
        """
        steps = [_parse_step(event) for event in events if event.startswith(f"saved {PREFIX}")]
        if not steps or reported == 0:
            return []
        train, epoch_len = self.config.train, self._epoch_len
        newest = len(steps) - steps[::-1].index(reported) if reported in steps else 0
        later = (Step(step, train.epochs * epoch_len, epoch_len) for step in steps[newest:] if step > reported)
        # others were saved because the run was stopped
        return [step.index for step in later if train.checkpoint_every.is_due(step)]

    def next_saved(self) -> int | None:
        """Wait for the next checkpoint and return its step, or None when the run has ended."""
        while not self.unreported:
            is_over = not self.thread.is_alive()
            try:
                new = read_events(self.folder)[self.num_events :]
            except StorageError as error:
                log.warning("cannot see how %s goes: %s", self.config.name, error)
                new = []
            self.num_events += len(new)
            self.unreported += [_parse_step(event) for event in new if event.startswith(f"saved {PREFIX}")]
            if is_over and not self.unreported:
                return None
            if not self.unreported:
                self.thread.join(self.folder.look_every_s)
        return self.unreported.pop(0)

    def numbers(self, step: int) -> dict[str, float] | None:
        """Return the newest value of each number up to a step; None at the last one, which `result` covers."""
        if self.is_last(step):
            return None
        numbers: dict[str, float] = {}
        content = outlast(partial(self.folder.read_if_there, METRICS_FILE))
        for line in parse_metrics(content, self.folder.uri_of(METRICS_FILE)):
            if line["step"] <= step:
                numbers |= line
        return numbers

    def epoch(self, step: int) -> float:
        """Return the epochs that are done after a step."""
        return step / self._epoch_len

    def is_last(self, step: int) -> bool:
        """Whether the run ends with a step."""
        train, epoch_len = self.config.train, self._epoch_len
        total = train.epochs * epoch_len
        return step >= (total if train.end is None else min(total, train.end.steps(total, epoch_len)))

    @property
    def _epoch_len(self) -> int:
        note = outlast(partial(DatasetNote.read, self.folder))
        assert note is not None, "claimed before the first step"
        return note.epoch_len

    def result(self) -> Result:
        """Return the result of the run, which has ended."""
        assert self.outcome is not None
        if isinstance(self.outcome, Stopped):  # as a SystemExit it would end the process
            raise RunFailed(str(self.outcome)) from None
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    def end(self, patience_s: float) -> bool:
        """Have the run save and stop; return whether it has within so many seconds."""
        self.stop.set()
        self.thread.join(patience_s)
        return not self.thread.is_alive()

    def _train(self) -> None:
        try:
            while self.outcome is None:
                self._try()
        except BaseException as error:  # noqa: BLE001 - `result` raises it in the thread that Tune calls
            self.outcome = error

    def _try(self) -> None:
        """Train, or wait for a trial with equal settings, which is the same run."""
        try:
            if self.parent is not None:
                self._fork(self.parent)
            self.outcome = pretrain(self.config, show_progress=False, stop=self.stop)
        except RunInUse:
            if not self.folder.wait_until_free(self.stop):
                raise Stopped(f"another process works on {self.config.name}") from None

    def _fork(self, parent: Pointer) -> None:
        source = RunFolder.of(replace(self.config, name=parent.run))
        is_begun = bool(read_parents(self.folder))  # the parent may have removed that checkpoint since
        fork(self.config, source.uri if is_begun else source.uri_of(_find_checkpoint(source, parent.step, self.stop)))


def _find_checkpoint(source: RunFolder, step: int, stop: threading.Event) -> str:
    """Return the name of a run's checkpoint at a step, or of the first one after it, or of the last one before it.

    A checkpoint from that step on may still be on its way to the storage, so it is waited for.
    """
    end = time.monotonic() + UPLOAD_S
    while True:
        later = [name for name in checkpoint_names(source) if name >= checkpoint_name(step)]
        whole = next((name for name in later if source.exists(f"{name}/meta.json")), None)
        if whole is not None:
            return whole
        if time.monotonic() > end or stop.wait(1.0):
            break
    name = newest_whole(source, ()).name
    if name is None:
        raise ConfigError(f"no checkpoint is left in {source.uri} to go on from; set train.keep_checkpoints to more")
    return name


def _parse_step(text: str) -> int:
    """Return the step of a checkpoint from its name at the end of a text."""
    return int(text.rpartition(PREFIX)[2])
