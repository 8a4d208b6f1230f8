"""The trials of a sweep on Ray Tune, which starts them, reserves their resources, and tries failed ones again.

What Tune keeps of its own is thrown away: which trials there are and which are stopped is told by `Replay`.
"""

import logging
import os
import re
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import ray.cloudpickle
from ray import tune
from ray.exceptions import RayError, RayTaskError
from ray.tune import ProgressReporter, TuneError, Tuner
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher
from typing_extensions import override

from raysl.cluster.connection import share_cluster
from raysl.cluster.failures import reason
from raysl.cluster.resources import TRIAL_CPUS
from raysl.cluster.sent_files import receive_files
from raysl.errors import RunFailed, log
from raysl.process.temporary import temporary_folder
from raysl.redact import redact
from raysl.sweeps.credentials import keep_credentials_out
from raysl.sweeps.record import Record
from raysl.sweeps.run_trial import measure_checkpoint, run_trial
from raysl.sweeps.stage import Stage
from raysl.sweeps.stage_thread import StageThread
from raysl.sweeps.trial import ParentTrial, Trial

_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # runs have logs of their own
    "RAY_AIR_NEW_OUTPUT": "0",  # whose box of settings nobody can switch off
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # signals are heeded by raysl.process.signals
}


class _Walk(Searcher):
    """Gives Tune the trials of a stage, and the stage the ends of trials.

    Attributes:
        running: records by Tune's names of their trials.
        failures: why trials failed, by the same names.
    """

    def __init__(self, thread: StageThread, retries: int) -> None:
        super().__init__()
        self.thread = thread
        self.retries = retries
        self.running: dict[str, Record] = {}
        self.failures: dict[str, str] = {}

    def __reduce__(self) -> Any:
        """Return nothing: Tune pickles its arguments for a restore that raysl does not use."""
        return object, ()

    @override
    def suggest(self, trial_id: str) -> Any:
        record = self.thread.take()
        if record is None:
            return Searcher.FINISHED if self.thread.is_over else None
        self.running[trial_id] = record
        trial = record.trial
        return {
            "settings": dict(trial.settings),
            "seed": trial.seed,
            "config": trial.config,
            "parents": [(parent.trial, parent.epoch) for parent in trial.parents],
            "until": self.thread.stage.until[trial.name],
        }

    def failed(self, trial: Any) -> None:
        """Keep the reason of a failure, which Tune tells before it retries the trial or gives it up."""
        trace = _trace(trial)
        self.failures[trial.trial_id] = why = _reason(_error(trial), trace)
        if (record := self.running.get(trial.trial_id)) is not None:
            number = trial.num_failures
            self.thread.do(partial(self.thread.stage.failed_once, record, why, trace, number, self.retries))

    @override
    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        record = self.running.pop(trial_id, None)
        if record is not None:
            failure = self.failures.get(trial_id, "it failed") if error else None
            self.thread.do(partial(self.thread.stage.ended, record, failure))

    @override
    def save(self, checkpoint_path: str) -> None: ...

    @override
    def restore(self, checkpoint_path: str) -> None: ...


class _Failures(FIFOScheduler):
    """Tells the walk of each failure: Tune tells its scheduler of those too that are followed by a retry."""

    def __init__(self, walk: _Walk) -> None:
        super().__init__()
        self.walk = walk

    def __reduce__(self) -> Any:
        """Return nothing, as `_Walk`."""
        return object, ()

    @override
    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        self.walk.failed(trial)


class _Starts(tune.Callback):
    """Tells the stage when the process of a trial has started."""

    def __init__(self, walk: _Walk) -> None:
        self.walk = walk

    def __reduce__(self) -> Any:
        """Return nothing, as `_Walk`."""
        return object, ()

    @override
    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if (record := self.walk.running.get(trial.trial_id)) is not None:
            self.walk.thread.do(partial(self.walk.thread.stage.begins, record))


class _Silent(ProgressReporter):
    """Shows nothing: Tune's reporter for notebooks would clear earlier output."""

    @override
    def should_report(self, trials: list[Any], done: bool = False) -> bool:
        return False

    @override
    def report(self, trials: list[Any], done: bool, *sys_info: str) -> None: ...


def _trace(trial: Any) -> str:
    """Return the traceback of a trial's last failure, without credentials; empty if there is none."""
    try:
        return redact(Path(trial.error_file).read_text(errors="replace")) if trial.error_file else ""
    except OSError as error:
        log.warning("the traceback of a failure is lost: %s", error)
        return ""


def _error(trial: Any) -> BaseException | None:
    """Return the error of a trial's last failure, from the folder where Tune keeps it before it is in the storage."""
    try:
        path = trial.pickled_error_file
        error: BaseException | None = ray.cloudpickle.loads(Path(path).read_bytes()) if path else None
    except Exception as failure:  # noqa: BLE001 - an exception here would end the sweep; the traceback says the same
        log.debug("the error of a failure cannot be read: %s", failure)
        return None
    return error


def _reason(error: BaseException | None, trace: str) -> str:
    """Return the reason of a trial's failure in one line.

    Args:
        error: the newest one of Tune's that was kept, which is raysl's or the loss of a process.
    """
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, RayError):
        return str(redact(reason(cause)))
    return short_reason(trace)


_CLASS = re.compile(r"^raysl\.errors\.\w+: ")
"""The class of an error of raysl before its message, which says everything."""


def short_reason(trace: str) -> str:
    """Return the reason of a failure in one line: the last one of its traceback, without the class of raysl's errors.

    >>> short_reason("Traceback ...\\nraysl.errors.RunFailed: the loss is not finite at step 3")
    'the loss is not finite at step 3'
    """
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    return _CLASS.sub("", lines[-1]) if lines else "its process was lost"


def run_all(stage: Stage, retries: int, checkpoints: Collection[str] = ()) -> None:
    """Run the rest of a sweep, in a process that is connected to a cluster.

    Args:
        checkpoints: names of what is measured and not trained.
    """
    os.environ.update(_ENVIRONMENT)
    keep_credentials_out()
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # tracebacks, which are in the runs' folders
    with temporary_folder("tune") as notes, StageThread(stage) as thread:
        walk = _Walk(thread, retries)
        try:
            Tuner(
                tune.with_resources(_trainable(stage, checkpoints), {"CPU": TRIAL_CPUS}),
                tune_config=tune.TuneConfig(
                    num_samples=-1,
                    search_alg=walk,
                    scheduler=_Failures(walk),
                    reuse_actors=True,
                ),
                run_config=tune.RunConfig(
                    name="tune",
                    storage_path=notes,
                    failure_config=tune.FailureConfig(max_failures=retries),
                    callbacks=[_Starts(walk)],
                    progress_reporter=_Silent(),
                    verbose=0,
                ),
            ).fit()
        except (TuneError, RayError) as error:
            raise RunFailed(
                f"Ray Tune ended the sweep: {short_reason(str(error))}; the same command runs the trials that are left"
            ) from error


def _trainable(stage: Stage, checkpoints: Collection[str]) -> Callable[[dict[str, Any]], dict[str, float]]:
    bases, storage, concurrent = dict(stage.bases), stage.folder.uri, stage.concurrent

    def trial(choice: dict[str, Any]) -> dict[str, float]:
        receive_files()
        share_cluster(concurrent)
        parents = tuple(ParentTrial(*parent) for parent in choice["parents"])
        own = Trial(choice["settings"], choice["seed"], choice["config"], parents, choice["until"])
        config = own.run_of(bases, storage)
        if own.config in checkpoints:
            note = measure_checkpoint(own.config, config, own.told())
        else:
            note = run_trial(config, own.told(), own.until)
        return {"epoch": note.epoch}

    return trial
