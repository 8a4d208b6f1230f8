"""Training crops and windows."""

import colorsys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raysl.benchmarks.dense.crops import _square, photometric_distortion, resized_short, slid, training_crop, windows
from raysl.benchmarks.dense.masks import IGNORE
from raysl.transforms.random import SampleRandom


def random_of(place: int, epoch: int = 0) -> SampleRandom:
    return SampleRandom(0, epoch, np.array([place]), 0)


def halves() -> tuple[Tensor, Tensor]:
    """An image that is black on the left and white on the right, and its mask."""
    image = torch.zeros(3, 40, 60, dtype=torch.uint8)
    image[:, :, 30:] = 255
    return image, (image[0] > 0).to(torch.uint8)


def test_a_crop_and_its_mask_show_the_same_place() -> None:
    image, mask = halves()
    mirrored = 0
    for place in range(40):
        crop, classes, is_image = training_crop(image, mask, 32, 24, random_of(place))
        assert crop.shape == (3, 24, 24)
        assert torch.equal(classes == IGNORE, ~is_image)
        is_edge = (crop[0] > 0) & (crop[0] < 255)  # where antialiasing blends
        clear = is_image & ~is_edge
        assert clear.float().mean() > 0.2
        agree = (crop[0] > 127)[clear] == (classes == 1)[clear]
        assert agree.float().mean() > 0.97
        mirrored += bool(crop[0, 0, 0] > crop[0, 0, int(is_image[0].sum()) - 1])
    assert 3 < mirrored < 37


def test_a_crop_is_a_function_of_sample_and_epoch() -> None:
    image, mask = halves()
    image = image + torch.randint(0, 9, image.shape, generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    first, again, other = (training_crop(image, mask, 32, 24, random_of(5, epoch))[0] for epoch in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def shares(mask: Tensor, max_class_share: float) -> list[float]:
    """Of the class with the most pixels in each of 60 squares, counted one by one."""
    found = []
    for place in range(60):
        rows, columns = _square(mask, 32, random_of(place), max_class_share)
        square = mask[rows, columns].flatten().tolist()
        counts = [sum(value == label for value in square) for label in (0, 1)]
        found.append(max(counts) / sum(counts))
    return found


def test_crops_of_one_class_are_drawn_again() -> None:
    mask = torch.zeros(64, 64, dtype=torch.uint8)
    mask[20:44, 20:44] = 1
    mask[:2] = IGNORE
    assert sum(share >= 0.75 for share in shares(mask, 1.0)) > 5
    assert max(shares(mask, 0.75)) < 0.75


@pytest.mark.thorough
def test_where_no_square_is_better_the_last_one_is_taken() -> None:
    assert shares(torch.ones(64, 64, dtype=torch.uint8), 0.75) == [1.0] * 60
    image, mask = halves()
    one = mask.clone().fill_(1)
    assert (training_crop(image, one, 32, 24, random_of(0), 0.75)[1] != 0).all()


class Fixed(SampleRandom):
    """Says what is to be drawn, in order."""

    def __init__(self, does: list[bool], uniforms: list[float], turn: int) -> None:
        super().__init__(0, 0, np.array([0]), 0)
        self.does, self.uniforms_left, self.turn = does, uniforms, turn

    def bernoulli(self, p: float) -> Any:
        assert p == 0.5
        return np.array([self.does.pop(0)])

    def uniform(self, low: float = 0.0, high: float = 1.0) -> Any:
        value = self.uniforms_left.pop(0)
        assert low <= value <= high
        return np.array([value])

    def integers(self, low: Any, high: Any) -> Any:
        assert low <= self.turn < high
        return np.array([self.turn])


def slow_distortion(
    image: Tensor, does: list[bool], shift: float, contrast: float, saturation: float, turn: int
) -> Tensor:
    """One pixel after another, by Python's own HSV."""
    out = torch.empty_like(image)
    brighter, contrasted, saturated, turned, is_first = does
    for row in range(image.shape[1]):
        for column in range(image.shape[2]):
            color = [value / 255 for value in image[:, row, column].tolist()]
            if brighter:
                color = [min(max(value + shift / 255, 0), 1) for value in color]
            if contrasted and is_first:
                color = [min(value * contrast, 1) for value in color]
            hue, grey, value = colorsys.rgb_to_hsv(*color)
            grey = min(grey * saturation, 1) if saturated else grey
            color = list(colorsys.hsv_to_rgb((hue + turn / 360) % 1 if turned else hue, grey, value))
            if contrasted and not is_first:
                color = [min(value * contrast, 1) for value in color]
            out[:, row, column] = torch.tensor([round(255 * value) for value in color])
    return out


@pytest.mark.parametrize("number", range(32))
def test_the_distortion_is_that_of_a_slow_loop(number: int) -> None:
    does = [bool(number >> bit & 1) for bit in range(5)]
    image = torch.randint(0, 256, (3, 6, 5), generator=torch.Generator().manual_seed(number)).byte()
    image[:, 0] = image[:1, 0]  # greys
    drawn = (-32.0 + 2 * number, 0.5 + number / 32, 1.5 - number / 32)
    found = photometric_distortion(image, Fixed(list(does), list(drawn), number - 16))
    slow = slow_distortion(image, does, *drawn, number - 16)
    assert (found.int() - slow.int()).abs().max() <= 1
    assert (found != slow).float().mean() < 0.1  # where float32 rounds a half the other way


def test_crops_are_distorted_where_it_is_asked_for() -> None:
    image = torch.randint(0, 256, (3, 40, 60), generator=torch.Generator().manual_seed(0)).byte()
    mask = halves()[1]
    plain, other = (
        [training_crop(image, mask, 32, 24, random_of(place), distort=distort) for place in range(20)]
        for distort in (False, True)
    )
    assert all(torch.equal(one[1], two[1]) for one, two in zip(plain, other, strict=True))
    assert 10 < sum(not torch.equal(one[0], two[0]) for one, two in zip(plain, other, strict=True)) <= 20


def test_a_scene_smaller_than_the_crop_is_filled_up_with_what_does_not_count() -> None:
    image, mask = halves()
    crop, classes, is_image = training_crop(image, mask, 8, 32, random_of(0))
    height, width = int(is_image[:, 0].sum()), int(is_image[0].sum())
    assert height * width == int(is_image.sum()) < 32 * 32
    assert (classes[~is_image] == IGNORE).all()
    assert (crop[:, ~is_image] == 0).all()


@pytest.mark.parametrize(("side", "firsts"), [(8, [0]), (9, [0, 1]), (13, [0, 5]), (14, [0, 5, 6]), (18, [0, 5, 10])])
def test_windows_cover_a_side_and_end_with_it(side: int, firsts: list[int]) -> None:
    assert list(windows(side, 8, 5)) == firsts


def test_what_knows_no_neighbours_is_the_same_in_windows_and_in_one_piece() -> None:
    image = torch.randn(3, 21, 34, generator=torch.Generator().manual_seed(0))

    def score(images: Tensor) -> Tensor:
        assert images.shape[-2:] == (16, 16)
        return torch.stack([images[:, 0], images[:, 1] * 2], dim=1)

    found = slid(score, image, 16, 10)
    assert torch.allclose(found, torch.stack([image[0], image[1] * 2]), atol=1e-6)


def test_windows_that_overlap_count_by_their_mean() -> None:
    calls = []

    def score(images: Tensor) -> Tensor:
        calls.append(1)
        return torch.full((1, 1, 4, 4), float(len(calls)))

    found = slid(score, torch.zeros(3, 4, 6), 4, 2)
    assert found[0, 0].tolist() == [1.0, 1.0, 1.5, 1.5, 2.0, 2.0]


def test_the_short_side_has_the_length_that_is_asked_for() -> None:
    assert resized_short(375, 500, 512) == (512, 683)
    assert resized_short(500, 333, 32) == (48, 32)
