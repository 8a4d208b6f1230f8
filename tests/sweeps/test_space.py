"""Settings that exist for some choices alone, and draws that belong to their place."""

import random

import pytest

from raysl.errors import ConfigError
from raysl.sweeps.space import ABSENT, Draw, Present, Space, present_in

NESTED = {
    "method.queue_size": {"choice": [64, 128], "when": {"method.name": "moco"}},
    "method": {"choice": ["simclr", "moco"]},
    "optim.lr": {"uniform": [0, 1]},
}


def _nothing(key: str) -> object:
    return ABSENT


def _drawn(space: Space, present: Present, seed: int) -> Draw:
    chance = random.Random(seed)
    return space.settle(lambda key, own: chance.choice(own.examples()), present)


def test_a_setting_with_a_condition_is_there_for_those_choices_alone() -> None:
    draws = [_drawn(Space.of(NESTED), _nothing, seed) for seed in range(50)]
    assert {draw["method"] for draw in draws} == {"simclr", "moco"}
    assert all(("method.queue_size" in draw) == (draw["method"] == "moco") for draw in draws)


def test_a_condition_may_be_about_what_the_configuration_has() -> None:
    space = Space.of({"method.queue_size": {"choice": [64], "when": {"method.name": ["moco", "nnclr"]}}})
    assert _drawn(space, present_in({"method": {"name": "nnclr"}}), 0) == {"method.queue_size": 64}
    assert _drawn(space, present_in({"method": {"name": "simclr"}}), 0) == {}
    assert _drawn(space, present_in({}), 0) == {}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (
            {"a": {"choice": [1], "when": {"method": "mocco"}}, "method": {"choice": ["moco", "simclr"]}},
            "method is never 'mocco'; it is one of 'moco', 'simclr'",
        ),
        (
            {"a": {"choice": [1], "when": {"b": 1}}, "b": {"choice": [1], "when": {"a": 1}}},
            "a needs b needs a",
        ),
        (
            {"a": {"choice": [1], "when": {"b": 3}}, "b": {"randint": [0, 7]}},
            "b is drawn from a range, and a condition waits for values; list them with choice",
        ),
        ({"name": {"choice": ["a", "b"]}}, "space.name: the sweep gives each run its own name; take it out"),
        ({"storage": {"choice": ["a", "b"]}}, "space.storage: the sweep gives each run its own storage"),
        (
            {"method": {"choice": ["moco"]}, "method.name": {"choice": ["simclr"]}},
            "space.method.name: space.method writes this setting as well; keep one of the two",
        ),
        (
            {"train.expect": {"choice": [{"loss": [0, 9]}]}, "train.expect.loss": {"choice": [[0, 1]]}},
            "space.train.expect.loss: space.train.expect writes this setting as well",
        ),
    ],
)
def test_what_no_draw_could_decide_is_refused(tree: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Space.of(tree)


def test_structures_are_the_combinations_that_decide_what_else_there_is() -> None:
    structures = list(Space.of(NESTED).structures(_nothing))
    assert {(draw["method"], draw.get("method.queue_size")) for draw in structures} == {("simclr", None), ("moco", 64)}
