"""Boxes are resized in compiled loops, to the bits of torch's function for one image."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from raysl.config.ranges import Interpolation
from raysl.transforms import box_kernels, resized_boxes
from raysl.transforms.crop import RandomResizedCrop
from raysl.transforms.functional import resized_crop
from raysl.transforms.programs import LINE
from raysl.transforms.random import SampleRandom
from raysl.transforms.recipes import Crops
from raysl.transforms.resized_boxes import LARGEST, equals_torch, resize_into, stack_small
from raysl.transforms.view import View
from raysl.transforms.view_recipe import _CROP, ViewRecipe

pytestmark = pytest.mark.skipif(not equals_torch(), reason="torch rounds otherwise on this processor")


def pixels(height: int, width: int, seed: int = 0) -> Tensor:
    """Noise, in the memory layout of a decoded image."""
    numbers = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return torch.from_numpy(numbers).permute(2, 0, 1)


@pytest.mark.parametrize("seed", range(12))
def test_any_box_of_any_small_image_has_the_bits_of_torch(seed: int) -> None:
    random = np.random.default_rng(seed)
    height, width, size = random.integers(1, LARGEST + 1, 3).tolist()
    images = np.stack([pixels(height, width, number).permute(1, 2, 0).numpy() for number in range(16)])
    sides = random.integers(1, np.array([height, width]) + 1, (16, 2))
    boxes = np.concatenate([random.integers(0, np.array([height, width]) + 1 - sides), sides], axis=1)
    out = np.empty((16, 3, size, size), np.uint8)
    box_kernels.resize_boxes(images, boxes, out)
    for image, (top, left, rows, columns), view in zip(images, boxes.tolist(), out, strict=True):
        box = torch.from_numpy(image).permute(2, 0, 1)[None, :, top : top + rows, left : left + columns]
        expected = F.interpolate(box, size=(size, size), mode="bilinear", antialias=True)[0]
        assert torch.equal(torch.from_numpy(view), expected)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("seed", range(12))
def test_any_box_of_a_large_image_has_the_bits_of_torch(seed: int, mode: Interpolation) -> None:
    random = np.random.default_rng(seed)
    size = int(random.integers(LINE, 260))
    image = pixels(*random.integers(LINE, 700, 2).tolist(), seed)
    sides = [int(random.integers(LINE, side + 1)) for side in image.shape[1:]]
    corner = [int(random.integers(0, side + 1 - part)) for side, part in zip(image.shape[1:], sides, strict=True)]
    for box in ((*corner, *sides), (0, 0, *image.shape[1:]), (image.shape[1] - 32, image.shape[2] - 33, 32, 33)):
        out = torch.empty(3, size, size, dtype=torch.uint8)
        resize_into(image, *box, mode, out)
        assert torch.equal(out, resized_crop(image, *box, size, mode))


def test_boxes_too_small_for_vectors_grey_images_and_planes_are_resized_by_torch() -> None:
    image = pixels(90, 80)
    parts = ((image, (3, 4, 31, 60)), (image[:1], (3, 4, 50, 60)), (image.contiguous(), (3, 4, 50, 60)))
    for part, box in parts:
        out = torch.empty(part.shape[0], 40, 40, dtype=torch.uint8)
        resize_into(part, *box, "bilinear", out)
        assert torch.equal(out, resized_crop(part, *box, 40))


@pytest.mark.parametrize("box", [(60, 4, 60, 60), (4, 50, 60, 60), (4, 4, 200, 40), (4, 4, 40, 200)])
def test_a_box_that_reaches_out_of_its_image_is_cut_to_it(box: tuple[int, int, int, int]) -> None:
    image, out = pixels(90, 80), torch.empty(3, 40, 40, dtype=torch.uint8)
    resize_into(image, *box, "bilinear", out)
    assert torch.equal(out, resized_crop(image, *box, 40))
    params = {name: np.array([value]) for name, value in zip(("top", "left", "height", "width"), box, strict=True)}
    stacked = stack_small([image])
    assert stacked is not None
    assert not RandomResizedCrop(size=40).cut_small(stacked, params, out[None])


@pytest.mark.parametrize("box", [(0, 0, 50, 70), (0, 0, 40, 40)])
def test_a_result_that_is_a_part_of_a_larger_image_is_filled(box: tuple[int, int, int, int]) -> None:
    image, out = pixels(90, 80), torch.zeros(3, 40, 80, dtype=torch.uint8)[:, :, :40]
    resize_into(image, *box, "bilinear", out)
    assert torch.equal(out, resized_crop(image, *box, 40))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("box", [(0, 0, 50, 70), (3, 5, 200, 300), (7, 9, 40, 30), (0, 0, 97, 96)])
def test_the_memory_layout_of_a_box_does_not_change_its_bits(box: tuple[int, int, int, int], mode: str) -> None:
    image = pixels(300, 400)
    top, left, height, width = box
    part = image[None, :, top : top + height, left : left + width]
    expected = F.interpolate(part, size=(96, 96), mode=mode, antialias=True)[0]
    assert torch.equal(resized_crop(image, *box, 96, mode), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("side", [32, 96, 100])
def test_a_batch_has_the_crops_of_its_images_one_by_one(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Crops(size=24).recipe()
    images, index = [pixels(side, side, number) for number in range(9)], np.arange(9)
    assert (stack_small(images) is None) == (side > LARGEST)
    at_once = recipe.crop(images, index, seed=0, epoch=1)
    monkeypatch.setattr("raysl.transforms.view_recipe.stack_small", lambda images: None)
    one_by_one = recipe.crop(images, index, seed=0, epoch=1)
    assert all(torch.equal(at_once[name], one_by_one[name]) for name in one_by_one)


@pytest.mark.parametrize("size", [24, 120])
def test_crops_of_large_images_are_those_of_the_images_one_by_one(size: int) -> None:
    images = [pixels(100, 110 + number, number) for number in range(4)]
    images.append(pixels(size, size))  # a box of the size of the view is not resized
    index = np.arange(len(images))
    crop = RandomResizedCrop(size=size, scale=(0.9, 1.0))
    params = crop.draw(SampleRandom(0, 1, index, 0).at(_CROP), *np.array([image.shape[1:] for image in images]).T)
    views = ViewRecipe({"a": (View(crop),)}).crop(images, index, seed=0, epoch=1)["a"]
    assert views.is_contiguous()
    for number, image in enumerate(images):
        values = {name: int(column[number]) for name, column in params.items()}
        box = image[:, values["top"] :, values["left"] :][:, : values["height"], : values["width"]]
        expected = F.interpolate(box[None], size=(size, size), mode="bilinear", antialias=True)[0]
        assert torch.equal(views[number, 0], expected)


@pytest.mark.parametrize("box", [(3, 5, 200, 300), (0, 0, 300, 400)])
def test_a_resized_crop_keeps_its_pixels_in_a_row(box: tuple[int, int, int, int]) -> None:
    assert resized_crop(pixels(300, 400), *box, 96).permute(1, 2, 0).is_contiguous()


def test_crops_that_the_loop_cannot_make_are_made_one_by_one() -> None:
    images, index = [pixels(40, 40, number) for number in range(3)], np.arange(3)
    for crop in (RandomResizedCrop(size=24, interpolation="bicubic"), RandomResizedCrop(size=LARGEST + 1)):
        views = ViewRecipe({"a": (View(crop),)}).crop(images, index, seed=0, epoch=0)["a"]
        assert len(torch.unique(views)) > 1
        assert not crop.cut_small(np.stack([image.permute(1, 2, 0).numpy() for image in images]), {}, views[:, 0])


def test_images_of_several_sizes_grey_ones_and_none_are_not_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stack_small([pixels(8, 8), pixels(8, 9)]) is None
    assert stack_small([torch.zeros(1, 8, 8, dtype=torch.uint8)]) is None
    assert stack_small([]) is None
    monkeypatch.setattr(resized_boxes, "equals_torch", lambda: False)
    assert stack_small([pixels(8, 8)]) is None
