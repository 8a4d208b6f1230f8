"""`method.transforms`: a transform of the user's behind the views of any method."""

from pathlib import Path

import numpy as np
import pytest
import torch

from raysl.components import ALIASES, Classes
from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.plan.setup import Setup
from raysl.train.prepare import make_views

FILE = """
from dataclasses import dataclass

import torch
from raysl.transforms import Transform


@dataclass(frozen=True, kw_only=True)
class Level(Transform):
    value: float = 0.25

    def draw(self, random, size):
        return {}

    def apply(self, images, params):
        return torch.full_like(images, self.value)


@dataclass(frozen=True, kw_only=True)
class Unset(Level):
    other: float


class NoTransform:
    pass
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def views(name: str, *words: str) -> dict[str, torch.Tensor]:
    """The views of two images by a recipe for digits, with the settings in `words`."""
    config = load_config(name, ["adapt=[]", *words])
    setup = Setup.of(config, max(4096, config.train.batch_size), 10)
    recipe = make_views(setup, Classes.of(config))
    images = [torch.randint(0, 256, (3, 20, 24), dtype=torch.uint8) for _ in range(2)]
    return recipe(images, np.arange(2), 0, 0)


@pytest.mark.parametrize("name", ["simclr", "dino", "mae", "jigsaw", "vicregl"])
def test_every_view_of_a_method_ends_with_the_transform(name: str, mine: Path) -> None:
    made = views(f"digits/{name}", f"method.transforms={mine}:Level")
    assert made
    for group in made.values():
        assert (group == round(0.25 * 255)).all()


def test_crops_and_other_parameters_stay_as_they_are(mine: Path) -> None:
    (mine.parent / "same.py").write_text(FILE.replace("torch.full_like(images, self.value)", "images"))
    torch.manual_seed(0)
    plain = views("digits/dino")
    torch.manual_seed(0)
    same = views("digits/dino", f"method.transforms=[{mine.parent / 'same.py'}:Level]")
    assert plain.keys() == same.keys()
    for name, group in plain.items():
        assert torch.equal(group, same[name])


def test_a_file_is_found_beside_the_configuration_that_names_it(mine: Path) -> None:
    config = mine.parent / "mine.yaml"
    config.write_text("base: digits/simclr\nmethod:\n  transforms: [mine.py:Level]\n")
    assert load_config(str(config)).method.transforms == (f"{mine}:Level",)


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("NoTransform", "NoTransform is not a Transform; derive it from raysl.transforms.Transform"),
        ("Unset", "Unset needs arguments .*; give its fields defaults"),
        ("Levle", "has no class 'Levle'; its classes: "),
    ],
)
def test_what_is_no_transform_is_refused(attribute: str, message: str, mine: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        views("digits/simclr", f"method.transforms={mine}:{attribute}")


@pytest.mark.thorough
def test_every_method_has_the_setting() -> None:
    for name in ALIASES["method"]:
        assert load_config("quickstart", [f"method={name}"]).method.transforms == ()
