"""Settings that exist for some choices alone, and draws that belong to their place."""

import pytest

from raysl.errors import ConfigError
from raysl.sweeps.space import ABSENT, Space, present_in

NESTED = {
    "method.queue_size": {"choice": [64, 128], "when": {"method.name": "moco"}},
    "method": {"choice": ["simclr", "moco"]},
    "optim.lr": {"uniform": [0, 1]},
}


def _nothing(key: str) -> object:
    return ABSENT


def test_a_setting_with_a_condition_is_there_for_those_choices_alone() -> None:
    space = Space.of(NESTED)
    draws = [space.at(0, turn, {}, _nothing) for turn in range(50)]
    assert {draw["method"] for draw in draws} == {"simclr", "moco"}
    assert all(("method.queue_size" in draw) == (draw["method"] == "moco") for draw in draws)


def test_a_condition_may_be_about_what_the_configuration_has() -> None:
    space = Space.of({"method.queue_size": {"choice": [64], "when": {"method.name": ["moco", "nnclr"]}}})
    assert space.at(0, 0, {}, present_in({"method": {"name": "nnclr"}})) == {"method.queue_size": 64}
    assert space.at(0, 0, {}, present_in({"method": {"name": "simclr"}})) == {}
    assert space.at(0, 0, {}, present_in({})) == {}


def test_a_draw_is_a_function_of_seed_turn_and_name() -> None:
    space = Space.of(NESTED)
    alone = Space.of({"optim.lr": {"uniform": [0, 1]}})
    first = space.at(3, 7, {}, _nothing)
    assert space.at(3, 7, {}, _nothing) == first
    assert alone.at(3, 7, {}, _nothing)["optim.lr"] == first["optim.lr"], "what else varies changes nothing"
    assert len({alone.at(3, turn, {}, _nothing)["optim.lr"] for turn in range(100)}) == 100
    assert alone.at(4, 7, {}, _nothing) != alone.at(3, 7, {}, _nothing)


def test_a_grid_has_all_combinations_and_the_same_draw_beside_each() -> None:
    space = Space.of({"a": {"grid": [1, 2]}, "b": {"grid": ["x", "y", "z"]}, "lr": {"uniform": [0, 1]}})
    grids = list(space.grid())
    assert len(grids) == space.num_grid() == 6
    assert grids[0] == {"a": 1, "b": "x"}
    assert grids[1] == {"a": 1, "b": "y"}
    assert len({space.at(0, 0, grid, _nothing)["lr"] for grid in grids}) == 1


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
    ],
)
def test_conditions_that_cannot_be_met_are_refused(tree: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Space.of(tree)


def test_structures_are_the_combinations_that_decide_what_else_there_is() -> None:
    structures = list(Space.of(NESTED).structures(_nothing))
    assert {(draw["method"], draw.get("method.queue_size")) for draw in structures} == {("simclr", None), ("moco", 64)}
