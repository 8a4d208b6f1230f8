"""What holds for every transform that works on tensors: devices, threads, batches, and the image that comes in."""

import numpy as np
import pytest
import torch
from torch import Tensor

from raysl.transforms import (
    AutoAugment,
    Autocontrast,
    CutMix,
    Equalize,
    Invert,
    Mixup,
    MixupOrCutMix,
    Posterize,
    RandAugment,
    RandomErasing,
    RandomPhotometric,
    RandomResizedCrop,
    RandomRotation90,
    SampleRandom,
    Sharpness,
    Tiles,
    ToLab,
    Transform,
    View,
    ViewRecipe,
)

TRANSFORMS = [
    AutoAugment(),
    Autocontrast(),
    Equalize(p=0.5),
    Invert(),
    Posterize(),
    RandAugment(num_ops=4),
    RandomErasing(p=0.5),
    RandomErasing(p=0.5, value="random"),
    RandomPhotometric(),
    RandomRotation90(),
    Sharpness(),
    ToLab(),
]
every_transform = pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda transform: type(transform).__name__)


def drawn(transform: Transform, num: int, side: int) -> dict[str, Tensor]:
    return transform.draw(SampleRandom(0, 0, np.arange(num), 0), (side, side))


@every_transform
def test_parameters_may_stay_on_the_cpu(transform: Transform) -> None:
    """The meta device refuses CPU tensors just as a GPU does."""
    params = drawn(transform, 40, 32)
    assert all(value.device.type == "cpu" and len(value) == 40 for value in params.values())
    out = transform.apply(torch.empty(40, 3, 32, 32, device="meta"), params)
    assert out.device.type == "meta"
    assert out.shape == (40, 3, 32, 32)
    assert out.dtype == torch.float32


@pytest.mark.parametrize("mix", [Mixup(), CutMix(), MixupOrCutMix()])
def test_mixing_mixes_no_devices(mix) -> None:
    params = mix.draw(SampleRandom(0, 0, np.arange(8), 0), torch.arange(8) // 2, (32, 32))
    assert mix.apply(torch.empty(8, 3, 32, 32, device="meta"), params).shape == (8, 3, 32, 32)
    assert mix.mix_labels(torch.empty(8, 10, device="meta"), params).shape == (8, 10)


def test_tiles_are_cut_on_the_images_device() -> None:
    tiles = Tiles()
    params = tiles.draw(SampleRandom(0, 0, np.arange(8), 0), (255, 255))
    assert tiles.cut(torch.empty(8, 3, 255, 255, device="meta"), params).shape == (8, 9, 3, 64, 64)


@every_transform
def test_floats_do_not_depend_on_the_number_of_threads(transform: Transform, cuts) -> None:
    images = torch.stack(cuts(3, 192, 192)).float() / 255.0
    params = drawn(transform, 3, 192)
    results = []
    for num_threads in (1, 3):
        torch.set_num_threads(num_threads)
        results.append(transform.apply(images, params))
    assert torch.equal(results[0], results[1])


@every_transform
def test_images_are_not_written_to(transform: Transform, cuts) -> None:
    images = torch.stack(cuts(20, 32, 32)).float() / 255.0
    before = images.clone()
    out = transform.apply(images, drawn(transform, 20, 32))
    assert torch.equal(images, before)
    assert not torch.equal(out, before)


@pytest.mark.thorough
def test_a_recipe_of_all_gives_each_sample_its_own_views(cuts) -> None:
    chain = tuple(transform for transform in TRANSFORMS if type(transform) is not ToLab)
    recipe = ViewRecipe({"image": (View(RandomResizedCrop(size=32), chain),)})
    images, index = cuts(12, 40, 50), np.arange(12) * 3
    together = recipe(images, index, 1, 2)["image"]
    alone = [recipe(images[row : row + 1], index[row : row + 1], 1, 2)["image"] for row in range(12)]
    assert torch.equal(torch.cat(alone), together)
    assert len(together.flatten(1).unique(dim=0)) == 12
