"""The trials of a sweep on Ray Tune, which starts them, reserves their resources, and tries failed ones again.

What Tune keeps of its own is thrown away: which trials there are and which are stopped is told by `Replay`.
"""

import logging
import os
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import ProgressReporter, Tuner
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher
from typing_extensions import override

from raysl.cluster.connection import share_cluster
from raysl.cluster.resources import TRIAL_CPUS
from raysl.config.schema import RunConfig
from raysl.errors import StorageError
from raysl.process.temporary import temporary_folder
from raysl.redact import redact
from raysl.runs.folder import STOP_FILE, RunFolder
from raysl.storage.folder import outlast
from raysl.sweeps.judging import Verdict
from raysl.sweeps.record import Note, Record
from raysl.sweeps.replay import Replay
from raysl.sweeps.run_trial import measure_checkpoint, run_trial
from raysl.sweeps.trial import ParentTrial, Trial

log = logging.getLogger("raysl")

LOOK_EVERY_S = 2.0
ERROR_FILE = "error.txt"
MOST_ENDS_WITHOUT = 2
_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # runs have logs of their own
    "RAY_AIR_NEW_OUTPUT": "0",  # whose box of settings nobody can switch off
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # signals are heeded by raysl.process.signals
}


class Stage:
    """The state of a sweep that runs.

    Args:
        replay: which trials come and which are stopped.
        bases: what they depart from.
        folder: of the sweep.
        concurrent: trials at a time.
        told: called now and then, and when a trial has ended.
    """

    def __init__(
        self,
        replay: Replay,
        bases: Mapping[str, RunConfig],
        folder: RunFolder,
        concurrent: int,
        told: Callable[[Record | None], None],
    ) -> None:
        self.replay = replay
        self.bases = bases
        self.folder = folder
        self.concurrent = concurrent
        self.told = told
        self.running: dict[str, Record] = {}
        self.failures: dict[str, str] = {}
        self.earlier: dict[str, Note | None] = {}  # notes of starts before, by trial
        self.begun: dict[str, tuple[float, float]] = {}  # when each trial started, and the epoch that it had come to
        self.ends_without: dict[str, int] = {}  # progress, by trial: one asked to stop for nothing starts again
        self.stopped: dict[str, Verdict] = {}
        self.is_ending = False
        self._looked = 0.0

    def __reduce__(self) -> Any:
        """Return nothing: Tune pickles its arguments for a restore that raysl does not use."""
        return object, ()

    def start(self) -> Record | None:
        """Return a trial to start now; None if there is no room or no trial."""
        if self.is_ending or len(self.running) >= self.concurrent:
            return None
        record = self.replay.next()
        if record is not None:
            name = record.trial.name
            if (before := self.stopped.pop(name, None)) is not None:
                why = "it is promoted" if before.is_pause else "one that it was compared with has failed since"
                log.info("%s goes on from epoch %g: %s", name, before.epoch, why)
            record.is_running, record.failure = True, None
            self.earlier[name] = record.last
            self.begun[name] = time.time(), record.course.reached
        return record

    def keep_trace(self, record: Record, trace: Path) -> None:
        """Write the traceback of a failure into the run's folder."""
        folder = self.folder.child(record.trial.name)
        if trace.is_file() and folder.exists():
            content = redact(trace.read_text(errors="replace")).encode()
            outlast(partial(folder.write, ERROR_FILE, content))

    def is_over(self) -> bool:
        """Whether no further trial will come."""
        return self.is_ending or self.replay.is_done()

    def look_now_and_then(self) -> None:
        """Look at the trials, unless that was done in the last seconds."""
        if time.monotonic() - self._looked >= LOOK_EVERY_S:
            self.look()

    def look(self) -> None:
        """Read the logs of running trials, and ask stopped ones to end."""
        try:
            for record in list(self.running.values()):
                self.replay.look(record)
            for record in list(self.running.values()):
                self._stop_where_due(record)
        except StorageError as error:
            log.warning("cannot see how the trials go: %s", error)
        self._looked = time.monotonic()
        self.told(None)

    def _stop_where_due(self, record: Record) -> None:
        if not self.is_ending and self.replay.verdict_of(record) is None:
            return
        folder = self.folder.child(record.trial.name)
        if folder.exists() and not folder.exists(STOP_FILE):
            folder.write(STOP_FILE, b"")

    def ended(self, record: Record, failure: str | None = None) -> None:
        """Record the end of a trial."""
        record.is_running, record.failure = False, failure
        outlast(partial(self.replay.look, record))
        name, is_new = record.trial.name, record.last != self.earlier.get(record.trial.name)
        if record.last is not None and record.last.status == "failed" and is_new and failure is None:
            record.fail(record.last.reason)
        verdict = self.replay.verdict_of(record)
        if verdict is not None:
            self.stopped[name] = verdict
        is_open = record.note is None and record.failure is None and verdict is None
        has_gained = name in self.begun and record.course.reached > self.begun[name][1]
        if is_open and not has_gained and not self.is_ending:
            self.ends_without[name] = self.ends_without.get(name, 0) + 1
            if self.ends_without[name] > MOST_ENDS_WITHOUT:
                record.fail("it ends again and again without having come to its end")
        self.told(record)


class _Walk(Searcher):
    """Gives Tune the trials of a replay."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage

    @override
    def suggest(self, trial_id: str) -> Any:
        record = self.stage.start()
        if record is None:
            return Searcher.FINISHED if self.stage.is_over() else None
        self.stage.running[trial_id] = record
        trial = record.trial
        return {
            "settings": dict(trial.settings),
            "seed": trial.seed,
            "config": trial.config,
            "parents": [(parent.trial, parent.epoch) for parent in trial.parents],
            "until": self.stage.replay.until(record),
        }

    @override
    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        record = self.stage.running.pop(trial_id, None)
        if record is not None:
            self.stage.ended(record, self.stage.failures.get(trial_id, "it failed") if error else None)

    @override
    def save(self, checkpoint_path: str) -> None: ...

    @override
    def restore(self, checkpoint_path: str) -> None: ...


class _Failures(FIFOScheduler):
    """Keeps the reason of a failure before the search is told of it."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage

    @override
    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        self.stage.failures[trial.trial_id] = _reason(trial)
        record = self.stage.running.get(trial.trial_id)
        if record is not None:
            log.warning("%s: %s", record.trial.name, self.stage.failures[trial.trial_id])
            self.stage.keep_trace(record, Path(trial.error_file or ""))


class _Watch(tune.Callback):
    """Looks at the trials every few seconds."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    @override
    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self.stage.look_now_and_then()


class _Silent(ProgressReporter):
    """Shows nothing: Tune's reporter for notebooks would clear earlier output."""

    @override
    def should_report(self, trials: list[Any], done: bool = False) -> bool:
        return False

    @override
    def report(self, trials: list[Any], done: bool, *sys_info: str) -> None: ...


def _reason(trial: Any) -> str:
    """Return the reason of a failure in one line."""
    text = Path(trial.error_file).read_text(errors="replace") if trial.error_file else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return str(redact(lines[-1])) if lines else "its process was lost"


def run_all(stage: Stage, retries: int, checkpoints: Collection[str] = ()) -> None:
    """Run the rest of a sweep, in a process that is connected to a cluster.

    Args:
        stage: what goes on in it.
        retries: times that a trial that failed is tried again.
        checkpoints: names of what is measured and not trained.
    """
    os.environ.update(_ENVIRONMENT)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # tracebacks, which are in the runs' folders
    bases, storage, concurrent = dict(stage.bases), stage.folder.uri, stage.concurrent

    def trial(choice: dict[str, Any]) -> dict[str, float]:
        share_cluster(concurrent)
        parents = tuple(ParentTrial(*parent) for parent in choice["parents"])
        own = Trial(choice["settings"], choice["seed"], choice["config"], parents, choice["until"])
        config = own.run_of(bases, storage)
        if own.config in checkpoints:
            note = measure_checkpoint(own.config, config, own.told())
        else:
            note = run_trial(config, own.told(), own.until)
        return {"epoch": note.epoch}

    with temporary_folder("tune") as notes:
        Tuner(
            tune.with_resources(trial, {"CPU": TRIAL_CPUS}),
            tune_config=tune.TuneConfig(
                num_samples=-1,
                search_alg=_Walk(stage),
                scheduler=_Failures(stage),
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=notes,
                failure_config=tune.FailureConfig(max_failures=retries),
                callbacks=[_Watch(stage)],
                progress_reporter=_Silent(),
                verbose=0,
            ),
        ).fit()
