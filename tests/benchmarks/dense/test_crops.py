"""Training crops and windows."""

import numpy as np
import pytest
import torch
from torch import Tensor

from raysl.benchmarks.dense.crops import resized_short, slid, training_crop, windows
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
