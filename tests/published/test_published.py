"""Every recipe for ImageNet is the one that it cites, but for the departures that its file lists with reasons."""

import pytest
import torch

from tests.published.files import FOLDER, PAGE, Published, compared, recipes, same, with_table
from tests.published.initial import Drawn, drawn, fans_of
from tests.tiers import each

FILES = sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.yaml"))


def test_every_recipe_has_a_file() -> None:
    assert sorted(recipes()) == FILES


@pytest.mark.parametrize("name", each(FILES, now=("mae", "simclr")))
def test_a_recipe_is_the_published_one(name: str) -> None:
    assert Published.read(name).problems() == []


@pytest.mark.thorough
def test_the_page_lists_the_departures_of_all_files() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page), "write it again: python -m tests.published"


OURS = {
    "epochs": 100,
    "batch": 64,
    "optimizer": "sgd",
    "warmup_epochs": 0.0,
    "lr": [0.1, 0.1, 0.09, 0.05, 0.0],
    "weight_decay": [1e-4] * 5,
    "decay_of": ["weights"],
    "layers.projector": ["2048", "ReLU", "128"],
    "init.projector": Drawn({"torch"}),
}


def published(departures: dict[str, tuple[object, str]] | None = None, **changed: object) -> Published:
    of_ours = {name: next(iter(value)) if isinstance(value, Drawn) else value for name, value in OURS.items()}
    facts = {name: (changed.get(name, value), "paper") for name, value in {**of_ours, **changed}.items()}
    return Published("mine", {"paper": "section 1"}, facts, departures or {})


def test_equal_facts_are_no_problem() -> None:
    assert compared(published(weight_decay=1e-4, lr=[0.1, 0.1, 0.09, 0.05, 1e-6]), OURS) == []


def test_a_departure_that_is_not_listed_fails() -> None:
    assert compared(published(batch=256), OURS) == ["batch: paper has 256, we have 64"]
    assert len(compared(published(lr=[0.1, 0.1, 0.09, 0.05, 1e-4]), OURS)) == 1


def test_a_listed_departure_has_our_value_and_goes_when_it_is_none_any_more() -> None:
    assert compared(published({"batch": (64, "memory")}, batch=256), OURS) == []
    assert compared(published({"batch": (32, "memory")}, batch=256), OURS) == [
        "batch: the departure says 32, we have 64"
    ]
    assert compared(published({"batch": (64, "memory")}), OURS) == [
        "batch: we have 64 as paper has; take the departure out"
    ]
    assert compared(published({"bach": (64, "memory")}), OURS) == ["bach: a departure from no fact"]


def test_an_unknown_fact_and_a_missing_one_fail() -> None:
    assert "no such fact" in compared(published(bach=64), OURS)[0]
    without = published()
    facts = {name: pair for name, pair in without.facts.items() if name != "lr"}
    assert compared(Published("mine", without.sources, facts, {}), OURS) == ["lr: every file states it"]


@pytest.mark.parametrize("fact", ["layers.projector", "init.projector"])
def test_a_file_without_heads_or_without_initial_weights_fails(fact: str) -> None:
    complete = published()
    facts = {name: pair for name, pair in complete.facts.items() if name != fact}
    (line,) = compared(Published("mine", complete.sources, facts, {}), OURS)
    assert line.startswith(f"{fact.partition('.')[0]}.*: every file states")
    without_heads = {name: value for name, value in OURS.items() if name != fact}
    assert compared(Published("mine", complete.sources, facts, {}), without_heads) == []


def test_values_are_equal_to_a_thousandth_and_one_number_stands_for_a_list_of_it() -> None:
    assert same([0.996, 0.999, 1.0], [0.996, 0.999, 1.0])
    assert same(0.3, 0.3001)
    assert same([1.0, 1.0], 1)
    assert same({"kind": "Mask", "ratio": 0.6}, {"kind": "Mask", "ratio": 0.6})
    for ours, theirs in ((0.3, 0.301), ([1.0, 0.9], 1), ([1.0], [1.0, 1.0]), (True, "yes"), (None, 0), ({}, {"a": 1})):
        assert not same(ours, theirs)


@pytest.mark.parametrize(
    ("fill", "rule"),
    [
        (lambda w: torch.nn.init.kaiming_normal_(w, mode="fan_out"), "kaiming fan_out normal"),
        (lambda w: torch.nn.init.xavier_uniform_(w), "xavier uniform"),
        (lambda w: torch.nn.init.kaiming_uniform_(w, a=5**0.5), "torch"),
        (lambda w: torch.nn.init.normal_(w, std=0.01), "normal 0.01"),
        (lambda w: torch.nn.init.trunc_normal_(w, std=0.02), "normal 0.02"),
        (
            lambda w: torch.nn.init.trunc_normal_(w, std=1 / 0.8796 / 512**0.5, a=-0.1005, b=0.1005),
            "lecun truncated normal",
        ),
        (lambda w: torch.nn.init.trunc_normal_(w, std=0.02, a=-0.02, b=0.02), "normal cut at one deviation 0.011"),
        (lambda w: torch.nn.init.constant_(w, 0.0), "constant 0"),
    ],
)
def test_how_weights_were_drawn_is_told_from_them(fill: object, rule: str) -> None:
    assert callable(fill)
    torch.manual_seed(0)
    weights = [torch.empty(256, 512), torch.empty(1024, 512)]
    for weight in weights:
        fill(weight)
    assert set(drawn(weights, [fans_of(weight) for weight in weights])) == {rule}


def test_few_numbers_stand_for_all_deviations_that_they_may_come_from() -> None:
    torch.manual_seed(0)
    token = torch.nn.init.normal_(torch.empty(1, 1, 384), std=0.02)
    assert "normal 0.02" in drawn([token])
    assert not {"normal 0.01", "normal 0.03"} & drawn([token])
