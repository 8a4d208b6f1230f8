"""Boxes of views: where they lie in the whole image."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as vision

from raysl.nn.places import grid_cells, place_centres
from raysl.transforms import (
    Affine,
    AutoAugment,
    Canvas,
    CenterCrop,
    ColorJitter,
    Crop,
    HorizontalFlip,
    RandAugment,
    RandomCrop,
    RandomResizedCrop,
    RandomRotation90,
    Tiles,
    VerticalFlip,
    View,
    ViewRecipe,
)

SIZES = [(200, 250), (97, 131), (255, 60), (40, 40)]
INDEX = np.arange(len(SIZES))


def coordinates(height: int, width: int) -> Tensor:
    """An image whose first two channels are the row and the column of each pixel, uint8 [3, height, width]."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([rows, columns, torch.zeros_like(rows)]).to(torch.uint8)


def views_of(crop: Crop, *flips: type[HorizontalFlip] | type[VerticalFlip]) -> tuple[Tensor, Tensor]:
    """Views of images of coordinates [B, 8, 3, S, S], and their boxes [B, 8, 6]."""
    recipe = ViewRecipe({"global": (View(crop, tuple(flip(p=0.5) for flip in flips)),) * 8}).with_boxes()
    images = [coordinates(*size) for size in SIZES]
    made = recipe.augment(recipe.crop(images, INDEX, 0, 1), INDEX, 0, 1)
    return made.views["global"], made.extras["global.box"]


def test_a_box_is_what_torchvision_cuts_out() -> None:
    for side in (32, 120):  # the loop for small images, and torch
        views, boxes = views_of(RandomResizedCrop(size=side), HorizontalFlip, VerticalFlip)
        assert boxes.dtype == torch.float32
        signs = set()
        for row, size in enumerate(SIZES):
            for view, (top, left, bottom, right, *whole) in zip(views[row], boxes[row].tolist(), strict=True):
                assert tuple(whole) == size
                upper, near = int(min(top, bottom)), int(min(left, right))
                height, width = int(abs(bottom - top)), int(abs(right - left))
                expected = vision.resized_crop(coordinates(*size), upper, near, height, width, [side, side])
                expected = vision.vertical_flip(expected) if bottom < top else expected
                expected = vision.horizontal_flip(expected) if right < left else expected
                assert torch.equal(view, expected)
                signs.add((bottom > top, right > left))
        assert len(signs) == 4  # flipped in every way


@pytest.mark.parametrize("crop", [CenterCrop(size=30, resize=36), RandomCrop(size=30, resize=36)])
def test_centres_of_pixels_are_where_the_pixels_come_from(crop: Crop) -> None:
    views, boxes = views_of(crop, HorizontalFlip)
    centres = place_centres(boxes, 30, 30)  # [B, V, 30, 30, 2]
    assert centres.shape == (len(SIZES), 8, 30, 30, 2)
    came_from = views[:, :, :2].movedim(2, -1).float() + 0.5  # a pixel's middle
    inner = slice(2, -2)  # at the image's border, resizing has nothing on one side
    assert (centres - came_from)[:, :, inner, inner].abs().max() < 1.01


def test_a_canvas_has_its_image_where_it_was_put() -> None:
    _, boxes = views_of(Canvas(size=50, top=3, left=4))
    assert boxes[3, 0].tolist() == [-3, -4, 47, 46, 40, 40]


def test_cells_are_those_of_a_grid_over_the_image() -> None:
    views, boxes = views_of(RandomResizedCrop(size=40, scale=(0.2, 1.0)), HorizontalFlip, VerticalFlip)
    cells = grid_cells(boxes, 8, 8, grid=3)
    assert set(cells.flatten().tolist()) == set(range(9))
    for row, (height, width) in enumerate(SIZES):
        for view in range(8):
            for y, x in ((0, 0), (7, 2), (4, 7)):
                found = views[row, view, :2, 5 * y : 5 * y + 5, 5 * x : 5 * x + 5].float().mean(dim=(1, 2)) + 0.5
                place = found * 3 / torch.tensor([height, width])
                if (place - place.round()).abs().min() > 0.1:  # not so near to a border that rounding decides
                    assert cells[row, view, y, x] == 3 * int(place[0]) + int(place[1])


def test_only_views_that_ask_have_boxes_and_their_pixels_stay() -> None:
    plain = ViewRecipe({"global": (View(RandomResizedCrop(size=32), (HorizontalFlip(), ColorJitter())),) * 2})
    images = [coordinates(*size) for size in SIZES]
    crops = plain.crop(images, INDEX, 0, 0)
    assert list(crops) == ["global"]
    without, boxed = plain.augment(crops, INDEX, 0, 0), plain.with_boxes()
    made = boxed.augment(boxed.crop(images, INDEX, 0, 0), INDEX, 0, 0)
    assert (list(without.extras), list(made.extras)) == ([], ["global.box"])
    assert boxed.groups["global"][0].extra_names == ("box",)
    assert torch.equal(made.views["global"], without.views["global"])


def test_views_that_come_again_do_so_with_boxes() -> None:
    recipe = ViewRecipe({"global": (View(RandomResizedCrop(size=16)),)}, cycle=2).with_boxes()
    images = [coordinates(*size) for size in SIZES]
    boxes = [recipe.crop(images, INDEX, 0, epoch)["global.box"] for epoch in range(3)]
    assert torch.equal(boxes[0], boxes[2])
    assert not torch.equal(boxes[0], boxes[1])


def test_blank_crops_show_whole_images() -> None:
    recipe = ViewRecipe({"a": (View(RandomResizedCrop(size=8)),), "b": (View(RandomResizedCrop(size=4), box=True),)})
    blank = recipe.blank(3, num_channels=1)
    assert {name: tuple(crop.shape) for name, crop in blank.items()} == {
        "a": (3, 1, 1, 8, 8),
        "b": (3, 1, 1, 4, 4),
        "b.box": (3, 1, 6),
    }
    assert recipe.augment(blank, np.arange(3), 0, 0).extras["b.box"][0, 0].tolist() == [0, 0, 4, 4, 4, 4]


@pytest.mark.parametrize(
    "transform", [Affine(degrees=9), RandomRotation90(), RandAugment(), AutoAugment()], ids=lambda t: type(t).__name__
)
def test_views_that_are_turned_or_stretched_have_no_box(transform) -> None:
    view = View(RandomResizedCrop(size=32), (HorizontalFlip(), transform))
    with pytest.raises(ValueError, match=r"turns, shifts or stretches views.* affine_p=0"):
        replace(view, box=True)


def test_tiles_and_crops_without_edges_have_no_box() -> None:
    with pytest.raises(ValueError, match="tiles are cut out of it"):
        View(RandomResizedCrop(size=32), tiles=Tiles(grid=2, size=8, jitter=1), box=True)

    class Whole(CenterCrop):
        edges = Crop.edges

    with pytest.raises(ValueError, match="Whole does not tell where its crops lie"):
        View(Whole(size=8, resize=8), box=True)
