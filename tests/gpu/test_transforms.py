"""Every transform gives on the GPU what it gives on a CPU, within a tolerance."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor

from raysl.transforms import (
    Affine,
    AutoAugment,
    CutMix,
    Mixup,
    MixupOrCutMix,
    RandAugment,
    RandomPhotometric,
    SampleRandom,
    Tiles,
    Transform,
    normalize,
)
from tests.gpu.marks import CUDA, on_gpu
from tests.transforms.compiled import COMPILED
from tests.transforms.papers import RECIPES
from tests.transforms.test_every_transform import TRANSFORMS

pytestmark = on_gpu

NUM = 40
JUMPING = (AutoAugment, RandAugment, RandomPhotometric)  # a level may cross a threshold behind a blur or a turn
ALL = [*TRANSFORMS, *COMPILED, Affine(degrees=30, translate=(0.1, 0.1), scale=(0.8, 1.2), shear=10)]


def pictures(side: int, num: int = NUM) -> Tensor:
    """uint8 [num, 3, side, side]: pieces of photographs."""
    random = np.random.default_rng(side)
    photos = [torch.from_numpy(image.copy()).permute(2, 0, 1) for image in load_sample_images().images]
    places = [(random.integers(0, 427 - side + 1), random.integers(0, 640 - side + 1)) for _ in range(num)]
    cut = [photos[n % 2][:, top : top + side, left : left + side] for n, (top, left) in enumerate(places)]
    return torch.stack(cut)


@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_a_transform_gives_the_same_images(transform: Transform) -> None:
    images = pictures(32).float() / 255.0
    params = transform.draw(SampleRandom(0, 0, np.arange(NUM), 0), (32, 32))
    there = transform.apply(images.to(CUDA), params)
    assert there.device == CUDA
    gap = (there.cpu() - transform.apply(images, params)).abs()
    if isinstance(transform, JUMPING):
        assert (gap > 1.5 / 255).float().mean() < 2e-3
        assert gap.mean() < 1e-3
    else:
        assert gap.max() < 2e-4


@pytest.mark.parametrize("name", ["swav", "byol", "dino", "jigsaw", "rotnet", "deit", "pirl", "ibot", "moco_v2"])
def test_a_papers_views_are_the_same(name: str) -> None:
    recipe = RECIPES[name]()
    images, index = list(pictures(96, 6)), np.arange(6) * 7
    crops = recipe.crop(images, index, seed=0, epoch=1)
    on_cpu = recipe.augment({group: crop.clone() for group, crop in crops.items()}, index, seed=0, epoch=1)
    there = recipe.augment({group: crop.to(CUDA) for group, crop in crops.items()}, index, seed=0, epoch=1)
    for group, views in on_cpu.views.items():
        gap = (there.views[group].cpu().int() - views.int()).abs().float()
        assert (gap > 1).float().mean() < 5e-3, group
        assert gap.mean() < 0.25, group


@pytest.mark.parametrize("mix", [Mixup(), CutMix(), MixupOrCutMix()], ids=lambda mix: type(mix).__name__)
def test_mixing_gives_the_same_images_and_labels(mix: Mixup | CutMix | MixupOrCutMix) -> None:
    images, labels = pictures(32, 8).float() / 255.0, torch.eye(8)
    params = mix.draw(SampleRandom(0, 0, np.arange(8), 0), torch.arange(8) // 2, (32, 32))
    torch.testing.assert_close(mix.apply(images.to(CUDA), params).cpu(), mix.apply(images, params), rtol=0, atol=1e-6)
    torch.testing.assert_close(mix.mix_labels(labels.to(CUDA), params).cpu(), mix.mix_labels(labels, params))


def test_tiles_and_normalised_views_are_the_same() -> None:
    images, tiles = pictures(255, 4), Tiles()
    params = tiles.draw(SampleRandom(0, 0, np.arange(4), 0), (255, 255))
    assert torch.equal(tiles.cut(images.to(CUDA), params).cpu(), tiles.cut(images, params))
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    torch.testing.assert_close(
        normalize(images.to(CUDA), mean, std).cpu(), normalize(images, mean, std), rtol=0, atol=2e-6
    )
