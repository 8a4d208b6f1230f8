import re
from typing import Any

import pytest
import torch
from torch import Tensor

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import hog
from raysl.methods.maskfeat import MaskFeat
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms.masking import BlockMask
from tests.methods.masked_images import HALVES, batch_of, setup_of, small

STEP = Step(0, 10, 5)


def slow_loss(method: MaskFeat, batch: Batch) -> Tensor:
    """A value of a masked patch's cells at a time; a patch of 4 pixels has cells of 2."""
    terms = []
    for image in range(2):
        pixels, mask = batch.views["global"][image], batch.extras["global.mask"][image]
        cells = hog(pixels, 2, 9)[0]  # [3, 9, 8, 8]
        tokens = method.backbone.tokens(pixels, mask)[0, 1:]  # [16, D]
        for place in HALVES[image]:
            predicted = method.head(tokens[place]).view(3, 9, 2, 2)
            for row in range(2):
                for column in range(2):
                    told = cells[:, :, place // 4 * 2 + row, place % 4 * 2 + column]
                    terms += (predicted[:, :, row, column] - told).square().flatten().tolist()
    return torch.tensor(terms, dtype=torch.float64).mean()


def test_loss_is_the_mean_squared_error_of_the_histograms_of_masked_patches() -> None:
    method, batch = small("maskfeat"), batch_of(HALVES)
    torch.testing.assert_close(method(batch, STEP).loss, slow_loss(method, batch), rtol=1e-9, atol=0)


def test_histograms_come_from_the_whole_image_and_have_no_gradient() -> None:
    method, images = small("maskfeat"), batch_of(HALVES).views["global"].requires_grad_()
    target = method._targets(images.flatten(0, 1))
    assert not target.requires_grad
    assert target.shape == (2, 16, 108)
    torch.testing.assert_close(target.view(2, 16, 3, 9, 4).norm(dim=3), torch.ones(2, 16, 3, 4, dtype=torch.float64))


def test_views_and_settings_are_the_papers() -> None:
    setup = Setup.of(load_config("maskfeat", ["data.path=/somewhere"]), 4096)
    MaskFeat.check(setup)
    (view,) = MaskFeat.views(setup).groups["global"]
    assert (view.crop.size, view.crop.scale) == (224, (0.5, 1.0))
    assert [type(transform).__name__ for transform in view.transforms] == ["HorizontalFlip"]
    assert view.mask == BlockMask(patch_size=16, ratios=((0.4, 0.0),))
    assert (setup.method.cell_size, setup.method.num_bins) == (8, 9)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("method.cell_size=3",), "cells of it do not cover patches of 4 pixels; give 1 or 2 or 4"),
        (("method.mask_ratio=0.02",), "method.mask_ratio=0.02 masks none of the 16 patches of a view"),
        (("backbone.mask_token=false",), "set backbone.mask_token=true"),
        (("method.views.size=18", "data.image_size=16"), "views of 18 pixels are not covered by patches of 4"),
    ],
)
def test_check_refuses_what_cannot_work(words: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        MaskFeat.check(setup_of("maskfeat", *words))
