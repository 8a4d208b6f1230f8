"""Batched functions against torchvision's functions of one image."""

import pytest
import torch
import torchvision.transforms.functional as vision
import torchvision.transforms.v2.functional as vision_v2
from torch import Tensor
from torchvision.transforms import InterpolationMode

from raysl.transforms import functional
from raysl.transforms.photometric import blur_kernel_size

EXACT = 0.0
ROUNDING = 1e-6  # a few units in the last place of float32
SUMS = 3e-6  # torchvision adds 529 products in float32 where ours adds 2 * 23
HUE = 4e-6  # differences of colours, divided and multiplied by small ones
RESAMPLING = 2e-5  # sampling points that are rounded differently, times the steepest edges


def each(function, images: Tensor, *params: Tensor) -> Tensor:
    """Apply torchvision's function image by image, with that image's parameters."""
    rows = zip(*(param.tolist() for param in params), strict=True)
    return torch.stack([function(image, *row) for image, row in zip(images, rows, strict=True)])


def assert_close(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    assert (ours - theirs).abs().max().item() <= tolerance


FACTORS = torch.tensor([0.0, 0.2, 0.6, 1.0, 1.3, 1.8, 3.0, 0.7, 1.5], dtype=torch.float64)
TURNS = torch.tensor([-0.5, -0.2, -0.05, 0.0, 0.01, 0.1, 0.37, 0.5, 0.2], dtype=torch.float64)
MASK = torch.tensor([True, False, True, True, False, False, True, True, False])


@pytest.mark.parametrize(
    ("ours", "theirs", "tolerance"),
    [
        (functional.adjust_brightness, vision.adjust_brightness, ROUNDING),
        (functional.adjust_contrast, vision.adjust_contrast, ROUNDING),
        (functional.adjust_saturation, vision.adjust_saturation, ROUNDING),
    ],
)
def test_blends_equal_torchvision(images: Tensor, ours, theirs, tolerance: float) -> None:
    assert_close(ours(images, FACTORS), each(theirs, images, FACTORS), tolerance)


def test_hue_equals_torchvision(images: Tensor) -> None:
    assert_close(functional.adjust_hue(images, TURNS), each(vision.adjust_hue, images, TURNS), HUE)


def test_hue_of_pure_and_tied_colours_equals_torchvision() -> None:
    levels = torch.tensor([0.0, 0.25, 1.0])
    colours = torch.cartesian_prod(levels, levels, levels).T[None, :, None, :]  # [1, 3, 1, 27]
    colours = colours.expand(len(TURNS), -1, -1, -1).contiguous()
    assert_close(functional.adjust_hue(colours, TURNS), each(vision.adjust_hue, colours, TURNS), HUE)


def test_flip_equals_torchvision(images: Tensor) -> None:
    expected = each(lambda image, mask: vision.hflip(image) if mask else image, images, MASK)
    assert_close(functional.horizontal_flip(images, MASK), expected, EXACT)


def test_a_flip_upside_down_equals_torchvision(images: Tensor) -> None:
    expected = each(lambda image, mask: vision.vflip(image) if mask else image, images, MASK)
    assert_close(functional.vertical_flip(images, MASK), expected, EXACT)


def test_grayscale_equals_torchvision(images: Tensor) -> None:
    expected = each(lambda image, mask: vision.rgb_to_grayscale(image, 3) if mask else image, images, MASK)
    assert_close(functional.grayscale(images, MASK), expected, ROUNDING)


def test_solarize_equals_torchvision(images: Tensor) -> None:
    thresholds = torch.tensor([0.0, 0.1, 0.3, 0.5, 0.5, 0.8, 1.0, 0.5, 0.0])
    assert_close(functional.solarize(images, thresholds), each(vision.solarize, images, thresholds), EXACT)
    assert functional.solarize(images, torch.full((9,), float("inf"))) is images


@pytest.mark.parametrize("kernel_size", [1, 3, 9, 23])
def test_blur_equals_torchvision(images: Tensor, kernel_size: int) -> None:
    sigma = torch.tensor([0.1, 0.3, 0.7, 1.0, 1.4, 2.0, 0.0, 5.0, 1.0], dtype=torch.float64)
    expected = each(
        lambda image, width: vision.gaussian_blur(image, [kernel_size] * 2, [width] * 2) if width else image,
        images,
        sigma,
    )
    assert_close(functional.gaussian_blur(images, sigma, kernel_size), expected, SUMS)


def test_blur_refuses_kernels_that_do_not_fit(images: Tensor) -> None:
    for kernel_size in (4, 73):
        with pytest.raises(ValueError, match=r"try 5|at most 71"):
            functional.gaussian_blur(images, torch.ones(9), kernel_size)


@pytest.mark.parametrize(("height", "width"), [(300, 200), (200, 300), (64, 64)])
def test_the_larger_side_is_resized_as_torchvision_resizes(height: int, width: int, cuts) -> None:
    (image,) = cuts(1, height, width)
    resized = functional.resize_larger_side(image, 96)
    assert max(resized.shape) == 96
    assert torch.equal(resized, vision_v2.resize(image, list(resized.shape[1:]), antialias=True))
    assert abs(resized.shape[1] / resized.shape[2] - height / width) < 0.03


@pytest.mark.parametrize(("side", "expected"), [(16, 3), (32, 3), (39, 3), (40, 5), (96, 9), (224, 23)])
def test_blur_kernel_is_the_odd_number_nearest_to_a_tenth(side: int, expected: int) -> None:
    assert blur_kernel_size(side) == expected


def test_affine_equals_torchvision(images: Tensor) -> None:
    generator = torch.Generator().manual_seed(0)
    angle = torch.rand(9, generator=generator, dtype=torch.float64) * 360 - 180
    translate = (torch.rand(9, 2, generator=generator, dtype=torch.float64) * 20 - 10).round()
    scale = torch.rand(9, generator=generator, dtype=torch.float64) + 0.5
    shear = torch.rand(9, 2, generator=generator, dtype=torch.float64) * 60 - 30
    expected = each(
        lambda *values: vision.affine(*values, interpolation=InterpolationMode.BILINEAR),
        images,
        angle,
        translate,
        scale,
        shear,
    )
    assert_close(functional.affine(images, angle, translate, scale, shear), expected, RESAMPLING)


def test_normalize_equals_torchvision(images: Tensor) -> None:
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    levels = functional.to_uint8(images)
    expected = vision.normalize(levels.float() / 255.0, mean, std)
    assert_close(functional.normalize(functional.to_float(levels), mean, std), expected, ROUNDING)
    assert_close(functional.normalize(levels[:, None], mean, std), expected[:, None], ROUNDING)


def test_uint8_survives_the_way_to_float_and_back() -> None:
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    floats = functional.to_float(levels)
    assert_close(floats, levels.float() / 255.0, EXACT)
    assert torch.equal(functional.to_uint8(floats), levels)
    between = torch.tensor([-0.1, 0.499 / 255, 0.501 / 255, 1.1]).view(1, 1, 1, 4)
    assert functional.to_uint8(between).flatten().tolist() == [0, 0, 1, 255]


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("box", [(3, 5, 200, 300, 32), (0, 0, 427, 640, 96), (10, 10, 20, 15, 32), (7, 8, 96, 96, 96)])
def test_resized_crop_equals_torchvision(
    photos: list[Tensor], box: tuple[int, int, int, int, int], interpolation: functional.Interpolation
) -> None:
    mode = vision_v2.InterpolationMode(interpolation)
    top, left, height, width, size = box
    for photo in photos:
        expected = vision_v2.resized_crop(photo, top, left, height, width, [size, size], mode, antialias=True)
        ours = functional.resized_crop(photo, top, left, height, width, size, interpolation)
        assert (ours.int() - expected.int()).abs().max() <= 1  # equal where the processor has AVX2


def test_channels_last_photographs_give_the_same_crop(photos: list[Tensor]) -> None:
    planar = functional.resized_crop(photos[0].contiguous(), 3, 5, 200, 300, 64)
    assert torch.equal(planar, functional.resized_crop(photos[0], 3, 5, 200, 300, 64))


def test_single_channel_images_keep_their_colour() -> None:
    grey = torch.rand(9, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(functional.adjust_hue(grey, TURNS), grey)
    assert torch.equal(functional.adjust_saturation(grey, FACTORS), grey)
    assert torch.equal(functional.grayscale(grey, MASK), grey)
    assert_close(functional.adjust_contrast(grey, FACTORS), each(vision.adjust_contrast, grey, FACTORS), ROUNDING)


def test_no_function_writes_to_its_input(images: Tensor) -> None:
    before = images.clone()
    for function in (functional.horizontal_flip, functional.grayscale):
        function(images, MASK)
        function(images, torch.ones(9, dtype=torch.bool))
    for function in (functional.adjust_brightness, functional.adjust_contrast, functional.adjust_saturation):
        function(images, FACTORS)
    functional.adjust_hue(images, TURNS)
    functional.solarize(images, FACTORS)
    functional.gaussian_blur(images, FACTORS, 5)
    functional.to_uint8(images)
    functional.normalize(images, (0.5,) * 3, (0.5,) * 3)
    assert torch.equal(images, before)


@pytest.mark.parametrize("dim", [-2, -1])
def test_the_blur_of_a_gpu_is_that_of_a_cpu(dim: int) -> None:
    generator = torch.Generator().manual_seed(0)
    images, weights = torch.rand(3, 2, 12, 10, generator=generator), torch.rand(3, 4, generator=generator)
    slow = functional.symmetric_taps(images, weights, dim)
    torch.testing.assert_close(functional.depthwise_taps(images, weights, dim), slow, rtol=1e-5, atol=1e-6)
