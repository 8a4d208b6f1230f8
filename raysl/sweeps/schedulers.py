"""The scheduler and the searcher of a sweep: Ray Tune's, by their names or import paths."""

import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import SearchAlgorithm, Searcher

from raysl.components import nearest
from raysl.config.dump import show
from raysl.errors import ConfigError
from raysl.leaderboard.entry import Objective
from raysl.sweeps.distributions import LISTS, of_tune
from raysl.sweeps.param_space import domain
from raysl.sweeps.schema import SCHEDULERS, SEARCHERS, SweepConfig, check_name
from raysl.sweeps.space import Space


@dataclass(frozen=True)
class Made:
    """A class of Ray Tune's, by its import path, and its arguments; `key` is the setting that names it."""

    key: str
    path: str
    kind: Any
    arguments: dict[str, Any]

    def make(self) -> Any:
        """Return an instance."""
        try:
            return self.kind(**self.arguments)
        except ImportError as error:
            raise ConfigError(f"{self.key} needs a package: {error}; install it, or choose another one") from error
        except Exception as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise ConfigError(f"{self.key}: {self.kind.__name__} refuses its arguments: {reason}") from error

    def __str__(self) -> str:
        plain = {name: of_tune(value) for name, value in self.arguments.items() if value is not None}
        words = [f"{name}={show(value)}" for name, value in plain.items() if not isinstance(value, np.random.Generator)]
        return f"{self.path}({', '.join(words)})"


def scheduler_of(sweep: SweepConfig, epochs: int) -> Made:
    """Return the scheduler of a sweep.

    Args:
        epochs: those of the longest trial.
    """
    space = Space.of(sweep.space)
    varied = {key: own for key, own in space.distributions.items() if own.kind != "grid"}
    early = sweep.early
    defaults = {
        "time_attr": "epoch",
        "metric": early.metric,
        "mode": early.mode,
        "max_t": epochs,
        "grace_period": 1,
        "perturbation_interval": 5,
        "hyperparam_mutations": {key: domain(own) for key, own in varied.items()},
        "hyperparam_bounds": {key: list(own.bounds) for key, own in varied.items() if own.kind not in LISTS},
    }
    return _made("scheduler", sweep.scheduler, SCHEDULERS, sweep.scheduler_args, defaults, TrialScheduler)


def searcher_of(sweep: SweepConfig, seed: int, earlier: Sequence[Mapping[str, Any]] = (), concurrent: int = 0) -> Made:
    """Return the searcher of a sweep.

    Args:
        earlier: what it has chosen in earlier starts, in their order: it sees their numbers again.
        concurrent: trials at a time of Tune's own generator; 0: all. Those of a searcher are the Tuner's setting.
    """
    objectives: Sequence[Objective] = sweep.objectives
    metrics, modes = [own.metric for own in objectives], [own.mode for own in objectives]
    takes_several = sweep.search == "optuna" and len(objectives) > 1
    defaults: dict[str, Any] = {
        "metric": metrics if takes_several else metrics[0],
        "mode": modes if takes_several else modes[0],
        "seed": seed,
        "random_state_seed": seed,
        "random_seed": seed,
        "random_state": seed,
        "points_to_evaluate": [dict(point) for point in earlier] or None,
    }
    if sweep.search == "random":
        defaults = {"constant_grid_search": True, "random_state": np.random.default_rng(seed)}
        defaults |= {"max_concurrent": concurrent} if concurrent else {}
    return _made("search", sweep.search, SEARCHERS, sweep.search_args, defaults, (Searcher, SearchAlgorithm))


def _made(
    key: str, name: str, known: Mapping[str, str], given: Mapping[str, Any], defaults: Mapping[str, Any], kinds: Any
) -> Made:
    check_name(key, name, known)
    path = known.get(name, name)
    module, _, attribute = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{key}={name}: {path} cannot be imported: {error}") from error
    if not (inspect.isclass(found) and issubclass(found, kinds)):
        raise ConfigError(
            f"{key}={name}: {path} is none of Ray Tune's; give a class of ray.tune's or your own of that kind"
        )
    names = inspect.signature(found.__init__).parameters
    takes_any = any(own.kind is inspect.Parameter.VAR_KEYWORD for own in names.values())
    for argument in given:
        if argument not in names and not takes_any:
            near = nearest(argument, list(names))
            hint = f"did you mean {near!r}? " if near else ""
            takes = ", ".join(argument for argument in names if argument != "self")
            raise ConfigError(f"{key}_args: {found.__name__} has no argument {argument!r}; {hint}it has {takes}")
    own = {argument: value for argument, value in defaults.items() if argument in names}
    return Made(f"{key}={name}", path, found, {**own, **given})
