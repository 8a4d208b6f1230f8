"""Crops cut out of a batch of decoded images, and where they lie, in pixels of the whole images."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from raysl.transforms.crop import Crop, CropParams


class Cuts(NamedTuple):
    """Crops to cut out of B images, one of each.

    Args:
        params: drawn parameters of the crops.
        out: uint8 [B, C, size, size], to fill.
    """

    crop: Crop
    params: CropParams
    out: Tensor


def cut_each(images: Sequence[Tensor], sizes: Sequence[tuple[int, int]], cuts: Sequence[Cuts]) -> None:
    """Fill all crops of one image, then those of the next: the pixels of an image are read from memory once.

    Args:
        images: B uint8 images [C, H, W].
        sizes: heights and widths for which the crops were drawn.
        cuts: the crops, each with its parameters for all images.
    """
    drawn = [_applied(each.crop, images, each.params, sizes) for each in cuts]
    for position, (image, *values) in enumerate(zip(images, *drawn, strict=True)):
        for each, params in zip(cuts, values, strict=True):
            each.crop.cut(image, params, each.out[position])


def boxes_of(crop: Crop, images: Sequence[Tensor], params: CropParams, sizes: Sequence[tuple[int, int]]) -> Tensor:
    """Return where the crops lie in their whole images, see `View.box`, float32 [B, 6]."""
    rows = []
    for image, values, size in zip(images, _applied(crop, images, params, sizes), sizes, strict=True):
        # A decoder makes each pixel of factor x factor ones, and only those at an end of the image of fewer.
        factor = 1 << round(math.log2(max(size) / max(image.shape[1:])))
        rows.append((*(factor * edge for edge in crop.edges(values, *image.shape[1:])), *size))
    return torch.tensor(rows, dtype=torch.float32).view(-1, 6)


def _applied(
    crop: Crop, images: Sequence[Tensor], params: CropParams, sizes: Sequence[tuple[int, int]]
) -> Iterator[dict[str, int]]:
    """Yield the parameters of each crop for the scale at which its image was decoded."""
    columns = [values.tolist() for values in params.values()]
    rows = zip(*columns, strict=True) if columns else [()] * len(images)
    for image, row, size in zip(images, rows, sizes, strict=True):
        values = dict(zip(params, row, strict=True))
        yield crop.shrunk(values, size, image.shape[1:]) if image.shape[1:] != size else values
