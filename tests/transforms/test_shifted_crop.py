"""Squares at nearby places of one resized box."""

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as vision
from torch import Tensor

from raysl.transforms import HorizontalFlip, RandomResizedCrop, SampleRandom, ShiftedCrop, ViewRecipe
from raysl.transforms.recipes import ShiftedCrops
from raysl.transforms.resized_boxes import stack_small


def values_of(params: dict[str, np.ndarray], row: int) -> dict[str, int]:
    return {name: int(column[row]) for name, column in params.items()}


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_a_shifted_crop_is_a_slice_of_torchvisions_resized_crop(photos: list[Tensor], interpolation) -> None:
    image = photos[0]
    crop = ShiftedCrop(size=56, master=64, shift=8, scale=(0.2, 1.0), interpolation=interpolation)
    heights, widths = np.full(5, image.shape[1]), np.full(5, image.shape[2])
    params = crop.draw(SampleRandom(0, 0, np.arange(5), 0), heights, widths)
    for row in range(5):
        values = values_of(params, row)
        box = [values[name] for name in ("top", "left", "height", "width")]
        mode = vision.InterpolationMode(interpolation)
        master = vision.resized_crop(image, *box, [64, 64], mode, antialias=True)
        expected = vision.crop(master, values["down"], values["right"], 56, 56)
        assert torch.equal(crop.apply(image, values), expected)


def test_its_box_is_that_of_a_random_resized_crop_with_the_same_numbers() -> None:
    sizes = np.full(50, 90), np.full(50, 120)
    plain = RandomResizedCrop(size=64, scale=(0.2, 1.0)).draw(SampleRandom(3, 1, np.arange(50), 0), *sizes)
    shifted = ShiftedCrop(size=56, master=64, shift=8, scale=(0.2, 1.0)).draw(
        SampleRandom(3, 1, np.arange(50), 0), *sizes
    )
    assert all(np.array_equal(plain[name], shifted[name]) for name in plain)


def test_moves_are_as_often_of_each_length() -> None:
    num = 20_000
    crop = ShiftedCrop(size=28, master=32, shift=3)
    params = crop.draw(SampleRandom(0, 0, np.arange(num), 0), np.full(num, 60), np.full(num, 80))
    counts = np.zeros((4, 4))
    np.add.at(counts, (params["down"], params["right"]), 1)
    assert ((counts - num / 16) ** 2 / (num / 16)).sum() < 16 + 5 * 32**0.5  # chi-square


def test_the_second_view_has_the_pixels_of_the_first_moved_and_is_flipped_alike(photos: list[Tensor]) -> None:
    recipe = ShiftedCrops(size=32, shift=5, jitter_p=0.0, grayscale_p=0.0, blur_p=0.0).recipe()
    index = np.arange(len(photos))
    views = recipe(photos, index, 0, 0)
    flips = HorizontalFlip(p=0.5)
    assert recipe.groups["global"][0].transforms == (flips,) == recipe.groups["shifted"][0].transforms
    moves = set()
    for first, second in zip(views["global"][:, 0], views["shifted"][:, 0], strict=True):
        same = []
        for down in range(6):
            for right in range(-5, 6):  # to the left where both are flipped
                ours = first[:, down:, max(right, 0) : 32 + min(right, 0)]
                theirs = second[:, : 32 - down, max(-right, 0) : 32 - max(right, 0)]
                same += [(down, right)] * torch.equal(ours, theirs)
        assert len(same) == 1
        moves |= set(same)
    assert len(moves) > 1


def test_small_images_are_cut_as_one_by_one() -> None:
    images = [torch.randint(0, 256, (3, 20, 24), dtype=torch.uint8) for _ in range(4)]
    crop = ShiftedCrop(size=16, master=20, shift=3)
    params = crop.draw(SampleRandom(0, 0, np.arange(4), 0), np.full(4, 20), np.full(4, 24))
    out, stacked = torch.empty(4, 3, 16, 16, dtype=torch.uint8), stack_small(images)
    assert stacked is not None
    assert crop.cut_small(stacked, params, out)
    for row, image in enumerate(images):
        assert torch.equal(out[row], crop.apply(image, values_of(params, row)))
    bicubic = ShiftedCrop(size=16, master=20, shift=3, interpolation="bicubic")
    assert not bicubic.cut_small(stacked, params, out)


def test_an_image_decoded_at_half_its_size_has_the_same_move() -> None:
    crop = ShiftedCrop(size=28, master=32, shift=3)
    params = {"top": 10, "left": 20, "height": 64, "width": 64, "down": 1, "right": 3}
    half = crop.shrunk(params, (100, 120), (50, 60))
    assert half == {"top": 5, "left": 10, "height": 32, "width": 32, "down": 1, "right": 3}
    rows = {name: np.array([value]) for name, value in params.items()}
    assert crop.room(rows, np.array([100]), np.array([120])) == [2.0]


@pytest.mark.parametrize("shift", [-1, 5])
def test_a_shift_out_of_the_master_image_is_refused(shift: int) -> None:
    with pytest.raises(ValueError, match=rf"shift={shift} moves a square of size=28 out of master=32; give 0 to 4"):
        ShiftedCrop(size=28, master=32, shift=shift)


def test_the_recipe_of_the_paper() -> None:
    recipe: ViewRecipe = ShiftedCrops().recipe()
    (first,), (second,) = recipe.groups["global"], recipe.groups["shifted"]
    assert (first.crop.master, first.crop.shift, second.crop.master, second.crop.shift) == (256, 0, 256, 31)
    assert (first.repeats, second.repeats) == (None, 0)
