"""Turns by quarters."""

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as vision
from torch import Tensor

from raysl.transforms.geometric import RandomRotation90, rotate_quarters
from raysl.transforms.random import SampleRandom


def draws(num: int) -> SampleRandom:
    return SampleRandom(0, 0, np.arange(num), 0).at(1)


def test_each_image_turns_counter_clockwise_by_its_label_as_in_torchvision(cuts) -> None:
    images = torch.stack(cuts(24, 33, 33)).float() / 255.0
    transform = RandomRotation90()
    params = transform.draw(draws(24), (33, 33))
    label = transform.extras(params)["rotation"]
    assert sorted(set(label.tolist())) == [0, 1, 2, 3]
    assert label.dtype == torch.int64
    turned = transform.apply(images, params)
    for image, out, quarters in zip(images, turned, label.tolist(), strict=True):
        assert torch.equal(out, vision.rotate(image, 90.0 * quarters))


def test_one_quarter_moves_the_upper_right_corner_to_the_upper_left() -> None:
    image = torch.zeros(1, 1, 3, 3, dtype=torch.uint8)
    image[0, 0, 0, 2] = 7
    assert rotate_quarters(image, torch.tensor([1]))[0, 0, 0, 0] == 7


def test_all_four_turns_are_as_frequent() -> None:
    counts = RandomRotation90().draw(draws(20_000), (32, 32))["quarters"].bincount()
    assert len(counts) == 4
    assert (counts - 5000).abs().max() < 5 * (20_000 * 0.25 * 0.75) ** 0.5


def test_an_image_does_not_depend_on_its_batch(images: Tensor) -> None:
    square = images[..., :36]
    transform = RandomRotation90()
    together = transform.apply(square, transform.draw(draws(9), (36, 36)))
    for row in range(9):
        params = transform.draw(SampleRandom(0, 0, np.array([row]), 0).at(1), (36, 36))
        assert torch.equal(transform.apply(square[row : row + 1], params)[0], together[row])


def test_images_that_are_not_square_are_refused(images: Tensor) -> None:
    with pytest.raises(ValueError, match="36x44"):
        rotate_quarters(images, torch.ones(9, dtype=torch.int64))
