"""A sweep as a `Tuner` of Ray Tune over `raysl.tune.trainable`'s trials."""

import json
import logging
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from ray import tune
from ray.exceptions import RayError
from ray.tune import ProgressReporter, Stopper, TuneError, Tuner
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import BasicVariantGenerator
from typing_extensions import override

from raysl.config.schema import RunConfig
from raysl.errors import RunFailed
from raysl.process.temporary import temporary_folder
from raysl.runs.folder import RunFolder
from raysl.storage.folder import outlast
from raysl.sweeps.param_space import Choices, points
from raysl.sweeps.schedulers import make_scheduler, make_searcher
from raysl.sweeps.schema import is_population
from raysl.tune.credentials import keep_credentials_out
from raysl.tune.failures import reason_of, short_reason, trace_of
from raysl.tune.note import Note, measures_of
from raysl.tune.run_trainable import RunTrainable, keeping
from raysl.tune.run_trial import measure_checkpoint
from raysl.tune.trial import Trial

if TYPE_CHECKING:
    from raysl.sweeps.run import SweepRun

TUNE_FOLDER = "tune"
"""Tune's own state of a population, in the folder of the sweep."""
CHOICES_FILE = "choices.json"
"""What a searcher has chosen, in the folder of the sweep."""
_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # runs have logs of their own
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # benchmarks are measured at the end
    "TUNE_RESULT_BUFFER_LENGTH": "1",
    "RAY_AIR_NEW_OUTPUT": "0",  # whose box of settings nobody can switch off
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # signals are heeded by raysl.process.signals
}


class SweepTrial(RunTrainable):
    """A trial of a sweep; `trials_of` derives a class with settings.

    Attributes:
        choices: turns Tune's choices into trials.
        checkpoints: names of what is measured and not trained.
    """

    choices: ClassVar[Choices]
    checkpoints: ClassVar[Collection[str]] = ()

    @classmethod
    @override
    def chosen(cls, config: Mapping[str, Any]) -> Trial:
        return cls.choices.trial(config)

    @override
    def step(self) -> dict[str, Any]:
        """Measure a checkpoint, or train as `RunTrainable.step`."""
        if self.trial.config not in self.checkpoints:
            return super().step()
        config = self.trial.run_of(self.bases, self.folder)
        note = Note.read(RunFolder.of(config))
        if note is None or not note.is_of_now(0, measures_of(config)):
            note = measure_checkpoint(self.trial.config, config, self.trial.told())
        return {**note.metrics, "epoch": 0.0, "done": True, "status": note.status}


@dataclass(frozen=True)
class Stage:
    """What one Tuner runs.

    Args:
        bases: base settings by name, with their share of the cluster.
        concurrent: trials at a time.
        further: trials to run, each with another seed of settings that came to their end; None: those of the space.
    """

    plan: "SweepRun"
    bases: Mapping[str, RunConfig]
    concurrent: int
    further: Sequence[Trial] | None = None


class _Told(tune.Callback):
    """Tells the ledger what Tune does."""

    def __init__(self, plan: "SweepRun", ending: "Ending", keep: "_Choices") -> None:
        self.plan = plan
        self.ledger = plan.ledger
        self.ending = ending
        self.keep = keep
        self.trials: dict[str, Trial] = {}  # by Tune's names: the newest run of each

    def __reduce__(self) -> Any:
        """Return the one of the process that restores a Tuner."""
        return _live, ("told",)

    @override
    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if trial.trial_id not in self.trials:
            own = self.trials[trial.trial_id] = self.plan.choices.trial(trial.config)
            self.keep.add(trial.config)
            self.ledger.do(partial(self.ledger.begin, own))

    @override
    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        before = self.trials[trial.trial_id]
        parent = result.get("parent")
        own = self.plan.choices.trial(trial.config, None if parent is None else (parent[0], int(parent[1])))
        if own.name != before.name:  # a population has it go on from another one's weights
            self.trials[trial.trial_id] = own
            last = self.ledger.records[before.name].logged.reached if before.name in self.ledger.records else 0.0
            origin = "" if parent is None else f", from {parent[0]}"
            self.ledger.do(partial(self.ledger.stop, before, last, f"it goes on as {own.name}{origin}"))
            self.ledger.do(partial(self.ledger.begin, own))

    @override
    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        own, last = self.trials.get(trial.trial_id), trial.last_result or {}
        if own is None:
            return
        if "status" in last or self.ending.is_set:
            self.ledger.do(partial(self.ledger.end, own))
            return
        metric, epoch = self.plan.sweep.early.metric, float(last.get("epoch", 0.0))
        value = f", {metric} {last[metric]:.4g}" if metric in last else ""
        why = f"{self.plan.sweep.scheduler} at epoch {epoch:g}{value}"
        self.ledger.do(partial(self.ledger.stop, own, epoch, why))

    @override
    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        own, trace = self.trials[trial.trial_id], trace_of(trial)
        why, retries = reason_of(trial, trace), self.plan.sweep.retries
        self.ledger.do(partial(self.ledger.fail_once, own, why, trace, trial.num_failures, retries))

    @override
    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if (own := self.trials.get(trial.trial_id)) is not None:
            trace = trace_of(trial)
            self.ledger.do(partial(self.ledger.fail, own, reason_of(trial, trace), trace))


_LIVE: dict[str, Any] = {}
"""What a Tuner of this process tells and asks, by name: Tune pickles its arguments, and restores them from that."""


def _live(name: str) -> Any:
    return _LIVE[name]


class Ending(Stopper):
    """Ends all trials of a Tuner once it is set; they save first."""

    def __init__(self) -> None:
        self.is_set = False

    def __reduce__(self) -> Any:
        """Return the one of the process that restores a Tuner."""
        return _live, ("ending",)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return whether a trial is to end after a report."""
        return self.is_set

    @override
    def stop_all(self) -> bool:
        return self.is_set


class _Choices:
    """What a searcher has chosen so far, kept in the sweep's folder: a later start has it see their numbers again."""

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


def run_stage(stage: Stage, ending: Ending) -> None:
    """Run trials, in a process that is connected to a cluster; those that have ended report what they had logged."""
    os.environ.update(_ENVIRONMENT)
    keep_credentials_out()
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # tracebacks, which are in the runs' folders
    sweep, folder, is_further = stage.plan.sweep, stage.plan.folder, stage.further is not None
    is_searched = not is_further and sweep.search != "random"
    keep = _Choices(folder, is_searched)
    told, trainable = _Told(stage.plan, ending, keep), _trials_of(stage)
    _LIVE.update(told=told, ending=ending)
    has_state, choices = not is_further and is_population(sweep), stage.plan.choices
    space = choices.param_space(is_searched) if stage.further is None else points(stage.further, choices)
    with temporary_folder("tune") as notes:
        where = folder.uri if has_state else notes
        state = folder.uri_of(TUNE_FOLDER)
        run_config = tune.RunConfig(
            name=TUNE_FOLDER,
            storage_path=where,
            stop=ending,
            failure_config=tune.FailureConfig(max_failures=sweep.retries),
            callbacks=[told],
            progress_reporter=_Silent(),
            verbose=0,
        )
        try:
            if has_state and Tuner.can_restore(state):
                tuner = Tuner.restore(state, trainable, resume_errored=True)
            else:
                tuner = Tuner(
                    trainable,
                    param_space=space,
                    tune_config=_tune_config(stage, keep.earlier),
                    run_config=run_config,
                )
            tuner.fit()
        except (TuneError, RayError) as error:
            raise RunFailed(
                f"Ray Tune ended the sweep: {short_reason(str(error))}; the same command runs the trials that are left"
            ) from error


def _tune_config(stage: Stage, earlier: Sequence[Mapping[str, Any]]) -> tune.TuneConfig:
    plan, sweep = stage.plan, stage.plan.sweep
    if stage.further is not None:
        own = BasicVariantGenerator(max_concurrent=stage.concurrent)
        return tune.TuneConfig(search_alg=own, scheduler=FIFOScheduler(), reuse_actors=True)
    scheduler = plan.scheduler or make_scheduler(sweep, plan.epochs)
    # Tune counts paused trials too; those that go on are as many as the cluster has room for
    pauses = sweep.scheduler in ("hyperband", "bohb") or is_population(sweep)
    most = 0 if pauses else stage.concurrent
    return tune.TuneConfig(
        num_samples=sweep.trials if plan.choices.space.is_random else 1,
        search_alg=plan.searcher or make_searcher(sweep, plan.seed, earlier, most),
        scheduler=scheduler,
        max_concurrent_trials=most or None if sweep.search != "random" else None,
        reuse_actors=not pauses,
    )


def _trials_of(stage: Stage) -> Any:
    sweep = stage.plan.sweep
    keeps = {name: base if not is_population(sweep) else keeping(base) for name, base in stage.bases.items()}
    own = {
        "bases": keeps,
        "folder": stage.plan.folder.uri,
        "concurrent": stage.concurrent,
        "choices": stage.plan.choices,
        "checkpoints": tuple(sweep.checkpoints),
        "since": time.time(),
    }
    return type("raysl", (SweepTrial,), own)
