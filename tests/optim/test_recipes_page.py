"""The page on recipes names every setting of an optimizer, and only such as there are."""

import re
from dataclasses import fields
from pathlib import Path

from raysl.components import ALIASES, resolve
from raysl.config.optim_schema import OptimConfig
from raysl.config.schema import TrainConfig

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text().partition("<!-- departures")[0]
NOTED = set(re.findall(r"(?<![\w.])(?:optim\.)?([a-z_]+)", " ".join(re.findall(r"`([^`\n]+)`", PAGE))))


def test_every_optimizer_has_a_row_with_its_own_settings() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]*) \|$", PAGE, re.MULTILINE))
    shared = {field.name for field in fields(OptimConfig)}
    for name in ALIASES["optimizer"]:
        own = {field.name for field in fields(resolve("optimizer", name).Config)} - shared
        assert set(re.findall(r"`(\w+)`", rows[name])) == own, name


def test_every_setting_of_all_optimizers_is_on_the_page() -> None:
    assert {field.name for field in fields(OptimConfig)} - {"name"} - NOTED == set()


def test_settings_on_the_page_exist() -> None:
    named = set(re.findall(r"(?<![\w.])optim\.(\w+)", PAGE))
    assert (
        named - {field.name for name in ALIASES["optimizer"] for field in fields(resolve("optimizer", name).Config)}
        == set()
    )


def test_settings_of_training_on_the_page_exist_and_those_of_the_average_are_all_there() -> None:
    named, known = set(re.findall(r"(?<![\w.])train\.(\w+)", PAGE)), {field.name for field in fields(TrainConfig)}
    assert named - known == set()
    assert {name for name in known if name.startswith("ema")} - named == set()
