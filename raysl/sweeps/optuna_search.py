"""Trials that Optuna draws from what the earlier ones came to."""

import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from raysl.config.dump import to_dict
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.hashing import hash_words
from raysl.sweeps.distributions import Distribution
from raysl.sweeps.draws import Draws
from raysl.sweeps.record import Record
from raysl.sweeps.schema import SweepConfig
from raysl.sweeps.search import WAIT, IsKept, RandomSearch, Wait, trial_of
from raysl.sweeps.space import present_in
from raysl.sweeps.trial import CONFIG, Trial

RANDOM_FIRST = 5
"""Draws before there are results enough to draw from; whatever the number of trials, which may grow."""


class OptunaSearch(RandomSearch):
    """The tree-structured Parzen estimator of Optuna, of all values of a trial together (Bergstra et al. 2011).

    Each draw is a pure function of the seed, its place and the ends of all trials before it but the last `ahead - 1`,
    with a sampler and a study of its own. Once made it is kept, whatever those trials come to in a later start.
    Configurations are chosen as settings are. Trials that a scheduler stopped count by the number that they had then.

    Args:
        sweep, bases, seed: arguments of `RandomSearch`.
        draws: those of earlier starts, and where new ones are kept; default: each is made anew.
    """

    def __init__(
        self, sweep: SweepConfig, bases: Mapping[str, RunConfig], seed: int, draws: Draws | None = None
    ) -> None:
        super().__init__(sweep, bases, seed)
        _optuna()
        self.draws = draws
        self.place = 0
        self.drawn: list[Trial] = []

    @cached_property
    def num_choices(self) -> int:
        return self.sweep.trials

    def next(self, records: Sequence[Record], is_kept: IsKept) -> Trial | Wait | None:
        if self.place >= self.sweep.trials:
            self.firsts = iter(())
            return super().next(records, is_kept)
        kept = None if self.draws is None else self.draws.at(self.place)
        trial = kept or self._drawn_now(records, is_kept)
        if isinstance(trial, Trial):
            self.place += 1
            self.drawn.append(trial)
        return trial

    def _drawn_now(self, records: Sequence[Record], is_kept: IsKept) -> Trial | Wait:
        """A draw from what the trials before it came to, which is kept."""
        known = self.drawn[: max(0, self.place - self.sweep.ahead + 1)]
        by_name = {record.trial.name: index for index, record in enumerate(records)}
        ends = [by_name[trial.name] for trial in known]
        if any(is_kept(index) is None for index in ends):
            return WAIT
        trial = self._draw([records[index] for index in ends])
        if self.draws is not None:
            self.draws.keep(
                self.place, trial, {records[index].trial.name: self._values(records[index]) for index in ends}
            )
        return trial

    def _draw(self, known: Sequence[Record]) -> Trial:
        optuna = _optuna()
        objectives = self.sweep.objectives
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of group=True, since 2020
            sampler = optuna.samplers.TPESampler(
                n_startup_trials=RANDOM_FIRST,
                multivariate=True,
                group=True,  # settings that exist together are looked at together
                seed=hash_words(self.seed, self.place) % 2**32,
            )
        study = optuna.create_study(
            sampler=sampler,
            directions=["maximize" if objective.mode == "max" else "minimize" for objective in objectives],
        )
        for record in known:
            if (frozen := self._frozen(record)) is not None:
                study.add_trial(frozen)
        draws = study.ask()
        name = draws.suggest_categorical(CONFIG, list(self.bases)) if len(self.bases) > 1 else next(iter(self.bases))
        present = present_in(to_dict(self.bases[name]))
        draw = self.space.settle(lambda key, distribution: _suggest(draws, key, distribution), present)
        return trial_of(draw, self.bases[name].seed, name)

    def _values(self, record: Record) -> list[float] | None:
        """The numbers that a trial counts by; None of one that lacks one."""
        if record.verdict is None:
            values = [record.metric(objective) for objective in self.sweep.objectives]
        else:  # results after its verdict depend on timing: a fast trial trains on for longer
            has_objective = self.sweep.objectives == (self.sweep.early,)
            values = [record.course.at(record.verdict.epoch) if has_objective else None]
        numbers = [value for value in values if value is not None]
        return numbers if len(numbers) == len(values) else None

    def _frozen(self, record: Record) -> Any:
        """A trial in Optuna's words; None of one that has no number."""
        optuna = _optuna()
        values = self._values(record)
        if values is None:
            return None
        params = {key: _inside(value) for key, value in record.trial.settings.items()}
        known = self.space.distributions
        kinds = {key: _optuna_distribution(known[key]) for key in params if key in known}
        if len(self.bases) > 1:
            params[CONFIG] = record.trial.config
            kinds[CONFIG] = optuna.distributions.CategoricalDistribution(list(self.bases))
        drawn = {key: value for key, value in params.items() if key in kinds}
        return optuna.trial.create_trial(params=drawn, distributions=kinds, values=values)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(
            "search=optuna needs Optuna: pip install -e '.[sweep]' in raysl's folder, or set search=random"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _optuna_distribution(distribution: Distribution) -> Any:
    kinds = _optuna().distributions
    if distribution.kind == "choice":
        return kinds.CategoricalDistribution([_inside(value) for value in distribution.values])
    low, high = distribution.bounds
    if distribution.is_whole:
        return kinds.IntDistribution(
            int(low), int(high), log=distribution.is_log, step=1 if distribution.is_log else int(distribution.step or 1)
        )
    return kinds.FloatDistribution(
        low, high, log=distribution.is_log, step=None if distribution.is_log else distribution.step
    )


def _suggest(draws: Any, key: str, distribution: Distribution) -> Any:
    value = _ask(draws, key, distribution)
    if distribution.kind == "choice":
        return next(given for given in distribution.values if _inside(given) == value)
    return distribution.rounded(value)


def _ask(draws: Any, key: str, distribution: Distribution) -> Any:
    kind = _optuna_distribution(distribution)
    if distribution.kind == "choice":
        return draws.suggest_categorical(key, list(kind.choices))
    if distribution.is_whole:
        return draws.suggest_int(key, kind.low, kind.high, log=kind.log, step=kind.step)
    return draws.suggest_float(key, kind.low, kind.high, log=kind.log, step=kind.step)


def _inside(value: Any) -> Any:
    """A choice as one of the kinds that Optuna has: lists and groups as text."""
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)
