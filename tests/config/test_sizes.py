"""`data.image_size` and the views follow each other unless both are given."""

from pathlib import Path
from typing import Any

import pytest

from raysl.components import ALIASES
from raysl.config.load import load_config, to_dict
from raysl.config.stored import apply_overrides
from tests.config.conftest import Write

OWN = {slot: dict(names) for slot, names in ALIASES.items()}
MINE = """
from dataclasses import dataclass, field
from raysl.methods.simclr import SimCLR
from raysl.transforms.recipes import Crops

class Mine(SimCLR):
    @dataclass(frozen=True, kw_only=True)
    class Config(SimCLR.Config):
        name: str = "mine"
        views: Crops = field(default_factory=lambda: Crops(size=96))
"""


@pytest.fixture(autouse=True)
def aliases(monkeypatch: pytest.MonkeyPatch) -> None:
    for slot, names in OWN.items():
        monkeypatch.setitem(ALIASES, slot, names)


def sizes(config: Any) -> tuple[int, int]:
    """Of the views, and of the images."""
    tree = to_dict(config)
    return tree["method"]["views"]["size"], tree["data"]["image_size"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("simclr", (224, 224)),
        ("simclr data.image_size=96", (96, 96)),
        ("simclr method.views.size=96", (96, 96)),
        ("simclr method.views.size=160 data.image_size=224", (160, 224)),
        ("simclr method.views.num=4", (224, 224)),
        ("simclr base=data/cifar10", (32, 32)),
        ("simclr data=synthetic", (32, 32)),
        ("simclr data=synthetic method.views.size=24", (24, 24)),
        ("quickstart", (16, 16)),
        ("quickstart data.image_size=32", (32, 32)),
        ("simclr_cifar10", (32, 32)),
        ("simclr_cifar10 data.image_size=64", (64, 64)),
    ],
)
def test_the_size_that_is_not_given_follows_the_other(words: str, expected: tuple[int, int]) -> None:
    name, *overrides = words.split()
    assert sizes(load_config(name, overrides)) == expected


def test_sizes_of_a_file_and_its_base_count_as_given(write: Write) -> None:
    write("images.yaml", "base: simclr\ndata: {image_size: 48}\n")
    both = write("both.yaml", "base: images\nmethod: {views: {size: 40}}\n")
    assert sizes(load_config(both)) == (40, 48)
    assert sizes(load_config(both, ["data.image_size=56"])) == (40, 56)


def test_one_may_be_written_by_means_of_the_other(write: Write) -> None:
    path = write("half.yaml", "base: simclr\nmethod: {views: {size: '${data.image_size}'}}\n")
    assert sizes(load_config(path, ["data.image_size=64"])) == (64, 64)
    assert sizes(load_config(path)) == (224, 224)


def test_a_method_of_ones_own_decides_by_its_default(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    mine = [f"method={tmp_path}/mine.py:Mine", "data.path=/images"]
    assert sizes(load_config("simclr", mine)) == (96, 96)
    assert sizes(load_config("simclr", [*mine, "data.image_size=64"])) == (64, 64)


def test_a_trial_that_changes_one_size_changes_both() -> None:
    alike = load_config("quickstart")
    assert sizes(apply_overrides(alike, ["data.image_size=32"])) == (32, 32)
    assert sizes(apply_overrides(alike, ["method.views.size=24"])) == (24, 24)
    assert sizes(apply_overrides(alike, ["method.views.size=24", "data.image_size=32"])) == (24, 32)
    apart = load_config("quickstart", ["method.views.size=12", "data.image_size=16"])
    assert sizes(apply_overrides(apart, ["data.image_size=32"])) == (12, 32)
    assert sizes(apply_overrides(apart, ["optim.lr=0.1"])) == (12, 16)


def test_a_size_that_is_no_number_is_refused_where_it_was_given() -> None:
    with pytest.raises(ValueError, match=r"^data\.image_size: 'large' is no int; write a whole number$"):
        load_config("simclr", ["data.image_size=large"])
