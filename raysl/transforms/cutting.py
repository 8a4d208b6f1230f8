"""Crops cut out of a batch of decoded images, and where they lie, in pixels of the whole images."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from raysl.transforms.crop import Crop
from raysl.transforms.random import Ints


def crop_each(
    crop: Crop, images: Sequence[Tensor], params: dict[str, Ints], sizes: Sequence[tuple[int, int]], out: Tensor
) -> None:
    """Fill `out` [B, C, size, size]."""
    for image, values, view in zip(images, _applied(crop, images, params, sizes), out.unbind(0), strict=True):
        crop.cut(image, values, view)


def boxes_of(crop: Crop, images: Sequence[Tensor], params: dict[str, Ints], sizes: Sequence[tuple[int, int]]) -> Tensor:
    """Return where the crops lie in their whole images, see `View.box`, float32 [B, 6]."""
    rows = []
    for image, values, size in zip(images, _applied(crop, images, params, sizes), sizes, strict=True):
        # A decoder makes each pixel of factor x factor ones, and only those at an end of the image of fewer.
        factor = 1 << round(math.log2(max(size) / max(image.shape[1:])))
        rows.append((*(factor * edge for edge in crop.edges(values, *image.shape[1:])), *size))
    return torch.tensor(rows, dtype=torch.float32).view(-1, 6)


def _applied(
    crop: Crop, images: Sequence[Tensor], params: dict[str, Ints], sizes: Sequence[tuple[int, int]]
) -> Iterator[dict[str, int]]:
    """Yield the parameters of each crop for the scale at which its image was decoded."""
    columns = [values.tolist() for values in params.values()]
    rows = zip(*columns, strict=True) if columns else [()] * len(images)
    for image, row, size in zip(images, rows, sizes, strict=True):
        values = dict(zip(params, row, strict=True))
        yield crop.shrunk(values, size, image.shape[1:]) if image.shape[1:] != size else values
