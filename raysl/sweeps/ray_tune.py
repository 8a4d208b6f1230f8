"""A sweep in the terms of Ray Tune: its space, and what Tune chooses there, its scheduler and its searcher."""

import importlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from ray import tune
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import SearchAlgorithm, Searcher
from ray.tune.search.variant_generator import generate_variants

from raysl.components import nearest
from raysl.config.dump import show, to_dict
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.redact import redact_tree, redact_uri
from raysl.sweeps.distributions import LISTS, Distribution, of_tune
from raysl.sweeps.schema import SCHEDULERS, SEARCHERS, SweepConfig, check_name
from raysl.sweeps.space import Draw, Space, present_in
from raysl.tune.trial import ALONE, CONFIG, Trial, trial_of

POINT = "settings"
"""The one key of a param_space whose trials are given one by one."""


class Choices:
    """The choices of a sweep: the words in which Ray Tune has them, and their trials.

    Tune writes what it chooses into its logs and its state, so values with credentials, and those that are no plain
    number or text, stand there as text without credentials.
    """

    def __init__(self, space: Space, bases: Mapping[str, RunConfig]) -> None:
        self.space = space
        self.seeds = {name: base.seed for name, base in bases.items()}
        self.names = {redact_uri(name): name for name in bases}
        self._present = {name: present_in(to_dict(base)) for name, base in bases.items()}

    def param_space(self, is_searched: bool) -> dict[str, Any]:
        """Return all that varies, as Tune's domains.

        Args:
            is_searched: whether a searcher chooses; if not, each configuration is tried in each draw.
        """
        domains = {key: domain(distribution) for key, distribution in self.space.distributions.items()}
        if list(self.names.values()) == [ALONE]:
            return domains
        names = list(self.names)
        return {CONFIG: tune.choice(names) if is_searched else tune.grid_search(names), **domains}

    def drawn(self, num: int, seed: int) -> Iterator[dict[str, Any]]:
        """Yield what Tune's own generator chooses with this seed in a number of draws."""
        spec, chance = {"config": self.param_space(is_searched=False)}, np.random.default_rng(seed)
        for _ in range(num):
            for _, variant in generate_variants(spec, constant_grid_search=True, random_state=chance):
                yield dict(variant["config"])

    def trial(self, config: Mapping[str, Any], parent: tuple[str, int] | None = None) -> Trial:
        """Return the trial of a choice of Tune's; settings whose condition does not hold are not in it."""
        config = config.get(POINT, config)
        name = self.names[config.get(CONFIG, ALONE)]
        known: Draw = self.space.settle(lambda key, values: _decode(values, config[key]), self._present[name])
        seed = config.get("seed", self.seeds[name])
        return replace(trial_of({"seed": seed, **known}, self.seeds[name], name), parent=parent)

    def point(self, trial: Trial) -> dict[str, Any]:
        """Return a choice whose trial is this one."""
        encoded = {key: encode(value) for key, value in trial.settings.items()}
        config = {} if trial.config == ALONE else {CONFIG: redact_uri(trial.config)}
        return {**config, **encoded, "seed": trial.seed}


def domain(distribution: Distribution) -> Any:
    """Return Tune's domain of a distribution, or its search over a grid."""
    values = distribution.values
    if distribution.kind in LISTS:
        texts = [encode(value) for value in values]
        return tune.grid_search(texts) if distribution.kind == "grid" else tune.choice(texts)
    step = () if distribution.step is None else (distribution.step,)
    ends = distribution.bounds if step else values[:2]  # Tune's are to be multiples of the step
    return getattr(tune, distribution.kind)(*ends, *step)


def points(trials: Sequence[Trial], choices: Choices) -> dict[str, Any]:
    """Return a param_space of these trials and no others."""
    return {POINT: tune.grid_search([choices.point(trial) for trial in trials])}


def encode(value: Any) -> Any:
    """Return a value as Tune has it: numbers, truth values and harmless texts as they are, all else as text.

    >>> encode(0.1), encode("moco"), encode([1, 2])
    (0.1, 'moco', '[1, 2]')
    """
    is_plain = value is None or isinstance(value, bool | int | float | str)
    shown = redact_tree(value)
    return value if is_plain and shown == value else json.dumps(shown)


def _decode(distribution: Distribution, encoded: Any) -> Any:
    if distribution.kind in LISTS:
        return next((value for value in distribution.values if encode(value) == encoded), encoded)
    return distribution.rounded(encoded)


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
            setting = self.key.partition("=")[0]
            arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
            raise ConfigError(
                f"{self.key}: {self.kind.__name__} refuses its arguments {arguments}: {reason}; correct {setting}_args:"
            ) from error

    def __str__(self) -> str:
        plain = {name: of_tune(value) for name, value in self.arguments.items() if value is not None}
        shown = (f"{name}={show(value)}" for name, value in plain.items() if not isinstance(value, np.random.Generator))
        return f"{self.path}({', '.join(shown)})"


def scheduler_of(sweep: SweepConfig, epochs: int) -> Component:
    """Return the scheduler of a sweep."""
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
