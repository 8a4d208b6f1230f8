"""Compiled kernels do what the tensor operations do, to one level of 256 in a few pixels of a million."""

from collections.abc import Callable
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as vision

from raysl.transforms import (
    ColorJitter,
    GaussianBlur,
    Grayscale,
    HorizontalFlip,
    Solarize,
    Transform,
    kernels,
    programs,
)
from raysl.transforms.chain import apply_chain
from raysl.transforms.functional import normalize, to_float, to_uint8
from raysl.transforms.random import SampleRandom
from tests.transforms.compiled import COMPILED

NUM = 40


def drawn(transforms: list[Transform], size: tuple[int, int]) -> list[dict[str, Tensor]]:
    random = SampleRandom(0, 0, np.arange(NUM), 0)
    return [transform.draw(random.at(slot), size) for slot, transform in enumerate(transforms)]


def pictures(cuts: Callable[..., list[Tensor]], height: int, width: int) -> Tensor:
    return torch.stack(cuts(NUM, height, width))


@pytest.mark.parametrize(("height", "width"), [(16, 16), (33, 47)])
@pytest.mark.parametrize("transform", COMPILED, ids=repr)
def test_a_kernel_equals_the_tensor_operation(transform: Transform, height: int, width: int, cuts) -> None:
    images = pictures(cuts, height, width)
    params = drawn([transform], (height, width))
    assert transform.program(params[0], (height, width)) is not None
    compiled = images.clone()
    apply_chain([transform], params, compiled, torch.arange(NUM))
    expected = to_uint8(transform.apply(to_float(images), params[0]))
    gap = (compiled.int() - expected.int()).abs()
    assert gap.max() <= 1
    assert (gap > 0).float().mean() < 1e-4


def test_a_chain_is_not_rounded_in_between(cuts) -> None:
    images = pictures(cuts, 32, 32)
    chain = [
        transform for transform in COMPILED if not isinstance(transform, Solarize)
    ]  # which may jump at its threshold
    params = drawn(chain, (32, 32))
    compiled = images.clone()
    apply_chain(chain, params, compiled, torch.arange(NUM))
    floats = to_float(images)
    for transform, values in zip(chain, params, strict=True):
        floats = transform.apply(floats, values)
    gap = (compiled.int() - to_uint8(floats).int()).abs()
    assert gap.max() <= 1
    assert (gap > 0).float().mean() < 1e-3


def test_only_the_chosen_rows_change(cuts) -> None:
    images = pictures(cuts, 16, 16)
    rows = torch.arange(0, NUM, 3)
    flip = HorizontalFlip(p=1.0)
    out = images.clone()
    apply_chain([flip], [flip.draw(SampleRandom(0, 0, rows.numpy(), 0), (16, 16))], out, rows)
    assert torch.equal(out[rows], images[rows].flip(-1))
    others = torch.tensor([row for row in range(NUM) if row % 3])
    assert torch.equal(out[others], images[others])


def test_chains_with_and_without_kernels_join_without_rounding(cuts) -> None:
    class Plain(Grayscale):
        """Grey by tensor operations alone."""

        def program(self, params, size):
            return None

    images = pictures(cuts, 24, 24)
    mixed = [ColorJitter(p=1.0), Plain(p=0.5), GaussianBlur(p=1.0)]
    pure = [mixed[0], Grayscale(p=0.5), mixed[2]]
    params = drawn(pure, (24, 24))
    outs = []
    for chain in (mixed, pure):
        out = images.clone()
        apply_chain(chain, params, out, torch.arange(NUM))
        outs.append(out.int())
    assert (outs[0] - outs[1]).abs().max() <= 1
    assert (outs[0] != outs[1]).float().mean() < 1e-3


def test_normalising_equals_torchvision(cuts) -> None:
    images = pictures(cuts, 20, 30).unflatten(0, (8, 5))
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    expected = vision.normalize(to_float(images), list(mean), list(std))
    torch.testing.assert_close(normalize(images, mean, std), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(normalize(images[:, ::2], mean, std), expected[:, ::2], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("height", "width"), [(4, 4), (32, 32), (24, 98)])
def test_a_large_result_has_the_bits_of_a_small_one(height: int, width: int, monkeypatch) -> None:
    num = kernels.LARGE_BYTES // (4 * 3 * height * width) + 1
    images = np.random.default_rng(0).integers(0, 256, (num, 3, height, width), dtype=np.uint8)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    small = np.empty(images.shape, np.float32)
    kernels.normalize(images, np.array(mean, np.float32), np.array(std, np.float32), small)
    fill = Mock(wraps=kernels.normalize_large)
    monkeypatch.setattr(kernels, "normalize_large", fill)
    assert np.array_equal(normalize(torch.from_numpy(images), mean, std).numpy(), small)
    fill.assert_called_once()


def test_only_large_results_of_whole_vectors_are_written_past_the_caches() -> None:
    images = np.empty((kernels.LARGE_BYTES // 3072 + 1, 3, 16, 16), np.uint8)
    out = torch.empty(images.shape).numpy()
    assert kernels.can_stream(images, out)
    assert not kernels.can_stream(images[:8], out[:8]), "small"
    assert not kernels.can_stream(images[:, ::2], out), "not in a row"
    assert not kernels.can_stream(np.empty((2048, 3, 50, 51), np.uint8), out), "planes end within a vector"
    assert not kernels.can_stream(images, torch.empty(out.size + 1)[1:].view(out.shape).numpy()), "not aligned"


@pytest.mark.parametrize("load", [kernels._load, kernels._load_mirrored])
def test_every_level_is_loaded_with_the_bits_of_a_division(load: Callable[..., None]) -> None:
    image = np.arange(256, dtype=np.uint8).reshape(1, 16, 16).repeat(3, axis=0)
    planes = np.empty((3, 256), np.float32)
    load(image, planes)
    levels = image if load is kernels._load else image[..., ::-1]
    assert np.array_equal(planes, levels.reshape(3, 256).astype(np.float32) / np.float32(255))


@pytest.mark.parametrize("radius", range(1, 8))
@pytest.mark.parametrize(("height", "width"), [(8, 9), (17, 30), (32, 32), (15, 200)])
def test_a_blur_adds_neighbours_in_the_order_of_their_distance(radius: int, height: int, width: int) -> None:
    planes = np.random.default_rng(radius).random((3, height * width), dtype=np.float32)
    weights = kernels._gaussian(2.0, radius)
    expected = planes.reshape(3, height, width)
    for axis in (1, 2):
        pad = [(0, 0) if dim != axis else (radius, radius) for dim in range(3)]
        padded = np.moveaxis(np.pad(expected, pad, mode="reflect"), axis, 0)
        length = len(padded) - 2 * radius
        total = weights[0] * padded[radius : radius + length]
        for distance in range(1, radius + 1):
            before, after = padded[radius - distance :][:length], padded[radius + distance :][:length]
            total = total + weights[distance] * (before + after)
        expected = np.moveaxis(total, 0, axis)
    kernels._blur(planes, width, 2.0, radius)
    assert np.array_equal(planes.reshape(3, height, width), expected)


def test_a_blur_that_reaches_over_the_image_is_refused(cuts) -> None:
    blur = GaussianBlur(p=1.0, kernel_size=33)
    with pytest.raises(ValueError, match=r"kernel_size 33 is too large .* give at most 31"):
        apply_chain([blur], drawn([blur], (16, 16)), pictures(cuts, 16, 16), torch.arange(NUM))


@pytest.mark.thorough
def test_a_flip_is_the_same_first_and_later_in_a_program() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 5, 6), dtype=np.uint8)
    codes = np.array([[programs.FLIP, programs.CONTRAST], [programs.NONE, programs.CONTRAST]])
    values = np.full((2, 2, 2), 1.3)
    first, later, plain = (np.zeros_like(images) for _ in range(3))
    kernels.run(images, np.arange(2), codes, values, first)
    kernels.run(images, np.arange(2), np.insert(codes, 0, programs.NONE, axis=1), np.full((2, 3, 2), 1.3), later)
    kernels.run(np.ascontiguousarray(images[..., ::-1]), np.arange(2), codes[:, 1:], values[:, 1:], plain)
    assert np.array_equal(first, later)
    assert np.array_equal(first[0], plain[0])
    assert not np.array_equal(first[1], plain[1])
