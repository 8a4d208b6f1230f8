"""Colour transforms against torchvision's functions of one image, and what they draw."""

import colorsys
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as vision
from torch import Tensor

from raysl.transforms import functional, functional_color
from raysl.transforms.color import Autocontrast, Equalize, Invert, Posterize, RandomPhotometric, Sharpness, ToLab
from raysl.transforms.functional_color import from_lab, to_lab
from raysl.transforms.random import SampleRandom
from raysl.transforms.transform import Transform

NUM = 20_000
MASK = torch.tensor([True, False, True, True, False, True, True, True, True])
FACTORS = torch.tensor([0.0, 0.2, 0.6, 1.0, 1.3, 1.8, 3.0, 0.7, 1.5], dtype=torch.float64)


def draws(num: int = NUM) -> SampleRandom:
    return SampleRandom(0, 0, np.arange(num), 0).at(1)


def test_posterize_equals_torchvision_on_uint8(images: Tensor) -> None:
    levels = functional.to_uint8(images)
    bits = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 8])
    ours = functional.to_uint8(functional_color.posterize(functional.to_float(levels), bits))
    assert torch.equal(ours, torch.stack([vision.posterize(levels[row], int(bits[row])) for row in range(9)]))


def test_posterize_of_eight_bits_keeps_values_between_levels(images: Tensor) -> None:
    between = images * 0.777
    assert functional_color.posterize(between, torch.full((9,), 8)) is between


def test_sharpness_equals_torchvision_within_1e_6(images: Tensor) -> None:
    ours = functional_color.adjust_sharpness(images, FACTORS)
    theirs = torch.stack([vision.adjust_sharpness(images[row], FACTORS[row].item()) for row in range(9)])
    assert (ours - theirs).abs().max() <= 1e-6
    assert (ours - images).abs().amax(dim=(1, 2, 3))[:7].ne(0).tolist() == [True, True, True, False, True, True, True]


def test_sharpness_of_two_pixels_is_the_image_itself() -> None:
    images = torch.rand(2, 3, 2, 9)
    assert functional_color.adjust_sharpness(images, torch.zeros(2)) is images


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (functional_color.autocontrast, vision.autocontrast),
        (functional_color.invert, vision.invert),
    ],
)
def test_operations_without_parameters_equal_torchvision(images: Tensor, ours, theirs) -> None:
    expected = torch.stack([theirs(image) if chosen else image for image, chosen in zip(images, MASK, strict=True)])
    assert torch.equal(ours(images, MASK), expected)


def test_equalize_equals_torchvision_on_uint8(images: Tensor) -> None:
    levels = functional.to_uint8(images)
    ours = functional.to_uint8(functional_color.equalize(functional.to_float(levels), MASK))
    expected = [vision.equalize(image) if chosen else image for image, chosen in zip(levels, MASK, strict=True)]
    assert torch.equal(ours, torch.stack(expected))


def test_equalize_of_noise_equals_torchvision_and_keeps_channels_of_few_pixels() -> None:
    generator = torch.Generator().manual_seed(0)
    levels = torch.randint(0, 256, (4, 3, 40, 50), dtype=torch.uint8, generator=generator)
    levels[1] //= 4
    levels[2, 0] = 17
    levels[3, :, :, 5:] = 255  # 200 pixels below the highest level, fewer than a step needs
    ours = functional.to_uint8(functional_color.equalize(functional.to_float(levels), torch.ones(4).bool()))
    assert torch.equal(ours, vision.equalize(levels))
    assert torch.equal(ours[2, 0], levels[2, 0])
    assert torch.equal(ours[3], levels[3])
    assert not torch.equal(ours[0], levels[0])


def test_autocontrast_equals_torchvision_on_uint8_within_one_level(images: Tensor) -> None:
    levels = functional.to_uint8(images * 0.5 + 0.2)
    ours = functional.to_uint8(functional_color.autocontrast(functional.to_float(levels), torch.ones(9).bool()))
    assert (ours.int() - vision.autocontrast(levels).int()).abs().max() <= 1


def test_photometric_does_all_four_or_none_in_their_order(images: Tensor) -> None:
    transform = RandomPhotometric(p=0.6)
    params = transform.draw(draws(9), (36, 44))
    expected = functional.to_float(functional.to_uint8(images)).clone()
    ours = transform.apply(expected.clone(), params)
    for row in params["mask"].nonzero().flatten().tolist():
        image = vision.posterize(functional.to_uint8(expected[row]), params["bits"][row].item())
        image = vision.adjust_sharpness(functional.to_float(image), params["sharpness"][row].item())
        image = vision.solarize(image, params["threshold"][row].item())
        expected[row] = vision.autocontrast(image)
    assert 2 < params["mask"].sum() < 9
    # A value within rounding of the threshold may be inverted by one and not by the other.
    is_far = (ours - expected).abs() > 1e-5
    assert is_far.double().mean() < 1e-3


def test_photometric_draws_its_ranges() -> None:
    params = RandomPhotometric().draw(draws(), (32, 32))
    assert abs(params["mask"].double().mean() - 0.66) < 4 * (0.66 * 0.34 / NUM) ** 0.5
    counts = params["bits"].bincount(minlength=9)
    assert counts.nonzero().flatten().tolist() == [4, 5, 6, 7]
    assert (counts[4:8] - NUM / 4).abs().max() < 5 * (NUM * 0.25 * 0.75) ** 0.5
    assert 0.1 <= params["sharpness"].min() < 0.11
    assert 1.89 < params["sharpness"].max() < 1.9
    levels = (params["threshold"] * 255).round().long().bincount(minlength=256)
    assert len(levels) == 256
    assert ((levels - NUM / 256) ** 2 / (NUM / 256)).sum() < 255 + 5 * (2 * 255) ** 0.5  # chi-square


def test_posterize_draws_its_bits_and_eight_for_the_others() -> None:
    counts = Posterize(p=0.4, bits=(2, 5)).draw(draws(), (32, 32))["bits"].bincount(minlength=9)
    assert counts.nonzero().flatten().tolist() == [2, 3, 4, 5, 8]
    assert abs(counts[8] / NUM - 0.6) < 5 * (0.6 * 0.4 / NUM) ** 0.5
    assert (counts[2:6] / NUM - 0.1).abs().max() < 5 * (0.1 * 0.9 / NUM) ** 0.5


def test_sharpness_draws_its_range_and_one_for_the_others() -> None:
    factor = Sharpness(p=0.3, factor=(0.5, 3.0)).draw(draws(), (32, 32))["factor"]
    chosen = factor[factor != 1.0]
    assert abs(len(chosen) / NUM - 0.3) < 5 * (0.3 * 0.7 / NUM) ** 0.5
    assert 0.5 <= chosen.min() < chosen.max() < 3.0
    assert abs(chosen.mean() - 1.75) < 5 * 2.5 / (12 * len(chosen)) ** 0.5


@pytest.mark.parametrize("kind", [Autocontrast, Equalize, Invert])
def test_masks_have_their_probability(kind: Callable[..., Transform]) -> None:
    mask = kind(p=0.2).draw(draws(), (32, 32))["mask"]
    assert abs(mask.double().mean() - 0.2) < 5 * (0.2 * 0.8 / NUM) ** 0.5


def lab_of(red: float, green: float, blue: float) -> tuple[float, float, float]:
    """L*a*b* of one sRGB colour, in float64, by the definition."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
    matrix = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
    )
    ratios = (matrix @ linear) / matrix.sum(axis=1)
    x, y, z = (t ** (1 / 3) if t > (6 / 29) ** 3 else t / (3 * (6 / 29) ** 2) + 4 / 29 for t in ratios)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def test_lab_equals_the_definition_pixel_by_pixel(cuts) -> None:
    photo = torch.stack(cuts(1, 20, 20))
    ramp = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 3, -1, -1)
    for levels in (photo, ramp):
        ours = to_lab(functional.to_float(levels))[0]
        for row in range(levels.shape[2]):
            for column in range(levels.shape[3]):
                lightness, a, b = lab_of(*(levels[0, :, row, column] / 255.0).tolist())
                expected = torch.tensor([lightness / 100, (a + 128) / 255, (b + 128) / 255])
                assert (ours[:, row, column] - expected).abs().max() < 2e-6


@pytest.mark.parametrize(
    ("rgb", "lab"),
    [
        ((0, 0, 0), (0.0, 0.0, 0.0)),
        ((1, 1, 1), (100.0, 0.0, 0.0)),
        ((1, 0, 0), (53.24, 80.09, 67.20)),
        ((0, 1, 0), (87.73, -86.18, 83.18)),
        ((0, 0, 1), (32.30, 79.19, -107.86)),
        ((1, 1, 0), (97.14, -21.55, 94.48)),
    ],
)
def test_lab_of_known_colours(rgb: tuple[int, ...], lab: tuple[float, ...]) -> None:
    channels = to_lab(torch.tensor(rgb, dtype=torch.float32).view(1, 3, 1, 1)).flatten()
    found = channels * torch.tensor([100.0, 255.0, 255.0]) - torch.tensor([0.0, 128.0, 128.0])
    assert (found - torch.tensor(lab)).abs().max() < 0.02


def test_lab_of_every_saturated_colour_stays_inside_its_channels() -> None:
    hues = torch.tensor([colorsys.hsv_to_rgb(hue / 360, 1.0, 1.0) for hue in range(360)]).T[None, :, None]
    channels = to_lab(hues)
    assert channels.min() > 0.05
    assert channels.max() < 0.98


def test_lab_refuses_grey_images() -> None:
    with pytest.raises(ValueError, match="1 channels"):
        to_lab(torch.zeros(2, 1, 4, 4))


@pytest.mark.parametrize(
    "transform",
    [
        Posterize(p=0.7),
        Sharpness(p=0.7),
        Autocontrast(p=0.7),
        Equalize(p=0.7),
        Invert(p=0.7),
        RandomPhotometric(p=0.7),
        ToLab(),
    ],
)
def test_an_image_does_not_depend_on_its_batch(images: Tensor, transform: Transform) -> None:
    odd = images[:, :, :35, :43].contiguous()  # a size that ends in the middle of a vector
    together = transform.apply(odd, transform.draw(draws(9), (35, 43)))
    assert not torch.equal(together, odd)
    for row in range(9):
        random = SampleRandom(0, 0, np.array([row]), 0).at(1)
        alone = transform.apply(odd[row : row + 1], transform.draw(random, (35, 43)))
        assert torch.equal(alone[0], together[row])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Posterize(bits=(4, 9)), "bits"),
        (lambda: Posterize(p=-0.1), "p=-0.1"),
        (lambda: Sharpness(factor=(-1.0, 1.0)), "factor"),
        (lambda: RandomPhotometric(bits=(5, 4)), "bits"),
        (lambda: RandomPhotometric(sharpness=(2.0, 1.0)), "sharpness"),
        (lambda: RandomPhotometric(threshold=(0, 256)), "threshold"),
        (lambda: Equalize(p=2.0), "p=2.0"),
    ],
)
def test_settings_out_of_range_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_colours_come_back_from_lab_and_those_that_srgb_lacks_are_cut() -> None:
    images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    back = from_lab(to_lab(functional.to_float(images)).double())
    assert (back * 255 - images).abs().max() < 0.05
    greens = torch.tensor([0.9, 0.0, 0.5]).view(1, 3, 1, 1)
    assert 0 <= from_lab(greens).min() <= from_lab(greens).max() <= 1
