"""Run a sweep from its settings to its leaderboard, on the driver.

Each trial is a run in `<storage>/<name>/trial_<hash of its settings>/`, with checkpoints and a report, and resumes like
any other run. Trials with equal settings share one run. In a second start of the same sweep, Ray Tune chooses the same
trials: those that have ended report their logged numbers again, and the others go on.
"""

import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from raysl.benchmarks.suite.protocols import protocols_of
from raysl.config.arguments import instance, run_config
from raysl.config.dump import write
from raysl.config.load import apply_overrides
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError, RunFailed, log
from raysl.leaderboard.board_files import Board
from raysl.leaderboard.entry import State, SweepFacts
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.process.screen import counted, logging_shown
from raysl.process.signals import handling_signals
from raysl.redact import bare_uri, redact_tree
from raysl.runs.folder import RunFolder
from raysl.schedule import Duration
from raysl.storage.addresses import absolute
from raysl.storage.owner import own_folder
from raysl.sweeps.checks import check_trials, check_tune
from raysl.sweeps.claim import changes_since, check_images, claim
from raysl.sweeps.ledger import Ledger
from raysl.sweeps.load import from_tree, load_starts, measured_starts
from raysl.sweeps.progress import Progress, outdated
from raysl.sweeps.ray_tune import Choices
from raysl.sweeps.record import Record
from raysl.sweeps.schema import SweepConfig, is_population
from raysl.sweeps.space import Space, with_runs_of_weights
from raysl.sweeps.start import SweepStart
from raysl.tune.trial import ALONE, Trial, measures_of
from raysl.weights.initial import load_config

EPOCHS = "train.epochs"
Facts = TypeVar("Facts")


def sweep(
    config: RunConfig | str,
    space: SweepConfig | Mapping[str, Any],
    starts: Mapping[str, RunConfig] | None = None,
    scheduler: Any = None,
    search: Any = None,
    **settings: Any,
) -> Leaderboard:
    """Run the trials of a sweep; a later call with the same name runs the trials that are left.

    >>> board = sweep("digits/simclr", {"optim.lr": {"loguniform": [0.02, 0.5]}}, trials=12)  # doctest: +SKIP
    >>> board.best.checkpoint  # doctest: +SKIP

    Args:
        config: base settings of the trials, or the name of a configuration; the sweep takes its `name` and `storage`.
        space: settings to vary, `{"optim.lr": {"loguniform": [0.02, 0.5]}}` or with Ray Tune's `tune.loguniform(0.02,
            0.5)`; or all settings of a sweep, as `raysl.sweeps.load.load_sweep` returns them.
        starts: base settings by name, for a sweep with `configs`; default: those of the files
            (`raysl.sweeps.load.load_starts`).
        scheduler: name or import path of a scheduler, or an object of Ray Tune, `ASHAScheduler(time_attr="epoch")`.
        search: name, import path or object of a searcher.
        settings: further settings of the sweep, `trials=12`, `metric="linear/top1"`, `name="lr"`.

    Raises:
        ConfigError: if a setting is wrong, another sweep has this name, or its trials have ended on other images.
        RunFailed: if no trial finished.
        Stopped: if the process was asked to end; all training is saved.
    """
    with handling_signals() as signals, logging_shown():
        for key, value in (("scheduler", scheduler), ("search", search)):
            if value is not None:
                settings[key] = value if isinstance(value, str) else f"{type(value).__module__}.{type(value).__name__}"
        objects = [None if isinstance(value, str) else value for value in (scheduler, search)]
        return SweepRun.of(config, space, starts, settings, *objects).run(signals)


class SweepRun:
    """A sweep whose settings have been checked.

    Attributes:
        scheduler, searcher: objects of Ray Tune that the caller gave; None to make them from the settings.
    """

    def __init__(
        self, base: RunConfig, bases: Mapping[str, RunConfig], sweep: SweepConfig, scheduler: Any, searcher: Any
    ) -> None:
        self.base = replace(base, storage=absolute(base.storage))
        self.sweep = sweep
        self.bases = {name: _with_metrics(start, sweep) for name, start in bases.items()}
        if is_population(sweep) and bare_uri(self.base.storage) != self.base.storage:
            raise ConfigError(
                "storage: Ray Tune stores this address in the state of a population; give its credentials as variables "
                "of the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        self.folder = RunFolder.of(self.base)
        self.seed = base.seed if sweep.seed is None else sweep.seed
        self.scheduler, self.searcher = scheduler, searcher
        check_trials(self.bases, sweep)
        self._cache: dict[tuple[str, str], Any] = {}
        self.board = Board(self.folder, self.leaderboard)
        space = Space.of(sweep.space)
        varied = space.distributions.get(EPOCHS)
        lengths = [] if varied is None else [int(value) for value in varied.examples()]
        if varied is None or varied.when:
            lengths += [start.train.epochs for start in self.bases.values()]
        self.epochs = max(lengths)
        check_tune(sweep, self.epochs, scheduler, searcher)
        self.choices = Choices(space, self.bases)
        self.ledger = Ledger(self.bases, self.folder, self._record)
        is_exact = sweep.search == "random" and (sweep.seeds == 1 or sweep.scheduler == "none")
        num = (len(self.planned) or sweep.trials) * sweep.seeds
        self.progress = Progress(self.ledger, num, sweep.seeds, sweep.objectives[0], is_exact)

    @cached_property
    def planned(self) -> dict[str, Trial]:
        """The trials of a random search, by name; empty for a searcher, whose choices depend on results."""
        if self.sweep.search != "random":
            return {}
        num = self.sweep.trials if self.choices.space.is_random else 1
        trials = [self.choices.trial(config) for config in self.choices.drawn(num, self.seed)]
        self.num_draws = Counter(trial.name for trial in trials)
        return {trial.name: trial for trial in trials}

    def further_seeds(self) -> list[Trial]:
        """Return trials with the further seeds of all choices that finished."""
        records = self.ledger.records.values()
        kept = [record.trial for record in records if record.status == "finished" and not record.is_further]
        trials = [replace(trial, seed=trial.seed + seed) for seed in range(1, self.sweep.seeds) for trial in kept]
        for trial in trials:
            self.ledger.add(trial).is_further = True
        return trials

    @classmethod
    def of(
        cls,
        config: RunConfig | str,
        space: SweepConfig | Mapping[str, Any],
        starts: Mapping[str, RunConfig] | None = None,
        settings: Mapping[str, Any] | None = None,
        scheduler: Any = None,
        searcher: Any = None,
    ) -> "SweepRun":
        """Check the arguments of `sweep`."""
        base = load_config(config) if isinstance(config, str) else run_config(config)
        if isinstance(space, Mapping):
            settings = {**(settings or {}), "space": dict(space)}
            space = SweepConfig()
        expected = "a space, {'optim.lr': {'loguniform': [0.02, 0.5]}}, or the first value that load_sweep() returns"
        sweep = instance(space, SweepConfig, "space", expected)
        if settings:
            sweep = from_tree({**vars(sweep), **settings}, "")
        base = replace(base, name=sweep.name or base.name, storage=sweep.storage or base.storage)
        sweep = replace(sweep, space=with_runs_of_weights(sweep.space, base.storage))
        if starts is None:
            starts = measured_starts(sweep) if sweep.checkpoints else load_starts(sweep)
            if sweep.settings and not starts:
                base = apply_overrides(base, sweep.settings)
        return cls(base, starts or {ALONE: base}, sweep, scheduler, searcher)

    def _record(self, trial: Trial) -> Record:
        epochs = trial.settings.get(EPOCHS, self.bases[trial.config].train.epochs)
        return Record(trial, 0 if trial.config in self.sweep.checkpoints else int(epochs), self.measures(trial))

    def measures(self, trial: Trial) -> dict[str, list[str]]:
        """Return the digests of settings and code of a trial's benchmarks, by name."""
        return self._cached(trial, "measures", ("benchmarks", "backbone"), measures_of)

    def _protocols_of(self, trial: Trial) -> dict[str, str]:
        """Return the protocols of a trial's measurements, see `Entry.protocols`."""
        return self._cached(trial, "protocols", ("benchmarks",), lambda config: protocols_of(config.benchmarks))

    def _cached(self, trial: Trial, what: str, varied: Sequence[str], make: Callable[[RunConfig], Facts]) -> Facts:
        """Return a fact that `make` computes from a trial's settings.

        It is computed once for all trials of a configuration whose `varied` settings are not in the space.
        """
        is_usual = not any(key.split(".")[0] in varied for key in trial.settings)
        key = what, trial.config if is_usual else trial.name
        if key not in self._cache:
            self._cache[key] = make(self.bases[trial.config] if is_usual else trial.run_of(self.bases, self.folder.uri))
        return cast(Facts, self._cache[key])

    @property
    def trained(self) -> dict[str, RunConfig]:
        """Base settings of the trials that are trained and not only measured."""
        return {name: base for name, base in self.bases.items() if name not in self.sweep.checkpoints}

    def check_folder(self) -> None:
        """Refuse the folder of a run or of another sweep."""
        changes_since(self.folder, self.base.name, self.bases, self.sweep)

    def current_board(self) -> Leaderboard:
        """Read all planned trials from their folders and return the leaderboard; run nothing."""
        for name, trial in self.planned.items():
            self.ledger.add(trial).draws = self.num_draws[name]
        if self.sweep.seeds > 1:
            self.further_seeds()
        return self.leaderboard()

    def run(self, signals: Any) -> Leaderboard:
        """Run the trials that are left."""
        self.folder.make()
        with own_folder(self.folder):
            for line in claim(self.folder, self.base.name, self.bases, self.sweep):
                log.info("the sweep has changed since its last start: %s", line)
            self.current_board()
            check_images(self.folder, self.trained, self.base.name, self.ledger.records.values())
            if self._has_trials_left():
                SweepStart(self).run(signals)
            if not_run := self.progress.num_dropped * (self.sweep.seeds - 1):
                seeds, choices = counted(not_run, "further seed"), counted(self.progress.num_dropped, "choice")
                log.info("not run: %s of %s that stopped early or failed", seeds, choices)
            board = self.board.write("done")
        self._check_finished(board)
        return board

    def _check_finished(self, board: Leaderboard) -> None:
        """Fail if no trial finished, since the table then compares nothing."""
        failed = [entry for entry in board.entries if entry.status == "failed"]
        if failed and not any(entry.status == "finished" for entry in board.entries):
            raise RunFailed(
                f"no trial finished: {len(failed)} of {len(board.entries)} failed, the first one because: "
                f"{failed[0].reason}; {board.path} has all reasons, and the same command tries them again"
            )

    def _has_trials_left(self) -> bool:
        """Whether a trial is left to run; log the number of those that have ended."""
        is_left = self.progress.num_ended < self.progress.num_trials
        if ended := self.progress.num_ended:
            log.info("the sweep %s: %s ended before", "goes on" if is_left else "is done", counted(ended, "trial"))
        for line in outdated(list(self.ledger.records.values()), self.measures):
            log.info(line)
        return is_left

    def leaderboard(self, state: State = "running") -> Leaderboard:
        """Return the leaderboard of the trials so far."""
        records = self.progress.records
        entries = [record.entry(i, self.folder, self._protocols_of(record.trial)) for i, record in enumerate(records)]
        facts = SweepFacts(
            name=self.base.name,
            objectives=self.sweep.objectives,
            path=self.folder.uri,
            command=shlex.join(["raysl", *sys.argv[1:]]) if Path(sys.argv[0]).name == "raysl" else "",
            space=write(redact_tree(self.sweep.space)) if self.sweep.space else "",
            search=self.sweep.search,
            scheduler=self.sweep.scheduler,
            trials=self.progress.num_trials,
            state=state,
            written=time.time(),
        )
        return Leaderboard(entries, facts)


def _with_metrics(start: RunConfig, sweep: SweepConfig) -> RunConfig:
    """Return base settings that report all numbers of the sweep: its benchmarks, and the online kNN if it ranks."""
    if sweep.benchmarks is not None:
        start = apply_overrides(start, [f"benchmarks=[{', '.join(sweep.benchmarks)}]"])
    looks = {objective.metric for objective in sweep.objectives}
    looks |= {sweep.early.metric} if sweep.scheduler != "none" else set()
    if not any(name.startswith("knn_") for name in looks):
        return start
    usual = start.train.online_knn_every or start.train.checkpoint_every
    every = usual if sweep.scheduler == "none" else Duration.parse("1ep")
    return replace(start, train=replace(start.train, online_knn_every=every))
