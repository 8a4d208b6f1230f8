import re
from typing import Any

import pytest
import torch

from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.methods.simmim import SimMIM
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms.masking import UnitMask
from tests.methods.masked_images import HALVES, batch_of, setup_of, small

STEP = Step(0, 10, 5)


def test_loss_is_the_mean_absolute_error_of_masked_pixels() -> None:
    method, batch = small("simmim"), batch_of(HALVES)
    terms = []
    for image in range(2):
        pixels, mask = batch.views["global"][image], batch.extras["global.mask"][image]
        tokens = method.backbone.tokens(pixels, mask)[0, 1:]  # [16, D]
        for place in HALVES[image]:
            predicted = method.head(tokens[place]).view(4, 4, 3)
            top, left = place // 4 * 4, place % 4 * 4
            for row in range(4):
                for column in range(4):
                    for channel in range(3):
                        error = predicted[row, column, channel] - pixels[0, channel, top + row, left + column]
                        terms.append(error.abs())
    torch.testing.assert_close(method(batch, STEP).loss, torch.stack(terms).mean(), rtol=1e-9, atol=0)


def test_views_are_the_papers() -> None:
    setup = Setup.of(load_config("simmim", ["data.path=/somewhere"]), 4096)
    SimMIM.check(setup)
    (view,) = SimMIM.views(setup).groups["global"]
    assert (view.crop.size, view.crop.scale) == (224, (0.67, 1.0))
    assert [type(transform).__name__ for transform in view.transforms] == ["HorizontalFlip"]
    assert view.mask == UnitMask(patch_size=16, unit_size=32, ratio=0.6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("method.mask_size=6",),
            "method.mask_size is 6, and has to be a multiple of patches of 4 pixels that divides ",
        ),
        (("method.mask_size=12",), "divides views of 16; give 4 or 8"),
        (("method.mask_ratio=0.98",), "method.mask_ratio=0.98 masks all 16 squares of a view"),
        (("backbone.mask_token=false",), "set backbone.mask_token=true"),
        (("method.views.size=18", "data.image_size=16"), "views of 18 pixels are not covered by patches of 4"),
    ],
)
def test_check_refuses_masks_that_cannot_be(words: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        SimMIM.check(setup_of("simmim", *words))
