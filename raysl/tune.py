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
from raysl.errors import ConfigError, RunFailed, RunInUse, Stopped, log
from raysl.leaderboard.logged import Logged
from raysl.pretraining import Result, pretrain
from raysl.redact import bare_tree, redact_uri
from raysl.report.stored import plain
from raysl.runs.folder import RunFolder
from raysl.runs.fork import fork
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
        self.history: _History | None = None

    @override
    def load_checkpoint(self, checkpoint: Any) -> None:
        """Go on with the trial's own run, or fork that of another trial or of other settings."""
        pointer = Pointer.read(checkpoint)
        self.last_step = pointer.step
        if pointer.trial == self.trial_id and pointer.settings == bare_tree(self.settings):
            self.name = pointer.run
        else:
            self.parent = pointer
            self.name = trial_name(self.settings, self.base.seed, parent=(pointer.run, pointer.step))

    @override
    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Pointer(self.name, self.last_step, self.trial_id, bare_tree(self.settings)).write(checkpoint_dir)

    @override
    def step(self) -> dict[str, Any]:
        """Report the next whole epoch that the run has logged; train where there is none yet, or to the run's end."""
        if self.history is None:
            self.history = _History(self._run())
        while True:
            is_over = self.training is not None and self.training.is_over
            if (found := self.history.after(self.last_step)) is not None:
                return self._report(*found)
            if self.training is None:
                self.training = _Training(self.history.config, self.parent)
            elif is_over:
                result = self.training.result()
                return {**self._report(_parse_step(result.checkpoint), result.metrics), "done": True}
            else:
                self.training.wait(self.history.folder.look_every_s)

    def _report(self, step: int, numbers: Mapping[str, float]) -> dict[str, Any]:
        """Return what Tune gets to know of an epoch, and write the same for TensorBoard."""
        assert self.history is not None
        self.last_step, folder = step, self.history.folder
        metrics = {name: value for name, value in numbers.items() if name not in ("step", "epoch")}
        write_hparams(folder, self.settings, metrics, step)
        position = {"step": step, "epoch": self.history.epoch(step), "path": redact_uri(folder.uri)}
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


class _History:
    """What the run of a trial has logged so far, of this start and of those before.

    A run trains on while Tune handles a report, and one with equal settings may have been trained before. Each of its
    epochs is reported all the same, in order: so a scheduler sees the same curve whenever the trial was trained, and
    one that compares trials at each epoch does not wait for one that skips some.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.folder = RunFolder.of(config)
        self.logged = Logged()

    def after(self, step: int) -> tuple[int, dict[str, float]] | None:
        """Return the next whole epoch after a step, by its last step, with the newest numbers then.

        Returns:
            None where it has not been logged yet, and of the last epoch, which `_Training.result` covers.
        """
        if (note := outlast(partial(DatasetNote.read, self.folder))) is None:
            return None
        length, train = note.epoch_len, self.config.train
        total = train.epochs * length
        last = total if train.end is None else min(total, train.end.steps(total, length))
        if self.logged.reached < step // length + 1:
            content = outlast(partial(self.folder.read_if_there, METRICS_FILE))
            lines = parse_metrics(content, self.folder.uri_of(METRICS_FILE))
            self.logged = Logged([line for line in lines if "epoch" in line])
        for epoch in range(step // length + 1, int(self.logged.reached) + 1):
            if epoch * length < last and (numbers := self.logged.newest(epoch)):
                return epoch * length, numbers
        return None

    def epoch(self, step: int) -> float:
        """Return the epochs that are done after a step."""
        note = outlast(partial(DatasetNote.read, self.folder))
        assert note is not None, "claimed before the first step"
        return step / note.epoch_len


class _Training:
    """A run that trains in its own thread.

    Args:
        parent: the checkpoint that it is forked from, or None.
    """

    def __init__(self, config: RunConfig, parent: Pointer | None) -> None:
        self.config = config
        self.parent = parent
        self.folder = RunFolder.of(config)
        self.stop = threading.Event()
        self.outcome: Result | BaseException | None = None
        self.thread = threading.Thread(target=self._train, name="raysl-trial", daemon=True)
        self.thread.start()

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, however it did."""
        return not self.thread.is_alive()

    def wait(self, seconds: float) -> None:
        """Wait until the run has ended, at most so many seconds."""
        self.thread.join(seconds)

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
