"""Reading the images of a split: decoding, with a replacement for what is broken."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from torch import Tensor

from raysl.data.decode import CorruptImage, decode, image_size
from raysl.data.source import Rows, Split
from raysl.hashing import Int64s
from raysl.redact import redact

MOST_TRIED = 4096  # neighbours that are looked at for a valid image

_Image = tuple[Tensor, tuple[int, int]]  # pixels, and the stored size

Reductions = Callable[[Rows, int], Sequence[int]]
"""How many times smaller each image of a source, with its number, may be decoded: 1, 2, 4 or 8."""


@dataclass(frozen=True)
class Pictures:
    """Decoded images of one source.

    Args:
        images: uint8 [3, H, W] each.
        sizes: heights and widths as they are stored; an image that was decoded at a reduced scale is smaller.
    """

    images: list[Tensor]
    sizes: list[tuple[int, int]]


@dataclass(frozen=True)
class Read:
    """Decoded samples.

    Args:
        pictures: of each paired source, at least one.
        labels: int64 [B], or [B, K] of a multi-label split.
        corrupt: names of the images that were replaced, with the reason.
    """

    pictures: tuple[Pictures, ...]
    labels: Int64s
    corrupt: tuple[str, ...]


def read_images(split: Split, index: Int64s, reductions: Reductions | None = None) -> Read:
    """Read and decode samples.

    A sample with a corrupt image is replaced by the next valid one of its read unit, or of the units behind it where it
    has none, so the same on every read.

    Args:
        split: where they are.
        index: int64 [B].
        reductions: what is allowed; default: all are decoded in full.

    Raises:
        CorruptImage: if none of the next MOST_TRIED images is valid.
    """
    rows = split.read(index)
    sources = (rows, *rows.partners)
    allowed = [
        list(reductions(source, number)) if reductions else [1] * len(index) for number, source in enumerate(sources)
    ]
    found: list[list[_Image]] = []
    labels = rows.labels
    corrupt: list[str] = []
    for place in range(len(index)):
        try:
            found.append(_decoded(sources, place, [factors[place] for factors in allowed]))
        except CorruptImage as error:
            if not corrupt:
                labels = labels.copy()
            corrupt.append(redact(str(error)))  # the name may be a URI, and goes to logs and lists
            sample, labels[place] = _replacement(split, int(index[place]), str(error))
            found.append(sample)
    pictures = []
    for number in range(len(sources)):
        images, sizes = [sample[number][0] for sample in found], [sample[number][1] for sample in found]
        pictures.append(Pictures(images, sizes))
    return Read(tuple(pictures), labels, tuple(corrupt))


def _decoded(sources: Sequence[Rows], place: int, reductions: Sequence[int]) -> list[_Image]:
    """One sample of all sources."""
    images = []
    for source, reduction in zip(sources, reductions, strict=True):
        data = source.images[place]
        try:
            image = decode(data, reduction)
        except CorruptImage as error:
            raise CorruptImage(f"{source.names[place]}: {error}") from error
        images.append((image, image_size(data) if reduction > 1 else (image.shape[1], image.shape[2])))
    return images


def _replacement(split: Split, index: int, reason: str) -> tuple[list[_Image], Int64s]:
    for other in islice(_behind(split, index), MOST_TRIED):
        rows = split.read(np.array([other]))
        sources = (rows, *rows.partners)
        try:
            return _decoded(sources, 0, [1] * len(sources)), rows.labels[0]
        except CorruptImage:
            continue
    tried = min(MOST_TRIED, split.num_samples - 1)
    raise CorruptImage(f"no valid image among the {tried:,} behind row {index}; the first problem: {reason}")


def _behind(split: Split, index: int) -> Iterator[int]:
    """All other rows: first those of the unit, from `index` on and around, then those of the units behind it."""
    ends = np.cumsum(split.unit_sizes)
    unit = int(np.searchsorted(ends, index, side="right"))
    end, size = int(ends[unit]), int(split.unit_sizes[unit])
    first = end - size
    yield from (first + (index - first + distance) % size for distance in range(1, size))
    yield from (row % split.num_samples for row in range(end, first + split.num_samples))
