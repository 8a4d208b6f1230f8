"""JPEG files to measure with, made of the photographs that come with scikit-learn."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.data import Dataset

from raysl.hashing import hash_words

STORED = {32: (32, 32), 224: (375, 500)}
"""Heights and widths of the stored images, by the side of the views that are made of them."""
QUALITY = 87
GROUP_ROWS = 256


def write_pictures(path: Path, size: int, num: int) -> None:
    """Write a Parquet file of JPEG images for views of `size` px, a key of `STORED`, each another part of a
    photograph.
    """
    from PIL import Image
    from sklearn.datasets import load_sample_images

    photographs = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    height, width = STORED[size]
    images = []
    for number in range(num):
        photograph = photographs[number % len(photographs)]
        side = 0.5 + 0.5 * _share(number, 0)  # of the largest box of that shape
        box_width = side * min(photograph.width, photograph.height * width / height)
        box_height = box_width * height / width
        x = _share(number, 1) * (photograph.width - box_width)
        y = _share(number, 2) * (photograph.height - box_height)
        box = (x, y, x + box_width, y + box_height)
        file = io.BytesIO()
        photograph.resize((width, height), Image.Resampling.BICUBIC, box=box).save(file, "JPEG", quality=QUALITY)
        images.append(file.getvalue())
    labels = np.arange(num) % len(photographs)
    pq.write_table(pa.table({"image": images, "label": labels}), path, row_group_size=GROUP_ROWS)


def read_pictures(path: Path) -> list[bytes]:
    """The encoded images of a file that `write_pictures` has made."""
    images: list[bytes] = pq.ParquetFile(path).read(["image"])["image"].to_pylist()
    return images


def open_image(data: bytes) -> Any:
    """Return the PIL image of an encoded one."""
    from PIL import Image

    return Image.open(io.BytesIO(data)).convert("RGB")


class EncodedImages(Dataset[Any]):
    """Encoded images that are decoded and transformed one by one; those of a longer length come again."""

    def __init__(
        self,
        encoded: Sequence[bytes],
        transform: Callable[[Any], Any],
        decoder: Callable[[bytes], Any] = open_image,
        length: int | None = None,
    ) -> None:
        self.encoded, self.transform, self.decoder = encoded, transform, decoder
        self.length = length or len(encoded)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, row: int) -> Any:
        return self.transform(self.decoder(self.encoded[row % len(self.encoded)]))


def _share(number: int, draw: int) -> float:
    return float(hash_words(number, draw) / 2**64)
