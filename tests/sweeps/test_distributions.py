"""What a setting of a search can be."""

import math

import numpy as np
import pytest
from ray import tune

from raysl.errors import ConfigError
from raysl.sweeps.distributions import parse
from raysl.sweeps.ray_tune import domain


@pytest.mark.parametrize(
    ("given", "low", "high"),
    [
        ({"uniform": [-1, 2]}, -1, 2),
        ({"loguniform": [0.001, 1]}, 0.001, 1),
        ({"randint": [2, 7]}, 2, 6),
        ({"randint": [-3, 4]}, -3, 3),
        ({"qrandint": [-7, 8, 3]}, -6, 6),
        ({"lograndint": [1, 1000]}, 1, 999),
        ({"quniform": [0, 1, 0.25]}, 0, 1),
        ({"qloguniform": [0.1, 10, 0.1]}, 0.1, 10),
        ({"qrandint": [4, 16, 4]}, 4, 16),
        ({"qlograndint": [2, 256, 2]}, 2, 256),
        ({"qrandint": [100, 1000, 64]}, 128, 960),
        ({"quniform": [0.1, 1, 0.25]}, 0.25, 1),
        ({"quniform": [0.05, 0.35, 0.1]}, 0.1, 0.3),
        ({"quniform": [0.1, 0.7, 0.1]}, 0.1, 0.7),
    ],
)
def test_what_tune_draws_is_rounded_to_values_of_the_range(given: dict, low: float, high: float) -> None:
    own = parse("key", given)
    given_to_tune = domain(own)
    drawn = [own.rounded(given_to_tune.sample(random_state=np.random.default_rng(seed))) for seed in range(300)]
    assert min(drawn) >= low
    assert max(drawn) <= high
    if own.step is not None:
        assert all(math.isclose(value / own.step, round(value / own.step)) for value in drawn)
    assert all(isinstance(value, int) for value in drawn) == ("randint" in own.kind)
    assert own.examples() == [low, high]


@pytest.mark.parametrize(
    ("given", "num"),
    [
        ({"randint": [-3, 4]}, 7),
        ({"quniform": [0.05, 0.5, 0.05]}, 10),
        ({"choice": [1, 2, 3]}, 3),
        ({"uniform": [0, 1]}, math.inf),
    ],
)
def test_the_values_of_a_range_are_counted(given: dict, num: float) -> None:
    assert parse("key", given).num_values == num


@pytest.mark.parametrize(
    ("theirs", "given"),
    [
        (tune.uniform(0.0, 1.0), {"uniform": [0.0, 1.0]}),
        (tune.loguniform(1e-3, 1.0), {"loguniform": [1e-3, 1.0]}),
        (tune.quniform(0, 1, 0.25), {"quniform": [0, 1, 0.25]}),
        (tune.randint(1, 5), {"randint": [1, 5]}),
        (tune.lograndint(1, 50), {"lograndint": [1, 50]}),
        (tune.qrandint(2, 10, 2), {"qrandint": [2, 10, 2]}),
        (tune.choice(["a", 1]), {"choice": ["a", 1]}),
    ],
)
def test_domains_of_ray_tune_are_the_same_in_our_words(theirs: object, given: dict) -> None:
    assert parse("key", theirs) == parse("key", given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"normal": [0, 1]}, "is no distribution; write one of {choice"),
        (3, "is no distribution"),
        (tune.randn(0, 1), "is no distribution"),
        ({"grid": []}, "is no list of values"),
        ({"grid": [1, 2, 1]}, "1 stands there twice"),
        ({"uniform": [1, 0]}, r"is no range; write \[low, high\], low below high"),
        ({"uniform": [1, 1]}, "is no range"),
        ({"loguniform": [0, 1]}, "both above 0"),
        ({"randint": [0.5, 2]}, "whole numbers, of which the second is never drawn"),
        ({"quniform": [0, 1]}, r"\[low, high, step\]"),
        ({"quniform": [0, 1, 2]}, "a step above 0 that is not larger than the range"),
        ({"uniform": [0, float("inf")]}, "is no range"),
        ({"choice": [1], "when": 3}, "is no condition"),
    ],
)
def test_what_is_no_distribution_is_refused_with_what_to_write(given: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse("optim.lr", given)
