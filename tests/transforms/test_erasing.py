"""Random erasing."""

import numpy as np
import pytest
import torch
import torchvision.transforms.v2 as vision
from torch import Tensor

from raysl.transforms.erasing import RandomErasing
from raysl.transforms.random import SampleRandom

NUM = 20_000


def draws(num: int = NUM) -> SampleRandom:
    return SampleRandom(0, 0, np.arange(num), 0).at(1)


@pytest.mark.parametrize("value", [0.0, 0.25, (0.1, 0.5, 0.9)])
def test_boxes_are_filled_as_torchvision_fills_them(images: Tensor, value) -> None:
    transform = RandomErasing(p=0.7, value=value)
    params = transform.draw(draws(9), (36, 44))
    expected = images.clone()
    for image, (top, left, height, width) in zip(expected, params["box"].tolist(), strict=True):
        filling = torch.tensor(value).view(-1, 1, 1)
        vision.functional.erase(image, top, left, height, width, filling, inplace=True)
    assert 0 < (params["box"][:, 2] > 0).sum() < 9
    assert torch.equal(transform.apply(images, params), expected)


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(32, 32), (60, 20)])
def test_boxes_have_torchvisions_distribution(shape: tuple[int, int]) -> None:
    boxes = RandomErasing(p=1.0).draw(draws(), shape)["box"].double()
    assert (boxes[:, :2] + boxes[:, 2:] <= torch.tensor(shape)).all()
    boxes = boxes[boxes[:, 2] > 0]
    torch.manual_seed(0)
    theirs, reference = [], vision.RandomErasing(p=1.0)
    while len(theirs) < 4000:
        drawn = reference.make_params([torch.empty(3, *shape)])
        if drawn["v"] is not None:
            theirs.append([drawn[name] for name in "ijhw"])
    expected = torch.tensor(theirs, dtype=torch.float64)
    for measure in (area, log_ratio, centre):
        ours, other = measure(boxes, shape), measure(expected, shape)
        error = other.std(0) / 4000**0.5
        assert ((ours.mean(0) - other.mean(0)).abs() < 5 * error).all(), measure.__name__
        assert ((ours.std(0) - other.std(0)).abs() < 5 * error).all(), measure.__name__


def area(boxes: Tensor, shape: tuple[int, int]) -> Tensor:
    return boxes[:, 2] * boxes[:, 3] / (shape[0] * shape[1])


def log_ratio(boxes: Tensor, shape: tuple[int, int]) -> Tensor:
    return (boxes[:, 2] / boxes[:, 3].clamp_min(1)).log()


def centre(boxes: Tensor, shape: tuple[int, int]) -> Tensor:
    return (boxes[:, :2] + boxes[:, 2:] / 2) / torch.tensor(shape)


def test_one_in_four_is_erased() -> None:
    is_erased = RandomErasing().draw(draws(), (32, 32))["box"][:, 2] > 0
    assert abs(is_erased.double().mean() - 0.25) < 5 * (0.25 * 0.75 / NUM) ** 0.5


def test_where_no_box_fits_nothing_is_erased() -> None:
    params = RandomErasing(p=1.0, scale=(1.0, 1.0)).draw(draws(100), (32, 32))
    assert not params["box"].any()


def test_noise_is_even_and_stays_in_its_box() -> None:
    images = torch.full((40, 3, 64, 64), 2.0)
    transform = RandomErasing(p=1.0, value="random")
    params = transform.draw(draws(40), (64, 64))
    erased = transform.apply(images, params)
    assert (images == 2.0).all()
    noise = erased[erased < 2.0]
    assert len(noise) == 3 * (params["box"][:, 2] * params["box"][:, 3]).sum()
    assert noise.min() >= 0.0
    assert noise.max() < 1.0
    counts = torch.histc(noise, bins=20, min=0.0, max=1.0)
    expected = len(noise) / 20
    assert ((counts - expected) ** 2 / expected).sum() < 19 + 5 * (2 * 19) ** 0.5  # chi-square


@pytest.mark.parametrize("value", [0.5, "random"])
def test_an_image_does_not_depend_on_its_batch(images: Tensor, value) -> None:
    transform = RandomErasing(p=0.7, value=value)
    together = transform.apply(images, transform.draw(draws(9), (36, 44)))
    assert not torch.equal(together, images)
    for row in range(9):
        params = transform.draw(SampleRandom(0, 0, np.array([row]), 0).at(1), (36, 44))
        assert torch.equal(transform.apply(images[row : row + 1], params)[0], together[row])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"p": 2.0}, "p=2.0"),
        ({"scale": (0.5, 0.2)}, "scale"),
        ({"ratio": (0.0, 1.0)}, "ratio"),
        ({"value": 128}, "128 of 255 is 0.5"),
        ({"value": "noise"}, "noise"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RandomErasing(**settings)


def test_a_colour_of_too_few_channels_is_refused(images: Tensor) -> None:
    transform = RandomErasing(p=1.0, value=(0.1, 0.2))
    with pytest.raises(ValueError, match="2 numbers for 3 channels"):
        transform.apply(images, transform.draw(draws(9), (36, 44)))
