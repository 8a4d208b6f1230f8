"""Runs of raysl as trials of Ray Tune."""

import json
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ray.tune import PlacementGroupFactory, Trainable
from typing_extensions import override

from raysl.checkpoint.checkpoint_folder import PREFIX, checkpoint_name, checkpoint_names, newest_whole
from raysl.checkpoint.lineage import read_parents
from raysl.cluster.board import receive_files
from raysl.cluster.connection import cluster_resources, connect, share_cluster
from raysl.cluster.resources import TRIAL_CPUS, worker_shape
from raysl.cluster.settings import use_settings
from raysl.config.arguments import run_config
from raysl.config.schema import RunConfig
from raysl.data.dataset_note import DatasetNote
from raysl.errors import ConfigError, RunFailed, RunInUse, Stopped, log
from raysl.leaderboard.logged import Logged
from raysl.redact import HIDDEN, bare_tree, redact_uri, redact_variables
from raysl.report.report_json import plain
from raysl.runs.folder import RunFolder
from raysl.runs.fork import fork
from raysl.storage.addresses import split_query
from raysl.storage.folder import absolute, outlast
from raysl.storage.records import read_as
from raysl.train.callbacks.logs import read_metrics
from raysl.train.callbacks.tensorboard import write_hparams
from raysl.tune.run_trial import run_trial
from raysl.tune.trial import ALONE, Note, Trial, measures_of, trial_of
from raysl.weights.initial import load_config

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
    `<storage>/<name>/trial_<hash of its settings>`, and goes on with that run if it exists. It reports the newest
    numbers of each whole epoch, those of earlier starts again, with `epoch`, `step` and the `path` of the run, and
    finally those of the benchmarks. Tune's own
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
        ConfigError: if a setting is wrong, or `concurrent` trials do not fit the cluster.
    """
    base = load_config(config) if isinstance(config, str) else run_config(config)
    base = replace(base, storage=absolute(base.storage if storage is None else storage))
    if concurrent < 1:
        raise ConfigError(f"concurrent={concurrent} is not a number of trials; give 1 or more")
    connect(with_state=True)
    keep_credentials_out()
    use_settings(base.cluster)
    worker_shape(base.train, cluster_resources().shared(concurrent))
    attributes = {"bases": {ALONE: keeping(base)}, "folder": RunFolder.of(base).uri, "concurrent": concurrent}
    return type("raysl", (RunTrainable,), {**attributes, "__doc__": RunTrainable.__doc__})


def keeping(base: RunConfig) -> RunConfig:
    """Return settings of trials that others may go on from: they keep several checkpoints."""
    return replace(base, train=replace(base.train, keep_checkpoints=max(KEPT_CHECKPOINTS, base.train.keep_checkpoints)))


def keep_credentials_out() -> None:
    """Have Ray Tune hand no credentials to the processes of trials, since Ray writes what it hands over into its logs.

    Those processes have the credentials of their node, as training workers have.
    """
    try:
        from ray.tune.execution.class_cache import ENV_VARS_TO_PROPAGATE as names
    except ImportError:  # another version of Ray, which hands nothing over
        return
    shown = redact_variables(dict.fromkeys(names, "value"))
    names.difference_update(name for name, value in shown.items() if value == HIDDEN)


@dataclass(frozen=True)
class Pointer:
    """The content of a checkpoint of Tune's: the name of a checkpoint of a run.

    Args:
        trial: Tune's name of the trial.
        settings: those that vary, without credentials.
        parent: run and step that the run itself was forked from, or None.
    """

    run: str
    step: int
    trial: str
    settings: dict[str, Any]
    parent: tuple[str, int] | None = None

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

    Attributes:
        bases: base settings by name.
        folder: URI of the folder of all runs.
        concurrent: number of trials at a time.
        since: seconds since 1970; a trial whose settings were refused after that fails at once when it is tried again.
    """

    bases: ClassVar[dict[str, RunConfig]]
    folder: ClassVar[str]
    concurrent: ClassVar[int]
    since: ClassVar[float] = math.inf

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """Return the resources of the process that drives the run; workers and data tasks ask for their own."""
        return PlacementGroupFactory([{"CPU": TRIAL_CPUS}])

    @classmethod
    def chosen(cls, config: Mapping[str, Any]) -> Trial:
        """Return the trial of a choice of Tune's."""
        return trial_of(flatten_space(config), cls.bases[ALONE].seed)

    @override
    def setup(self, config: dict[str, Any]) -> None:
        """Set the trial's settings; nothing starts before the first step."""
        receive_files()
        share_cluster(self.concurrent)
        self.trial = self.chosen(config)
        self.parent: Pointer | None = None
        self.last_step = 0
        self.run: _Run | None = None

    @override
    def load_checkpoint(self, checkpoint: Any) -> None:
        """Go on with the trial's own run, or fork that of another trial or of other settings."""
        pointer = Pointer.read(checkpoint)
        self.last_step = pointer.step
        if pointer.trial == self.trial_id and pointer.settings == bare_tree(dict(self.trial.settings)):
            parent = pointer.parent
        else:
            self.parent, parent = pointer, (pointer.run, pointer.step)
        self.trial = replace(self.trial, parent=None if parent is None else (parent[0], parent[1]))

    @override
    def save_checkpoint(self, checkpoint_dir: str) -> None:
        trial = self.trial
        Pointer(trial.name, self.last_step, self.trial_id, bare_tree(dict(trial.settings)), trial.parent).write(
            checkpoint_dir
        )

    @override
    def step(self) -> dict[str, Any]:
        """Report the next whole epoch that the run has logged; train where there is none yet, or to the run's end."""
        if self.run is None:
            self.run = _Run(self.trial.run_of(self.bases, self.folder), self.trial, self.parent, self.since)
        while True:
            # asked before the log is read: epochs logged just before the end are then still reported
            is_over = self.run.is_over
            if (epoch := self.run.after(self.last_step)) is not None:
                return self._report(*epoch)
            if is_over:
                note = self.run.note()
                step = self.last_step if note.checkpoint is None else _parse_step(note.checkpoint)
                return {**self._report(step, note.epoch, note.metrics), "done": True, "status": note.status}
            self.run.go_on()

    def _report(self, step: int, epoch: float, numbers: Mapping[str, float]) -> dict[str, Any]:
        """Return what Tune gets to know of an epoch, and write the same for TensorBoard."""
        assert self.run is not None
        self.last_step, folder = step, self.run.folder
        metrics = {name: value for name, value in numbers.items() if name not in ("step", "epoch")}
        write_hparams(folder, {**self.trial.settings, "seed": self.trial.seed}, metrics, step)
        position = {"step": step, "epoch": epoch, "path": redact_uri(folder.uri)}
        if self.trial.parent is not None:
            position["parent"] = list(self.trial.parent)
        return {**metrics, **position, "should_checkpoint": True}

    @override
    def cleanup(self) -> None:
        """Have the run save and stop."""
        if self.run is not None and not self.run.end(STOP_S):
            log.warning("%s has not stopped within %.0f s; its process ends", self.trial.name, STOP_S)

    @override
    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take another trial into this process, once the run has stopped."""
        if self.run is not None and not self.run.end(STOP_S):
            return False
        self.setup(new_config)
        return True


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


class _Run:
    """The run of a trial: what it has logged so far, in this start and in those before, and its training in a thread.

    A run trains on while Tune handles a report, and one with equal settings may have been trained before. Each of its
    epochs is reported all the same, in order: so a scheduler sees the same curve whenever the trial was trained, one
    that compares trials at each epoch does not wait for one that skips some, and a trial that it stops is not trained.
    """

    def __init__(self, config: RunConfig, trial: Trial, parent: Pointer | None, since: float) -> None:
        self.config = config
        self.trial = trial
        self.parent = parent
        self.folder = RunFolder.of(config)
        self.logged = Logged()
        self.stop = threading.Event()
        self.outcome: Note | BaseException | None = self._earlier(since)
        self.thread: threading.Thread | None = None

    def _earlier(self, since: float) -> Note | BaseException | None:
        """Return how it ended in an earlier start; None if it is to train."""
        note = Note.read(self.folder)
        if note is None:
            return None
        if note.status == "failed" and note.ended > since:
            return RunFailed(note.reason)
        is_end = note.status == "stopped" or note.is_of_now(self.config.train.epochs, measures_of(self.config))
        return note if is_end else None

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, however it did."""
        return self.outcome is not None

    def after(self, step: int) -> tuple[int, float, dict[str, float]] | None:
        """Return the next whole epoch after a step: its last step, its number, and the newest numbers then.

        Returns:
            None where it has not been logged yet, and of the last epoch, which `note` covers.
        """
        if (note := outlast(partial(DatasetNote.read, self.folder))) is None:
            return None
        length, train = note.epoch_len, self.config.train
        total = train.epochs * length
        last = total if train.end is None else min(total, train.end.steps(total, length))
        if isinstance(self.outcome, Note) and self.outcome.status == "stopped":
            last = min(last, int(self.outcome.epoch * length))
        if self.logged.reached < step // length + 1:
            self.logged = Logged([line for line in read_metrics(self.folder) if "epoch" in line])
        for epoch in range(step // length + 1, int(self.logged.reached) + 1):
            if epoch * length < last and (numbers := self.logged.newest(epoch)):
                return epoch * length, float(epoch), numbers
        return None

    def go_on(self) -> None:
        """Start training, or wait a moment for what it logs."""
        if self.thread is None:
            self.thread = threading.Thread(target=self._train, name="raysl-trial", daemon=True)
            self.thread.start()
        self.thread.join(self.folder.look_every_s)

    def note(self) -> Note:
        """Return the note of the run, which has ended."""
        if isinstance(self.outcome, Stopped):  # as a SystemExit it would end the process
            raise RunFailed(str(self.outcome)) from None
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        assert self.outcome is not None
        return self.outcome

    def end(self, patience_s: float) -> bool:
        """Have the run save and stop; return whether it has within `patience_s`."""
        self.stop.set()
        if self.thread is not None:
            self.thread.join(patience_s)
        return self.thread is None or not self.thread.is_alive()

    def _train(self) -> None:
        try:
            if self.parent is not None:
                self._begin_from(self.parent)
            self.outcome = run_trial(self.config, self.trial.told(), self.stop)
        except BaseException as error:  # noqa: BLE001 - `note` raises it in the thread that Tune calls
            self.outcome = error

    def _begin_from(self, parent: Pointer) -> None:
        """Fork the parent's run, or wait for a trial with equal settings that does so."""
        while True:
            try:
                return self._fork(parent)
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
        if stop.wait(1.0):  # another checkpoint now would stay the one that the trial began from
            raise Stopped(f"{source.uri} still uploads the checkpoint to go on from")
        if time.monotonic() > end:
            break
    name = newest_whole(source, ()).name
    if name is None:
        raise ConfigError(f"no checkpoint is left in {source.uri} to go on from; set train.keep_checkpoints to more")
    return name


def _parse_step(uri: str) -> int:
    """Return the step of a checkpoint from its address."""
    return int(split_query(uri)[0].rpartition(PREFIX)[2])
