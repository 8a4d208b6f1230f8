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
from raysl.sweeps.distributions import LISTS, of_tune
from raysl.sweeps.param_space import domain
from raysl.sweeps.schema import SCHEDULERS, SEARCHERS, SweepConfig, check_name
from raysl.sweeps.space import Space


@dataclass(frozen=True)
class Component:
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
        shown = (f"{name}={show(value)}" for name, value in plain.items() if not isinstance(value, np.random.Generator))
        return f"{self.path}({', '.join(shown)})"


def scheduler_of(sweep: SweepConfig, epochs: int) -> Component:
    """Return the scheduler of a sweep.

    Args:
        epochs: those of the longest trial.
    """
    space = Space.of(sweep.space)
    varied = {key: values for key, values in space.distributions.items() if values.kind != "grid"}
    early = sweep.early
    defaults = {
        "time_attr": "epoch",
        "metric": early.metric,
        "mode": early.mode,
        "max_t": epochs,
        "grace_period": 1,
        "perturbation_interval": 5,
        "hyperparam_mutations": {key: domain(values) for key, values in varied.items()},
        "hyperparam_bounds": {key: list(values.bounds) for key, values in varied.items() if values.kind not in LISTS},
    }
    return _component("scheduler", sweep.scheduler, SCHEDULERS, sweep.scheduler_args, defaults, TrialScheduler)


def searcher_of(sweep: SweepConfig, seed: int, earlier: Sequence[Any] = (), concurrent: int = 0) -> Component:
    """Return the searcher of a sweep.

    Args:
        earlier: choices of earlier starts, in their order: the searcher sees their numbers again.
        concurrent: trials at a time of Tune's own generator; 0: all. Those of a searcher are the Tuner's setting.
    """
    seed += len(earlier)  # else its first draws would be the earlier choices again
    metrics = [objective.metric for objective in sweep.objectives]
    modes = [objective.mode for objective in sweep.objectives]
    takes_several = sweep.search == "optuna" and len(metrics) > 1
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
    return _component("search", sweep.search, SEARCHERS, sweep.search_args, defaults, (Searcher, SearchAlgorithm))


def _component(
    key: str, name: str, known: Mapping[str, str], arguments: Mapping[str, Any], defaults: Mapping[str, Any], kinds: Any
) -> Component:
    check_name(key, name, known)
    path = known.get(name, name)
    module, _, attribute = path.rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{key}={name}: {path} cannot be imported: {error}") from error
    if not (inspect.isclass(kind) and issubclass(kind, kinds)):
        raise ConfigError(
            f"{key}={name}: {path} is none of Ray Tune's; give a class of ray.tune's or your own of that kind"
        )
    names = inspect.signature(kind.__init__).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in names.values())
    for argument in arguments:
        if argument not in names and not takes_any:
            near = nearest(argument, list(names))
            hint = f"did you mean {near!r}? " if near else ""
            takes = ", ".join(argument for argument in names if argument != "self")
            raise ConfigError(f"{key}_args: {kind.__name__} has no argument {argument!r}; {hint}it has {takes}")
    taken = {argument: value for argument, value in defaults.items() if argument in names}
    return Component(f"{key}={name}", path, kind, {**taken, **arguments})
