"""Run the trials of a sweep with a `Tuner` of Ray Tune."""

import json
import logging
import math
import os
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from ray import tune
from ray.exceptions import RayError
from ray.tune import PlacementGroupFactory, ProgressReporter, Stopper, TuneError, Tuner
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, MedianStoppingRule
from ray.tune.search import BasicVariantGenerator
from typing_extensions import override

from raysl.cluster.resources import TRIAL_CPUS
from raysl.cluster.tasks import HEAD
from raysl.errors import RunFailed
from raysl.process.temporary import temporary_folder
from raysl.runs.folder import RunFolder
from raysl.storage.folder import outlast
from raysl.sweeps.ray_tune import Choices, points, scheduler_of, searcher_of
from raysl.sweeps.schema import is_population
from raysl.tune.failures import reason_of, short_reason, trace_of
from raysl.tune.run_trainable import RunTrainable, keep_credentials_out, keeping
from raysl.tune.run_trial import measure_checkpoint
from raysl.tune.trial import Note, Trial, measures_of

if TYPE_CHECKING:
    from raysl.sweeps.run import SweepRun
    from raysl.sweeps.start import SweepStart

TUNE_FOLDER = "tune"  # in the folder of the sweep: Tune's own state of a population
CHOICES_FILE = "choices.json"  # in the folder of the sweep: the choices of a searcher
_NEVER_PAUSE = (FIFOScheduler, AsyncHyperBandScheduler, MedianStoppingRule)
_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # runs have logs of their own
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # benchmarks are measured at the end
    "RAY_AIR_NEW_OUTPUT": "0",  # the new output has a box of settings that cannot be switched off
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # raysl.process.signals handles signals
}


class SweepTrial(RunTrainable):
    """A trial of a sweep; `_trials_of` derives a class whose attributes are set.

    Attributes:
        choices: converter from Tune's choices to trials.
        checkpoints: configurations that are measured and not trained.
        may_pause: whether the scheduler pauses trials. Tune counts a paused trial as running, so its own limit does
            not work; each running trial then reserves a share of a resource of the head node, 1 / `concurrent`.
    """

    choices: ClassVar[Choices]
    checkpoints: ClassVar[Collection[str]] = ()
    may_pause: ClassVar[bool] = False

    @classmethod
    @override
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        share = max(1.0 / cls.concurrent - 0.002, 0.0001)  # Ray Train takes 0.001 of the same resource for each run
        return PlacementGroupFactory([{"CPU": TRIAL_CPUS}, *([{HEAD: round(share, 4)}] if cls.may_pause else [])])

    @classmethod
    @override
    def chosen(cls, config: Mapping[str, Any]) -> Trial:
        return cls.choices.trial(config)

    @override
    def step(self) -> dict[str, Any]:
        """Measure a checkpoint, or train as `RunTrainable.step` does."""
        if self.trial.config not in self.checkpoints:
            return super().step()
        config = self.trial.run_of(self.bases, self.folder)
        note = Note.read(RunFolder.of(config))
        if note is None or not note.is_of_now(0, measures_of(config)):
            note = measure_checkpoint(self.trial.config, config, self.trial.told())
        return {**note.metrics, "epoch": 0.0, "done": True, "status": note.status}


class _LedgerCallback(tune.Callback):
    """Reports Tune's events to the ledger."""

    def __init__(self, plan: "SweepRun", ending: "Ending", choices_file: "_ChoicesFile") -> None:
        self.plan = plan
        self.ledger = plan.ledger
        self.ending = ending
        self.choices_file = choices_file
        self.trials: dict[str, Trial] = {}  # by Tune's trial id: the trial that it is now

    def __reduce__(self) -> Any:
        """Pickle a reference: a restored Tuner uses the callback of its own process."""
        return _live, ("callback",)

    @override
    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._current(trial)

    def _current(self, trial: Any, report: Mapping[str, Any] | None = None) -> Trial:
        """Return the present trial of one of Tune's, by its last report; record a trial that is new.

        The report counts, because a scheduler may already have changed the settings of Tune's trial.
        """
        report = report or trial.last_result or {}
        config, parent = report.get("config", trial.config), report.get("parent")
        chosen = self.plan.choices.trial(config, None if parent is None else (parent[0], int(parent[1])))
        before = self.trials.get(trial.trial_id, chosen)
        if trial.trial_id not in self.trials or chosen.name != before.name:
            self.trials[trial.trial_id] = chosen
            self.choices_file.add(config)
            if chosen.name != before.name:  # a population replaced the trial by a fork of another one
                origin = "" if parent is None else f", from {parent[0]}"
                self.ledger.submit(partial(self.ledger.stop, before, math.inf, f"it goes on as {chosen.name}{origin}"))
            self.ledger.submit(partial(self.ledger.begin, chosen))
        return chosen

    @override
    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self._current(trial, result)

    @override
    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        for trial in trials:
            chosen = self.trials.get(trial.trial_id)
            if chosen is not None and (record := self.ledger.records.get(chosen.name)) is not None:
                record.is_running = trial.status == trial.RUNNING  # False for a paused trial

    @override
    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if trial.trial_id not in self.trials:
            return  # the sweep ends before this trial has begun
        chosen, last = self._current(trial), trial.last_result or {}
        if "status" in last or self.ending.is_set:
            self.ledger.submit(partial(self.ledger.end, chosen))
            return
        metric, epoch = self.plan.sweep.early.metric, float(last.get("epoch", 0.0))
        value = f", {metric} {last[metric]:.4g}" if metric in last else ""
        self.ledger.submit(
            partial(self.ledger.stop, chosen, epoch, f"{self.plan.sweep.scheduler} at epoch {epoch:g}{value}")
        )

    @override
    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        chosen, trace = self._current(trial), trace_of(trial)
        why, retries = reason_of(trial, trace), self.plan.sweep.retries
        self.ledger.submit(partial(self.ledger.fail_once, chosen, why, trace, trial.num_failures, retries))

    @override
    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        chosen, trace = self._current(trial), trace_of(trial)
        self.ledger.submit(partial(self.ledger.fail, chosen, reason_of(trial, trace), trace))


_LIVE: dict[str, Any] = {}
"""Objects of this process that pickles refer to by name, since Tune pickles the arguments of a Tuner to restore it."""


def _live(name: str) -> Any:
    return _LIVE[name]


class Ending(Stopper):
    """Ends all trials of a Tuner once `is_set` is True; each saves a checkpoint first."""

    def __init__(self) -> None:
        self.is_set = False

    def __reduce__(self) -> Any:
        """Pickle a reference, as `_LedgerCallback` does."""
        return _live, ("ending",)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return whether a trial ends after this report."""
        return self.is_set

    @override
    def stop_all(self) -> bool:
        return self.is_set


class _ChoicesFile:
    """The choices of a searcher so far, stored in the sweep's folder for the searcher of a later start."""

    def __init__(self, folder: RunFolder, is_kept: bool) -> None:
        self.folder = folder
        self.is_kept = is_kept
        content = outlast(partial(folder.read_if_there, CHOICES_FILE)) if is_kept else b""
        self.earlier: list[dict[str, Any]] = json.loads(content) if content else []
        self.seen = {json.dumps(config, sort_keys=True) for config in self.earlier}

    def add(self, config: Mapping[str, Any]) -> None:
        """Keep a choice."""
        key = json.dumps(config, sort_keys=True)
        if self.is_kept and key not in self.seen:
            self.seen.add(key)
            self.earlier.append(dict(config))
            outlast(partial(self.folder.write, CHOICES_FILE, json.dumps(self.earlier).encode()))


class _Silent(ProgressReporter):
    """Shows nothing: Tune's reporter for notebooks would clear earlier output."""

    @override
    def should_report(self, trials: list[Any], done: bool = False) -> bool:
        return False

    @override
    def report(self, trials: list[Any], done: bool, *sys_info: str) -> None: ...


def run_stage(start: "SweepStart", further: Sequence[Trial] | None = None) -> None:
    """Run trials on the connected cluster; trials that have already ended only report their logged numbers.

    Args:
        further: trials to run with further seeds of finished choices; None to run the trials of the space.
    """
    os.environ.update(_ENVIRONMENT)
    keep_credentials_out()
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # its tracebacks are in the runs' folders
    plan, sweep = start.plan, start.plan.sweep
    is_searched = further is None and sweep.search != "random"
    choices_file = _ChoicesFile(plan.folder, is_searched)
    scheduler = FIFOScheduler() if further is not None else plan.scheduler or scheduler_of(sweep, plan.epochs).make()
    may_pause = type(scheduler) not in _NEVER_PAUSE
    max_concurrent = 0 if may_pause else start.concurrent
    if further is None:
        space, num = plan.choices.param_space(is_searched), sweep.trials if plan.choices.space.is_random else 1
        searcher = plan.searcher or searcher_of(sweep, plan.seed, choices_file.earlier, max_concurrent).make()
    else:
        space, num = points(further, plan.choices), 1
        searcher = BasicVariantGenerator(max_concurrent=max_concurrent)
    tune_config = tune.TuneConfig(
        num_samples=num,
        search_alg=searcher,
        scheduler=scheduler,
        max_concurrent_trials=None if isinstance(searcher, BasicVariantGenerator) else max_concurrent or None,
        reuse_actors=not may_pause,
    )
    callback, trainable = _LedgerCallback(plan, start.ending, choices_file), _trials_of(start, may_pause)
    _LIVE.update(callback=callback, ending=start.ending)
    has_state, system = further is None and is_population(sweep), plan.folder.system
    state = f"{plan.folder.path}/{TUNE_FOLDER}"
    with temporary_folder("tune") as notes:
        run_config = tune.RunConfig(
            name=TUNE_FOLDER,
            storage_path=plan.folder.path if has_state else notes,
            storage_filesystem=system if has_state else None,
            stop=start.ending,
            failure_config=tune.FailureConfig(max_failures=sweep.retries),
            callbacks=[callback],
            progress_reporter=_Silent(),
            verbose=0,
        )
        warnings.filterwarnings("ignore", "Consider boosting PBT performance")  # a reused actor would train on
        try:
            if has_state and Tuner.can_restore(state, system):
                tuner = Tuner.restore(state, trainable, resume_errored=True, storage_filesystem=plan.folder.system)
            else:
                tuner = Tuner(trainable, param_space=space, tune_config=tune_config, run_config=run_config)
            tuner.fit()
        except (TuneError, RayError) as error:
            raise RunFailed(
                f"Ray Tune ended the sweep: {short_reason(str(error))}; the same command runs the trials that are left"
            ) from error


def _trials_of(start: "SweepStart", may_pause: bool) -> Any:
    keep = keeping if is_population(start.plan.sweep) else (lambda base: base)
    attributes = {
        "bases": {name: keep(base) for name, base in start.bases.items()},
        "folder": start.plan.folder.uri,
        "concurrent": start.concurrent,
        "choices": start.plan.choices,
        "checkpoints": tuple(start.plan.sweep.checkpoints),
        "may_pause": may_pause,
        "since": time.time(),
    }
    return type("raysl", (SweepTrial,), attributes)
