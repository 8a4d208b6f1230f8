"""Sizes that do not fit the network are refused before a run starts, by the setting that has them."""

import logging

import pytest

from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.train.prepare import prepare

OTHER = r", or another backbone\.patch_size"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "dino data=synthetic data.image_size=100",
            r"^data\.image_size=100: images of 100 pixels are not covered by patches of 16; set 96 or 112" + OTHER,
        ),
        (
            "dino data=synthetic method.views.size=64 method.views.local_size=20",
            r"^method\.views\.local_size=20: images of 20 pixels are not covered by patches of 16; set 16 or 32"
            + OTHER,
        ),
        (
            "dino data=synthetic method.views.size=40 data.image_size=48 method.views.local_size=16",
            r"^method\.views\.size=40: images of 40 pixels are not covered by patches of 16; set 32 or 48" + OTHER,
        ),
        (
            "dino data=synthetic data.image_size=8",
            r"^data\.image_size=8: images of 8 pixels are not covered by patches of 16; set 16" + OTHER,
        ),
        (
            "digits/mae data.image_size=18",
            r"^views of 18 pixels are not covered by patches of 4; set data\.image_size=16 or 20" + OTHER,
        ),
        (
            "digits/mae method.views.size=18 data.image_size=16",
            r"^views of 18 pixels are not covered by patches of 4; set method\.views\.size=16 or 20" + OTHER,
        ),
        (
            "digits/simclr backbone=alexnet backbone.output=mean data.image_size=32",
            r"^data\.image_size=32: ",
        ),
    ],
)
def test_a_size_that_does_not_fit_is_refused_by_its_setting(words: str, message: str) -> None:
    name, *overrides = words.split()
    with pytest.raises(ConfigError, match=message):
        prepare(load_config(name, overrides))


@pytest.mark.parametrize(
    ("words", "is_told"),
    [
        ("digits/simclr backbone.stem=imagenet", True),
        ("digits/simclr backbone.stem=imagenet data.image_size=64", True),
        ("digits/simclr backbone.stem=imagenet data.image_size=96", False),
        ("digits/simclr", False),
        ("digits/jigsaw backbone.stem=imagenet", False),
    ],
)
def test_small_images_ask_for_the_small_stem(words: str, is_told: bool, caplog: pytest.LogCaptureFixture) -> None:
    name, *overrides = words.split()
    with caplog.at_level(logging.WARNING, "raysl"):
        side = prepare(load_config(name, overrides)).config.data.image_size
    told = [record.getMessage() for record in caplog.records if "stem" in record.getMessage()]
    line = f"images of {side} pixels leave maps of {side // 4} behind backbone.stem=imagenet"
    assert told == [f"{line}; set backbone.stem=cifar, which is made for small images"] * is_told
