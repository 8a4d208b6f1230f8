"""What Ray Tune is told of a sweep's space, and what a choice of Tune's comes to."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from ray import tune
from ray.tune.search.variant_generator import generate_variants

from raysl.config.dump import to_dict
from raysl.config.schema import RunConfig
from raysl.redact import redact_tree, redact_uri
from raysl.sweeps.distributions import LISTS, Distribution
from raysl.sweeps.space import Draw, Space, present_in
from raysl.tune.trial import ALONE, CONFIG, Trial, trial_of

POINT = "settings"
"""The one key of a param_space whose trials are given one by one."""


class Choices:
    """The choices of a sweep: the words in which Ray Tune has them, and their trials.

    Tune writes what it chooses into its logs and its state, so values with credentials, and those that are no plain
    number or text, stand there as text without credentials.

    Args:
        bases: configurations that trials depart from, by name.
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
        """Return the trial of a choice of Tune's; settings whose condition does not hold are not in it.

        Args:
            parent: run and step that it goes on from.
        """
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
