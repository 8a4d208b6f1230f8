"""What can be refused before a sweep starts anything."""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from raysl.benchmarks.benchmark import Needs
from raysl.benchmarks.suite.fitting import MeasuredImages, check_benchmarks
from raysl.config.dump import show, to_dict
from raysl.config.load import apply_overrides
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError, Problems, log, with_names
from raysl.process.screen import only_errors, warnings_named
from raysl.sweeps.distributions import LISTS
from raysl.sweeps.ray_tune import scheduler_of, searcher_of
from raysl.sweeps.schema import COSTS, SweepConfig, is_population
from raysl.sweeps.space import ABSENT, Space, is_component, present_in, without_name
from raysl.train.prepare import prepare
from raysl.train.state import TrainState
from raysl.tune.trial import setting

MOST_COMBINATIONS = 10_000  # combinations of values that are looked at to see whether a condition can hold
MOST_STRUCTURES = 64  # combinations of components that are looked at before a sweep starts


class MetricMissing(ConfigError):
    """A configuration does not report what is to rank its trials."""


def check_trials(bases: Mapping[str, RunConfig], sweep: SweepConfig) -> None:
    """Refuse what could not be tried, and numbers that nothing would report."""
    space = Space.of(sweep.space)
    _check_conditions(bases, space)
    lacking: list[str] = []
    problems = Problems()
    for name, base in bases.items():
        with problems.catching(name), warnings_named(name):
            try:
                _check_values(base, space)
                if is_population(sweep):
                    _check_shapes(base, space)
                _check_metrics(base, sweep, space)
            except MetricMissing as error:
                lacking.append(with_names([name] if name else [], str(error)))
    problems.check()
    if lacking and len(lacking) == len(bases):
        raise MetricMissing(lacking[0])
    for line in lacking:
        log.warning("%s; what departs from it comes last", line)


def check_tune(sweep: SweepConfig, epochs: int, scheduler: Any = None, searcher: Any = None) -> None:
    """Refuse arguments that Ray Tune's scheduler or searcher refuses; say plainly what a sweep will not do."""
    _ = scheduler or scheduler_of(sweep, epochs).make()
    _ = searcher or searcher_of(sweep, 0).make()
    first = sweep.scheduler_args.get("grace_period", sweep.scheduler_args.get("perturbation_interval", 1))
    if sweep.scheduler != "none" and first >= epochs:
        log.warning(
            "no trial is longer than %d epochs, so %s, which looks first at epoch %g, changes nothing; give fewer in "
            "scheduler_args, or scheduler=none",
            epochs,
            sweep.scheduler,
            first,
        )
    for key, distribution in Space.of(sweep.space).distributions.items():
        if distribution.kind not in LISTS and distribution.num_values < sweep.trials:
            log.warning(
                "space.%s: %s has %d distinct values for %d trials; equal draws are one trial",
                key,
                show({distribution.kind: distribution.values}),
                distribution.num_values,
                sweep.trials,
            )


def _check_conditions(bases: Mapping[str, RunConfig], space: Space) -> None:
    """Refuse settings whose condition names no setting, or never holds in the space and the configurations."""
    presents = {name: present_in(to_dict(base)) for name, base in bases.items()}
    for key, distribution in space.distributions.items():
        for name in distribution.when:
            if not space.draws(name) and all(present(name) is ABSENT for present in presents.values()):
                raise ConfigError(f"space.{key}.when: there is no setting {name!r}; raysl config shows those there are")
    draws = (draw for present in presents.values() for draw in space.structures(present))
    seen = [set(draw) for draw in itertools.islice(draws, MOST_COMBINATIONS)]
    drawn = set().union(*seen)
    never = [key for key in space.distributions if key not in drawn and len(seen) < MOST_COMBINATIONS]
    for key in never[:1]:
        when = space.distributions[key].when
        fixed = [(name, present(name)) for name in when if not space.draws(name) for present in presents.values()]
        values = [f"{name} is {show(value)}" for name, value in fixed if value is not ABSENT]
        has = f"; {', '.join(dict.fromkeys(values))}" if values else ""
        raise ConfigError(
            f"space.{key}.when: {show(when)} never holds, so {key} is never drawn{has}; change the "
            "condition, or take the entry out"
        )


def _check_values(base: RunConfig, space: Space) -> None:
    """Check every value of every setting, with each combination of components in which it exists."""
    seen: set[str] = set()
    problems = Problems()
    for draw in itertools.islice(space.structures(present_in(to_dict(base))), MOST_STRUCTURES):
        with problems.catching():
            apply_overrides(base, [setting(key, value) for key, value in draw.items()])
        for key in draw:
            needed = {without_name(name) for name in space.distributions[key].when}
            kept = [name for name in draw if is_component(name) or without_name(name) in needed]
            fixed = [setting(name, draw[name]) for name in kept if name != key]
            for value in space.distributions[key].examples():
                overrides = [*fixed, setting(key, value)]
                if " ".join(overrides) not in seen:
                    seen.add(" ".join(overrides))
                    with problems.catching():
                        apply_overrides(base, overrides)
    problems.check()


def _check_shapes(base: RunConfig, space: Space) -> None:
    """Refuse settings of a population that change what its runs take from each other."""
    keys = [key for key in space.distributions if key.startswith("method.")]
    with only_errors():
        shapes = _shapes(base) if keys else {}
        for key in keys:
            for value in space.distributions[key].examples():
                if _shapes(apply_overrides(base, [setting(key, value)])) != shapes:
                    raise ConfigError(
                        f"space.{key}: {value!r} makes other tensors than the configuration has, and the runs of a "
                        "population go on from each other's; take it out, or choose another scheduler"
                    )


def _shapes(config: RunConfig) -> dict[str, torch.Size]:
    run = prepare(config)
    with torch.random.fork_rng(devices=[]):
        state = TrainState.create(run.setup, "cpu", run.classes, is_new=False)
    return {name: tensor.shape for name, tensor in state.method.state_dict().items()}


def _check_metrics(base: RunConfig, sweep: SweepConfig, space: Space) -> None:
    """Refuse to rank by a number that nothing reports.

    Numbers of a configuration are known before it runs, unless its method or its data vary.
    """
    wanted = list(sweep.objectives) + ([sweep.early] if sweep.scheduler != "none" else [])
    has_own_data = any(key.split(".")[0] == "data" for key in space.distributions)
    online = [objective.metric for objective in wanted if objective.metric.startswith("knn_")]
    # the images are the same in all trials
    if online and not has_own_data and (missing := MeasuredImages.of(base.data).lacks(Needs())):
        raise MetricMissing(
            f"metric: {online[0]} cannot be measured, {missing}; rank by another, such as metric=loss mode=min"
        )
    if has_own_data or any(key in ("method", "method.name") for key in space.distributions):
        return
    names = [objective.metric for objective in wanted if objective.metric not in COSTS]
    expected = {name: (float("-inf"), float("inf")) for name in names}
    try:
        prepare(replace(base, train=replace(base.train, expect={**base.train.expect, **expected})), check_benchmarks)
    except ConfigError as error:
        if str(error).startswith("train.expect: nothing will report"):
            key = "early_metric" if f" {sweep.early_metric!r};" in str(error) else "metric"
            raise MetricMissing(str(error).replace("train.expect", key)) from error
        raise
