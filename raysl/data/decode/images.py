"""Reading the images of a split: decoding, with a replacement for what is broken."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from raysl.data.decode.decode import CorruptImage, decode, image_size
from raysl.data.source import Rows, Split
from raysl.hashing import Int64s
from raysl.redact import redact

MOST_TRIED = 4096  # neighbours that are looked at for a valid image
DECODED_BYTES = 1 << 28  # of decoded images wait to be cut, beside the one that is being decoded

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


@dataclass(frozen=True)
class Cut:
    """What was made of samples.

    Args:
        views: [B, ...] by name.
        labels, corrupt: as in `Read`.
        names: where each image came from, of those that were replaced too.
    """

    views: dict[str, Tensor]
    labels: Int64s
    corrupt: tuple[str, ...]
    names: tuple[str, ...] = ()


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
    samples = _Samples(split, index, reductions)
    pictures = samples.pictures([samples.decoded(place) for place in range(len(index))])
    return Read(pictures, samples.labels, tuple(samples.corrupt))


def cut_images(
    split: Split,
    index: Int64s,
    cut: Callable[[tuple[Pictures, ...], Int64s], dict[str, Tensor]],
    reductions: Reductions | None = None,
) -> Cut:
    """Read and decode samples, and keep what is cut out of them: few decoded images are in memory at a time.

    Args:
        split, index, reductions: as in `read_images`.
        cut: from the images of some of the samples, and the indices of these, to tensors [b, ...] by name; a sample's
            rows must not depend on the other samples.

    Raises:
        CorruptImage: as `read_images`.
    """
    samples = _Samples(split, index, reductions)
    parts: list[dict[str, Tensor]] = []
    waiting: list[list[_Image]] = []
    num_bytes = first = 0
    for place in range(len(index)):
        waiting.append(samples.decoded(place))
        num_bytes += sum(image.nbytes for image, _ in waiting[-1])
        if num_bytes >= DECODED_BYTES:
            parts.append(cut(samples.pictures(waiting), index[first : place + 1]))
            waiting.clear()
            num_bytes, first = 0, place + 1
    if waiting or not parts:
        parts.append(cut(samples.pictures(waiting), index[first:]))
    views = parts[0] if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return Cut(views, samples.labels, tuple(samples.corrupt), tuple(samples.sources[0].names))


class _Samples:
    """The rows of some samples, decoded one by one; the labels and the list of corrupt ones follow."""

    def __init__(self, split: Split, index: Int64s, reductions: Reductions | None) -> None:
        rows = split.read(index)
        self.split, self.index, self.labels = split, index, rows.labels
        self.sources = (rows, *rows.partners)
        self.allowed = [
            list(reductions(source, number)) if reductions else [1] * len(index)
            for number, source in enumerate(self.sources)
        ]
        self.corrupt: list[str] = []

    def decoded(self, place: int) -> list[_Image]:
        """The sample at a place of the index, or what replaces it; of all sources."""
        try:
            return _decoded(self.split, self.sources, place, [factors[place] for factors in self.allowed])
        except CorruptImage as error:
            if not self.corrupt:
                self.labels = self.labels.copy()
            self.corrupt.append(redact(str(error)))  # the name may be a URI, and goes to logs and lists
            sample, self.labels[place] = _replacement(self.split, int(self.index[place]), str(error))
            return sample

    def pictures(self, samples: Sequence[list[_Image]]) -> tuple[Pictures, ...]:
        """Samples by source."""
        return tuple(
            Pictures([sample[number][0] for sample in samples], [sample[number][1] for sample in samples])
            for number in range(len(self.sources))
        )


def _decoded(split: Split, sources: Sequence[Rows], place: int, reductions: Sequence[int]) -> list[_Image]:
    """One sample of all sources."""
    images = []
    for source, reduction in zip(sources, reductions, strict=True):
        data = source.images[place]
        try:
            image = decode(data, reduction, split.background)
        except CorruptImage as error:
            raise CorruptImage(f"{source.names[place]}: {error}") from error
        images.append((image, image_size(data) if reduction > 1 else (image.shape[1], image.shape[2])))
    return images


def _replacement(split: Split, index: int, reason: str) -> tuple[list[_Image], Int64s]:
    for other in islice(_behind(split, index), MOST_TRIED):
        rows = split.read(np.array([other]))
        sources = (rows, *rows.partners)
        try:
            return _decoded(split, sources, 0, [1] * len(sources)), rows.labels[0]
        except CorruptImage:
            continue
    tried = min(MOST_TRIED, split.num_samples - 1)
    if tried == 0:
        raise CorruptImage(reason)
    raise CorruptImage(f"no valid image among the {tried:,} behind row {index}; the first problem: {reason}")


def _behind(split: Split, index: int) -> Iterator[int]:
    """All other rows: first those of the unit, from `index` on and around, then those of the units behind it."""
    ends = np.cumsum(split.unit_sizes)
    unit = int(np.searchsorted(ends, index, side="right"))
    end, size = int(ends[unit]), int(split.unit_sizes[unit])
    first = end - size
    yield from (first + (index - first + distance) % size for distance in range(1, size))
    yield from (row % split.num_samples for row in range(end, first + split.num_samples))
