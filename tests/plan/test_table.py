"""The table of docs/gpu.md has every recipe for ImageNet, whose own command can be planned."""

import pytest

from raysl.config.load import load_config
from raysl.plan.plan import TrainPlan
from tests.marked import between, rows_of
from tests.plan.table import MARKS, PAGE, command_of, listed
from tests.published.files import Published, recipes


@pytest.mark.thorough
@pytest.mark.parametrize("name", recipes())
def test_the_command_of_a_recipe_has_a_plan(name: str) -> None:
    config = load_config(name, ["data.path=/images", *command_of(name)])
    plan = TrainPlan.from_config(config, Published.read(name).images, config.train.most_workers, "cuda")
    # FastSiam's authors train on one GPU.
    assert plan.world == config.train.workers > (name != "fastsiam")


def test_the_page_has_a_row_for_each_recipe() -> None:
    rows = rows_of(between(PAGE.read_text(encoding="utf-8"), *MARKS))
    assert [name for name in listed() if name not in rows] == [], "python -m tests.plan.table writes it"
