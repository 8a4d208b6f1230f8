"""`data.image_size` and the views follow each other unless both are given; other sizes follow them in proportion."""

from pathlib import Path
from typing import Any

import pytest

from raysl.components import ALIASES, Classes
from raysl.config.dump import to_dict
from raysl.config.load import apply_overrides, load_config
from raysl.plan.setup import Setup
from raysl.train.prepare import check_views
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
        ("quickstart data=synthetic", (16, 16)),
        ("quickstart data=image_folder data.path=/images", (16, 16)),
        ("quickstart data=image_folder data.path=/images data.image_size=32", (32, 32)),
        ("cifar10/simclr data=torchvision data.dataset=CIFAR10", (32, 32)),
        ("cifar10/simclr", (32, 32)),
        ("cifar10/simclr data.image_size=64", (64, 64)),
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
    with pytest.raises(ValueError, match=r"^data\.image_size: 'large' is not of type int; write a whole number$"):
        load_config("simclr", ["data.image_size=large"])


def of_views(words: str, *names: str) -> list[int]:
    """Sizes of the views of a configuration with overrides."""
    name, *overrides = words.split()
    views = to_dict(load_config(name, overrides))["method"]["views"]
    return [views[name] for name in names]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("swav data=synthetic data.image_size=224", [224, 96]),
        ("swav data=synthetic data.image_size=112", [112, 48]),
        ("swav data=synthetic method.views.size=112", [112, 48]),
        ("swav data=synthetic", [32, 14]),
        ("swav data=synthetic data.image_size=64 method.views.local_size=32", [64, 32]),
        ("dino data=synthetic data.image_size=64", [64, 32]),  # two patches of 16
        ("dino data=synthetic data.image_size=64 backbone.patch_size=8", [64, 24]),
        ("dino_v2 data=synthetic data.image_size=112", [112, 56]),  # four patches of 14
        ("quickstart method=dino", [16, 7]),
        ("digits/dino", [16, 12]),
        ("digits/dino data.image_size=32", [32, 24]),
        ("digits/dino data.image_size=32 method.views.local_size=20", [32, 20]),
        ("cifar10/simclr data.image_size=64", [64, 96]),  # it makes no small views
        ("cifar10/simclr data.image_size=64 method.views.num_local=4", [64, 27]),
    ],
)
def test_small_views_follow_the_large_ones_in_proportion_unless_they_are_given(words: str, expected: list[int]) -> None:
    assert of_views(words, "size", "local_size") == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("mae data=synthetic data.image_size=64", 64),
        ("mae data=synthetic data.image_size=64 backbone.image_size=224", 224),
        ("mae data=synthetic method.views.size=96", 96),
        ("mae data=synthetic data.image_size=100", 96),  # of which the run then says that patches do not cover it
        ("quickstart backbone=vit", 16),
        ("digits/mae", 16),
        ("digits/mae data.image_size=32", 32),
        ("cifar10/mae data.image_size=64", 64),
        ("digits/mae backbone.image_size=8", 8),
    ],
)
def test_positions_of_a_vit_are_made_for_the_views_unless_their_size_is_given(words: str, expected: int) -> None:
    name, *overrides = words.split()
    assert to_dict(load_config(name, overrides))["backbone"]["image_size"] == expected


@pytest.mark.parametrize(
    ("words", "names", "expected"),
    [
        ("quickstart method=pirl", ("square", "tile_size", "tile_jitter"), [18, 5, 2]),
        ("digits/pirl data.image_size=32", ("square", "tile_size", "tile_jitter"), [42, 12, 4]),
        ("quickstart method=jigsaw", ("resize", "size", "tile_size", "jitter"), [18, 18, 5, 2]),
        ("digits/jigsaw", ("resize", "size", "tile_size", "jitter"), [22, 21, 6, 2]),
        ("jigsaw data=synthetic data.image_size=224", ("resize", "size", "tile_size", "jitter"), [256, 255, 64, 21]),
    ],
)
def test_tiles_follow_too(words: str, names: tuple[str, ...], expected: list[int]) -> None:
    assert of_views(words, *names) == expected


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["jigsaw", "pirl"])
@pytest.mark.parametrize("side", [16, 20, 24, 28, 32, 36, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256])
def test_tiles_that_follow_fit_into_their_cells(method: str, side: int) -> None:
    config = load_config(method, ["data=synthetic", f"data.image_size={side}", "data.num_train=4096"])
    setup = Setup.of(config, 20_000)
    assert check_views(setup, Classes.of(config)).groups["patches"][0].tiles is not None


def test_a_file_over_its_base_scales_what_the_base_gives(write: Write) -> None:
    path = write("larger.yaml", "base: digits/dino_v2\ndata: {image_size: 32}\n")
    tree = to_dict(load_config(path))
    assert (tree["method"]["views"]["local_size"], tree["backbone"]["image_size"]) == (24, 32)
    given = write("given.yaml", "base: digits/dino_v2\nmethod: {views: {size: 32, local_size: 16}}\n")
    tree = to_dict(load_config(given, ["backbone.image_size=24"]))
    assert (tree["method"]["views"]["local_size"], tree["backbone"]["image_size"]) == (16, 24)


def test_a_trial_that_changes_the_size_scales_the_others() -> None:
    base = load_config("digits/dino_v2")
    tree = to_dict(apply_overrides(base, ["data.image_size=32"]))
    assert (tree["method"]["views"]["local_size"], tree["backbone"]["image_size"]) == (24, 32)
    assert apply_overrides(base, ["optim.lr=0.1"]).method == base.method
    apart = load_config("digits/dino_v2", ["backbone.image_size=32"])
    assert to_dict(apply_overrides(apart, ["data.image_size=24"]))["backbone"]["image_size"] == 32
