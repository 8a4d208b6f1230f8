"""Runs of raysl as trials of a Ray Tune of one's own: `Tuner(raysl.tune.trainable(config), param_space=...)`."""

import json
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ray.tune import PlacementGroupFactory, Trainable

from raysl.checkpoint.files import PREFIX, checkpoint_name, checkpoint_names, newest_whole
from raysl.cluster.connection import cluster_resources, connect, share_cluster
from raysl.cluster.resources import TRIAL_CPUS, worker_shape
from raysl.config.arguments import run_config
from raysl.config.load import apply_overrides, load_config
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError, RunFailed, RunInUse, Stopped, StorageError
from raysl.pretraining import Result, pretrain
from raysl.redact import bare_tree, redact_uri
from raysl.report.stored import plain
from raysl.runs.dataset_note import DATASET_FILE
from raysl.runs.folder import RunFolder
from raysl.runs.follow import read_events
from raysl.runs.fork import fork
from raysl.runs.lineage import read_parents
from raysl.storage.addresses import absolute
from raysl.storage.folder import outlast
from raysl.sweeps.trial import setting, trial_name
from raysl.train.callbacks.logs import parse_metrics
from raysl.train.callbacks.tensorboard import write_hparams
from raysl.train.files import METRICS_FILE

log = logging.getLogger("raysl")

POINTER_FILE = "raysl.json"
KEPT_CHECKPOINTS = 4
"""Fewest checkpoints that a trial keeps, so that others find the one they are to go on from."""
STOP_S = 120.0
"""Seconds in which a trial that is stopped saves and gives back its places; then its process ends."""
UPLOAD_S = 60.0
"""Seconds in which a checkpoint that was noted is waited for."""


def trainable(config: RunConfig | str, storage: str | None = None, concurrent: int = 1) -> type[Trainable]:
    """What a `ray.tune.Tuner` takes to try settings: each of its trials is a run of raysl.

    The keys of the Tuner's `param_space` are settings, `{"optim.lr": tune.loguniform(0.02, 0.5)}`. A trial is the run
    `<storage>/<name>/trial_<hash of its settings>`, and goes on with it where there is one. It reports the numbers of
    each checkpoint, with `epoch`, `step` and the `path` of the run, and in the end those of the benchmarks too. Its
    checkpoints of Tune's are notes of where those of the run are: a trial that a scheduler such as
    PopulationBasedTraining gives another trial's note goes on from that checkpoint, by `raysl.runs.fork`, in a folder
    named by its settings and that parent. One that is stopped or paused saves first.

    Connects to the cluster that RAY_ADDRESS names, else starts a private one, where that has not been done.

    Args:
        config: settings that the trials depart from, or the name of a configuration; its `name` is that of the folder.
        storage: default: that of the settings.
        concurrent: trials at a time, between which the CPUs are shared; the Tuner has to have the same
            `TuneConfig(max_concurrent_trials=...)`.

    Raises:
        ConfigError: if the settings cannot be, or so many trials do not fit the cluster.
    """
    base = load_config(config) if isinstance(config, str) else run_config(config)
    base = replace(base, storage=absolute(base.storage if storage is None else storage))
    if concurrent < 1:
        raise ConfigError(f"concurrent={concurrent} is no number of trials; give 1 or more")
    connect(with_state=True)
    worker_shape(base.train, cluster_resources().shared(concurrent))
    kept = max(KEPT_CHECKPOINTS, base.train.keep_checkpoints)
    base = replace(base, train=replace(base.train, keep_checkpoints=kept))
    return type("raysl", (RunTrainable,), {"base": base, "concurrent": concurrent, "__doc__": RunTrainable.__doc__})


@dataclass(frozen=True)
class Pointer:
    """What a checkpoint of Tune's holds.

    Args:
        run: name of the run.
        step: updates done in its checkpoint.
        trial: Tune's name for the trial.
        settings: what varies, without credentials.
    """

    run: str
    step: int
    trial: str
    settings: dict[str, Any]

    @classmethod
    def read(cls, folder: str) -> "Pointer":
        """That in a local folder."""
        return cls(**json.loads((Path(folder) / POINTER_FILE).read_text()))

    def write(self, folder: str) -> None:
        """Put it into a local folder."""
        (Path(folder) / POINTER_FILE).write_text(json.dumps(asdict(self)))


class RunTrainable(Trainable):
    """A run of raysl as a trial of Ray Tune; `trainable` makes a class with settings of it.

    It trains in a thread, and goes on while Tune looks at what it has reported.
    """

    base: ClassVar[RunConfig]
    concurrent: ClassVar[int]

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """Those of the process that drives the run; workers and data tasks ask for their own."""
        return PlacementGroupFactory([{"CPU": TRIAL_CPUS}])

    def setup(self, config: dict[str, Any]) -> None:
        """See `Trainable.setup`: nothing starts before the first step."""
        share_cluster(self.concurrent)
        self.settings = settings_of(config)
        self.parent: Pointer | None = None
        self.name = trial_name(self.settings, self.base.seed)
        self.last_step = 0
        self.training: _Training | None = None

    def load_checkpoint(self, checkpoint: Any) -> None:
        """See `Trainable.load_checkpoint`: its own run goes on, that of another trial, or with other settings, is
        forked."""
        pointer = Pointer.read(checkpoint)
        if pointer.trial == self.trial_id and pointer.settings == bare_tree(self.settings):
            self.name, self.last_step = pointer.run, pointer.step
        else:
            self.parent = pointer
            self.name = trial_name(self.settings, self.base.seed, parent=(pointer.run, pointer.step))

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """See `Trainable.save_checkpoint`."""
        Pointer(self.name, self.last_step, self.trial_id, bare_tree(self.settings)).write(checkpoint_dir)

    def step(self) -> dict[str, Any]:
        """See `Trainable.step`: train until the next checkpoint is there, or to the end of the run."""
        if self.training is None:
            self.training = _Training(self._run(), self.parent)
        while (saved := self.training.next_saved()) is not None:
            if saved > self.last_step and (found := self.training.numbers(saved)) is not None:
                return self._reported(saved, found)
        result = self.training.result()
        return {**self._reported(_step_of(result.checkpoint), result.metrics), "done": True}

    def _reported(self, step: int, numbers: Mapping[str, float]) -> dict[str, Any]:
        """What Tune is told of a checkpoint; TensorBoard is told the same."""
        assert self.training is not None
        self.last_step, folder = step, self.training.folder
        told = {name: value for name, value in numbers.items() if name not in ("step", "epoch")}
        write_hparams(folder, self.settings, told, step)
        place = {"step": step, "epoch": self.training.epoch(step), "path": redact_uri(folder.uri)}
        return {**told, **place, "should_checkpoint": True}

    def cleanup(self) -> None:
        """See `Trainable.cleanup`: the run saves and stops."""
        if self.training is not None and not self.training.end(STOP_S):
            log.warning("%s has not stopped within %.0f s; its process ends", self.name, STOP_S)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """See `Trainable.reset_config`: the process takes another trial when its run has stopped."""
        if self.training is not None and not self.training.end(STOP_S):
            return False
        self.setup(new_config)
        return True

    def _run(self) -> RunConfig:
        folder = RunFolder.of(self.base)
        varied = apply_overrides(self.base, [setting(key, value) for key, value in self.settings.items()])
        return replace(varied, storage=folder.uri, name=self.name)


def settings_of(space: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """What varies in a trial, by dotted key: a nested group is taken apart, numbers of numpy become plain ones."""
    found: dict[str, Any] = {}
    for key, value in space.items():
        found |= settings_of(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": plain(value)}
    return found


class _Training:
    """A run that trains in a thread of its own.

    Args:
        config: of the run.
        parent: what it is forked from, where it is.
    """

    def __init__(self, config: RunConfig, parent: Pointer | None) -> None:
        self.config = config
        self.parent = parent
        self.folder = RunFolder.of(config)
        self.stop = threading.Event()
        self.found: Result | BaseException | None = None
        self.untold: list[int] = []
        self.num_events = len(outlast(partial(read_events, self.folder)))
        self.thread = threading.Thread(target=self._train, name="raysl-trial", daemon=True)
        self.thread.start()

    def next_saved(self) -> int | None:
        """The step of the next checkpoint, as soon as that is there; None when the run has ended."""
        while not self.untold:
            is_over = not self.thread.is_alive()
            try:
                new = read_events(self.folder)[self.num_events :]
            except StorageError as error:
                log.warning("cannot see how %s goes: %s", self.config.name, error)
                new = []
            self.num_events += len(new)
            self.untold += [_step_of(event) for event in new if event.startswith(f"saved {PREFIX}")]
            if is_over and not self.untold:
                return None
            if not self.untold:
                self.thread.join(self.folder.look_every_s)
        return self.untold.pop(0)

    def numbers(self, step: int) -> dict[str, float] | None:
        """The newest of each number up to a step; None at the end of the run, of which more is to come."""
        if self.is_last(step):
            return None
        found: dict[str, float] = {}
        for line in parse_metrics(outlast(partial(self.folder.read_if_there, METRICS_FILE))):
            if line["step"] <= step:
                found |= line
        return found

    def epoch(self, step: int) -> float:
        """Epochs that are done after a step."""
        return step / self._epoch_len

    def is_last(self, step: int) -> bool:
        """Whether the run ends with a step."""
        train, epoch_len = self.config.train, self._epoch_len
        total = train.epochs * epoch_len
        return step >= (total if train.end is None else min(total, train.end.steps(total, epoch_len)))

    @property
    def _epoch_len(self) -> int:
        return int(json.loads(outlast(partial(self.folder.read, DATASET_FILE)))["epoch_len"])

    def result(self) -> Result:
        """That of the run, which has ended.

        Raises:
            RunFailed, ConfigError: as `raysl.pretrain`.
        """
        assert self.found is not None
        if isinstance(self.found, Stopped):  # by its note `stop`: as a SystemExit it would end the process
            raise RunFailed(str(self.found)) from None
        if isinstance(self.found, BaseException):
            raise self.found
        return self.found

    def end(self, patience_s: float) -> bool:
        """Have the run save and stop; whether it has within so many seconds."""
        self.stop.set()
        self.thread.join(patience_s)
        return not self.thread.is_alive()

    def _train(self) -> None:
        try:
            while self.found is None:
                self._try()
        except BaseException as error:  # noqa: BLE001 - `result` tells it to the thread that Tune calls
            self.found = error

    def _try(self) -> None:
        """Train, or wait for a trial of equal settings, which is the same run."""
        try:
            if self.parent is not None:
                self._fork(self.parent)
            self.found = pretrain(self.config, show_progress=False, stop=self.stop)
        except RunInUse:
            if not self.folder.wait_until_free(self.stop):
                raise Stopped(f"{self.config.name} is another process's") from None

    def _fork(self, parent: Pointer) -> None:
        source = RunFolder.of(replace(self.config, name=parent.run))
        is_begun = bool(read_parents(self.folder))  # then its checkpoint may be gone by now
        fork(self.config, source.uri if is_begun else source.uri_of(_whole_from(source, parent.step, self.stop)))


def _whole_from(source: RunFolder, step: int, stop: threading.Event) -> str:
    """Name of a run's whole checkpoint at a step, or else of the first one behind it, or of the last one before.

    Where there is none from that step on it may be on its way to its storage, which is waited for.
    """
    end = time.monotonic() + UPLOAD_S
    while True:
        later = [name for name in checkpoint_names(source) if name >= checkpoint_name(step)]
        whole = next((name for name in later if source.exists(f"{name}/meta.json")), None)
        if whole is not None:
            return whole
        if time.monotonic() > end or stop.wait(1.0):
            break
    found = newest_whole(source, ()).name
    if found is None:
        raise ConfigError(f"no checkpoint is left in {source.uri} to go on from; set train.keep_checkpoints to more")
    return found


def _step_of(text: str) -> int:
    """The step of a checkpoint, from its name at the end of a text."""
    return int(text.rpartition(PREFIX)[2])
