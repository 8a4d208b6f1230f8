"""Squares of a fixed size at random places."""

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as vision
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode

from raysl.transforms.crop import Canvas, RandomCrop
from raysl.transforms.functional import Interpolation
from raysl.transforms.random import SampleRandom
from raysl.transforms.view import View
from raysl.transforms.view_recipe import ViewRecipe, evaluation_recipe


@pytest.mark.parametrize("shape", [(100, 150), (151, 90), (64, 64)])
def test_random_crop_equals_torchvisions_resize_and_crop(photos: list[Tensor], shape: tuple[int, int]) -> None:
    image = photos[0][:, : shape[0], : shape[1]]
    crop = RandomCrop(size=60, resize=64)
    params = crop.draw(SampleRandom(0, 0, np.arange(5), 0), np.full(5, shape[0]), np.full(5, shape[1]))
    resized = vision.resize(image, [64], antialias=True)
    for row in range(5):
        values = {name: int(column[row]) for name, column in params.items()}
        expected = vision.crop(resized, values["top"], values["left"], 60, 60)
        assert torch.equal(crop.apply(image, values), expected)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_crop_of_evaluation_equals_torchvisions(photos: list[Tensor], interpolation: Interpolation) -> None:
    image = photos[0][:, :100, :150]
    (seen,) = evaluation_recipe(56, 64, interpolation)([image], np.array([0]), seed=0, epoch=0)["image"][0]
    resized = vision.resize(image, [64], InterpolationMode(interpolation), antialias=True)
    assert torch.equal(seen, vision.center_crop(resized, [56, 56]))


def test_random_crop_is_as_often_at_each_place() -> None:
    num = 20_000
    crop = RandomCrop(size=60, resize=64)
    params = crop.draw(SampleRandom(0, 0, np.arange(num), 0), np.full(num, 128), np.full(num, 140))
    for name, places in (("top", 5), ("left", 11)):
        counts = np.bincount(params[name])
        assert len(counts) == places
        assert ((counts - num / places) ** 2 / (num / places)).sum() < places + 5 * (2 * places) ** 0.5  # chi-square


def test_a_canvas_holds_the_image_at_its_place(cuts) -> None:
    (digit,) = cuts(1, 28, 20)
    view = View(Canvas(size=40, top=3, left=5))
    (out,) = ViewRecipe({"global": (view,)})([digit], np.array([0]), seed=0, epoch=0)["global"][0]
    assert torch.equal(out[:, 3:31, 5:25], digit)
    assert int(out.sum()) == int(digit.sum())
    cut = Canvas(size=16).apply(digit, {})
    assert torch.equal(cut, digit[:, :16, :16])
