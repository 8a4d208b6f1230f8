"""Small pictures of images for a report, kept beside their features, so that nothing is read again for them."""

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from raysl.config.schema import DataConfig
from raysl.data.decode.images import cut_images
from raysl.data.source import Split
from raysl.hashing import Int64s
from raysl.report.contents import Pixels
from raysl.transforms.channels import to_shown
from raysl.transforms.view_recipe import ViewRecipe, evaluation_recipe

MOST_SIDE = 64
"""Largest side in pixels."""
QUALITY = 95
"""Of JPEG."""


def thumbnail_recipe(data: DataConfig) -> ViewRecipe:
    """Return the recipe of one small view of an image, the whole centre of it."""
    size = min(MOST_SIDE, data.image_size)
    return evaluation_recipe(size, size)


def thumbnails_of(split: Split, index: Int64s, data: DataConfig) -> Pixels:
    """Read images and return their thumbnails, uint8 [N, H, W, 3]."""
    recipe = thumbnail_recipe(data)
    cut = cut_images(split, index, lambda sources, rows: recipe(sources[0].images, rows, 0, 0))
    return to_shown(cut.views["image"][:, 0]).permute(0, 2, 3, 1).numpy()


def encoded(pixels: Pixels) -> list[bytes]:
    """Return thumbnails [N, H, W, 3] as JPEG files."""
    files = []
    for image in pixels:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "JPEG", quality=QUALITY)
        files.append(buffer.getvalue())
    return files


def decoded(files: Sequence[bytes]) -> Pixels:
    """Return the pixels of `encoded` thumbnails, uint8 [N, H, W, 3].

    >>> decoded(encoded(np.zeros((2, 8, 8, 3), np.uint8))).shape
    (2, 8, 8, 3)
    """
    return np.stack([np.array(Image.open(io.BytesIO(file))) for file in files])
