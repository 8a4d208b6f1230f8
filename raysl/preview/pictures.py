"""Views as pictures: masks drawn over the patches, tiles laid out, and what was drawn written below."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from raysl.report.contents import Pixels
from raysl.transforms.tiles import Tiles
from raysl.transforms.view import View

STRIPES = (225, 60)
"""Grey levels of the stripes over a masked patch."""
VEIL = 0.82
"""Share of the stripes in a masked pixel."""


@dataclass(frozen=True)
class ViewPicture:
    """One view of one sample."""

    picture: Image.Image
    caption: list[str]
    """Lines that say what was drawn for it."""


def view_picture(view: View, images: Tensor, extras: dict[str, Tensor]) -> ViewPicture:
    """What a method gets of one view of a sample.

    Args:
        view: how it was made.
        images: uint8 [T, 3, S, S], its tiles, or itself alone.
        extras: what the method is told of it, [...] by name.
    """
    pixels = images.permute(0, 2, 3, 1).numpy()  # [T, S, S, 3]
    if view.tiles is not None:
        return ViewPicture(_laid_out(pixels, view.tiles.grid), _captions(view.tiles, extras))
    picture = masked(pixels[0], extras["mask"].numpy()) if "mask" in extras else pixels[0]
    return ViewPicture(Image.fromarray(np.ascontiguousarray(picture)), _captions(None, extras))


def masked(pixels: Pixels, mask: NDArray[np.bool_]) -> Pixels:
    """An image [S, S, 3] with stripes over its masked patches, where `mask` [s, s] is true."""
    side = len(pixels) // len(mask)
    period = max(2, side // 2)
    places = np.arange(len(pixels))
    is_light = (places[:, None] + places) % period < period / 2  # [S, S]
    stripes = np.where(is_light, *STRIPES)[..., None]
    veiled = (pixels * (1 - VEIL) + stripes * VEIL).astype(np.uint8)
    is_masked = mask.repeat(side, axis=0).repeat(side, axis=1)[..., None]
    return np.where(is_masked, veiled, pixels)


def _laid_out(tiles: Pixels, grid: int) -> Image.Image:
    """Tiles [T, S, S, 3] column by column, as cells are counted: in the order of the cells they are the image."""
    size = tiles.shape[1]
    gap = max(1, size // 16)
    side = grid * (size + gap) - gap
    picture = Image.new("RGBA", (side, side), (0, 0, 0, 0))
    for place, tile in enumerate(tiles):
        column, row = divmod(place, grid)
        picture.paste(Image.fromarray(np.ascontiguousarray(tile)), (column * (size + gap), row * (size + gap)))
    return picture


def _captions(tiles: Tiles | None, extras: dict[str, Tensor]) -> list[str]:
    """What was drawn; an extra of unknown meaning is written as it is where it is one number."""
    lines = []
    for name, value in extras.items():
        if name == "mask":
            lines.append(f"{int(value.sum())} of {value.numel()} patches masked")
        elif name == "targets":
            lines.append(f"patches to predict: {', '.join(map(str, value.flatten(1).sum(dim=1).tolist()))}")
        elif name == "rotation":
            lines.append(f"rotation {90 * int(value)}°")
        elif name == "permutation" and tiles is not None:
            lines.append(_permutation(tiles, int(value)))
        elif value.numel() == 1:
            lines.append(f"{name} {value.item():g}")
    return lines


def _permutation(tiles: Tiles, row: int) -> str:
    cells = " ".join(map(str, np.asarray(tiles.order)[row]))
    return f"permutation {row:,} of {len(tiles.order):,}: cells {cells}"
