"""Reading and decoding the images of a split; corrupt ones are replaced and recorded."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from raysl.data.decode.bands import WrongBands
from raysl.data.decode.corrupt import Known, Replaced
from raysl.data.decode.decode import CorruptImage, decode, image_size
from raysl.data.decode.quiet import quiet_libraries
from raysl.data.limits import limiting
from raysl.data.source import Rows, Split
from raysl.errors import ConfigError, DamagedData
from raysl.hashing import Int64s
from raysl.redact import redact

LOOKED_AT = 32  # images at even distances before all are tried
SHOWN = 5  # broken images in a message
MOST_TRIED = 4096  # neighbours that are tried as a replacement
DECODED_BYTES = 1 << 28  # of decoded images that wait to be cropped, beside the one that is being decoded

_Image = tuple[Tensor, tuple[int, int]]  # pixels, and the stored size

Reductions = Callable[[Rows, int], Sequence[int]]
"""Takes the rows of a source and its number; returns how many times smaller each may be decoded: 1, 2, 4 or 8."""


@dataclass(frozen=True)
class Pictures:
    """Decoded images of one source.

    Args:
        images: uint8 [C, H, W] each.
        sizes: stored heights and widths, from before any decoding at a reduced scale.
    """

    images: list[Tensor]
    sizes: list[tuple[int, int]]


@dataclass(frozen=True)
class Read:
    """Decoded samples.

    Args:
        pictures: one for each paired source.
        labels: int64 [B], or [B, K] of a multi-label split.
    """

    pictures: tuple[Pictures, ...]
    labels: Int64s
    corrupt: tuple[Replaced, ...]


@dataclass(frozen=True)
class Cut:
    """Crops of samples.

    Args:
        views: [B, ...] by name.
        labels, corrupt: fields of `Read`.
        names: the origin of each image, before replacements; of a known corrupt image, that of its replacement.
        read_s: seconds of reading encoded images.
    """

    views: dict[str, Tensor]
    labels: Int64s
    corrupt: tuple[Replaced, ...]
    names: tuple[str, ...] = ()
    read_s: float = 0.0


class NoValidImage(DamagedData):
    """Too many images in a row are broken, so that none can take the place of another."""


def check_readable(split: Split, what: str) -> None:
    """Refuse a split none of whose images can be read; as a rule one image is looked at.

    Args:
        what: kind of the images, "training" or "held-out".
    """
    broken: list[CorruptImage] = []
    with quiet_libraries(), limiting(split.limits):
        for row in np.unique(np.linspace(0, split.num_samples - 1, LOOKED_AT).astype(np.int64)):
            rows = split.read(np.array([row]))
            try:
                _decode_sample(split, (rows, *rows.partners), 0, [1] * (1 + len(rows.partners)))
                return
            except CorruptImage as error:
                broken.append(error)
    try:
        read_images(split, np.zeros(1, np.int64))
    except NoValidImage as error:
        none = f"none of the {split.num_samples:,} {what} images can be read"
        if all(isinstance(each, WrongBands) for each in broken):  # whole files, which the settings do not fit
            raise ConfigError(f"{none} with these settings, such as {redact(str(broken[0]))}") from error
        shown = "; ".join(redact(str(each)) for each in broken[:SHOWN])
        more = "; ..." if split.num_samples > SHOWN else ""
        raise ConfigError(f"{none}: {shown}{more}; replace these files, or give others") from error


def read_images(split: Split, index: Int64s, reductions: Reductions | None = None) -> Read:
    """Read and decode samples.

    A sample with a corrupt image is replaced by the next valid one of its read unit, else of the units after it: the
    same one on every read.

    Args:
        index: int64 [B].
        reductions: the allowed reductions; default: all are decoded in full.

    Raises:
        NoValidImage: if none of the next MOST_TRIED images is valid.
    """
    with quiet_libraries(), limiting(split.limits):
        samples = _Samples(split, index, reductions, {})
        pictures = samples.pictures([samples.decode(position) for position in range(len(index))])
    return Read(pictures, samples.labels, tuple(samples.corrupt))


def cut_images(
    split: Split,
    index: Int64s,
    cut: Callable[[tuple[Pictures, ...], Int64s], dict[str, Tensor]],
    reductions: Reductions | None = None,
    known: Known | None = None,
    keys: Int64s | None = None,
) -> Cut:
    """Read and decode samples and keep only their crops, so that few decoded images are in memory at a time.

    Args:
        split, index, reductions: arguments of `read_images`.
        cut: takes the images of some of the samples and their indices, and returns tensors [b, ...] by name; a sample's
            rows must not depend on the other samples.
        known: corrupt images of earlier reads: their replacements are read at once in their place.
        keys: int64 [B], numbers that `cut` takes in place of the indices.
    """
    keys = index if keys is None else keys
    with limiting(split.limits):
        samples = _Samples(split, index, reductions, known or {})
    parts: list[dict[str, Tensor]] = []
    waiting: list[list[_Image]] = []
    num_bytes = first = 0
    with quiet_libraries(), limiting(split.limits):
        for position in range(len(index)):
            waiting.append(samples.decode(position))
            num_bytes += sum(image.nbytes for image, _ in waiting[-1])
            # crops need far less memory than the whole images, which can be dropped once they are cut
            if num_bytes >= DECODED_BYTES:
                parts.append(cut(samples.pictures(waiting), keys[first : position + 1]))
                waiting.clear()
                num_bytes, first = 0, position + 1
    # also without any sample, so that the views of an empty index have names and shapes
    if waiting or not parts:
        parts.append(cut(samples.pictures(waiting), keys[first:]))
    views = parts[0] if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return Cut(views, samples.labels, tuple(samples.corrupt), tuple(samples.sources[0].names), samples.read_s)


def _check_rows(split: Split, rows: Rows, num: int) -> None:
    """Refuse rows that a split cannot have read, and labels without a class."""
    what = f"{type(split).__qualname__}.read"
    if not isinstance(rows, Rows):
        raise ConfigError(f"{what} returned {type(rows).__name__}; return Rows(images, labels, names)")
    if not isinstance(rows.labels, np.ndarray) or rows.labels.dtype.kind not in "iu":
        raise ConfigError(f"{what} returned labels {rows.labels!r:.100}; return an array int64, -1 where unlabelled")
    counts = {"images": len(rows.images), "labels": len(rows.labels), "names": len(rows.names)}
    if set(counts.values()) != {num}:
        text = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise ConfigError(f"{what} returned {text} for {num} indices; return one of each for each index")
    if rows.labels.ndim == 1 and split.classes and (most := rows.labels.max(initial=-1)) >= len(split.classes):
        name, last = rows.names[int(rows.labels.argmax())], len(split.classes) - 1
        raise ConfigError(f"{redact(name)} has the label {most}, and classes have the numbers 0 to {last}")


class _Samples:
    """Decodes samples one by one; `labels` and `corrupt` are updated with each replacement."""

    def __init__(self, split: Split, index: Int64s, reductions: Reductions | None, known: Known) -> None:
        self.known = {position: known[row] for position, row in enumerate(index.tolist()) if row in known}
        to_read = index
        if self.known:
            # the caller's index stays as it is: samples keep their own numbers, only the rows that are read change
            to_read = index.copy()
            to_read[list(self.known)] = [image.other for image in self.known.values()]
        start = time.perf_counter()
        rows = split.read(to_read)
        self.read_s = time.perf_counter() - start
        _check_rows(split, rows, len(to_read))
        self.split, self.index, self.labels = split, index, rows.labels
        self.sources = (rows, *rows.partners)
        self.allowed = [
            list(reductions(source, number)) if reductions else [1] * len(index)
            for number, source in enumerate(self.sources)
        ]
        self.corrupt: list[Replaced] = []

    def decode(self, position: int) -> list[_Image]:
        """Decode the sample at a position of the index, or its replacement, from all sources."""
        is_known = position in self.known
        allowed = [1 if is_known else factors[position] for factors in self.allowed]  # replacements are never reduced
        try:
            sample = _decode_sample(self.split, self.sources, position, allowed)
        except CorruptImage as error:
            if not self.corrupt:
                # the array may be the split's own, and a replacement's label is written into it
                self.labels = self.labels.copy()
            row = int(self.index[position])
            sample, self.labels[position], other = _find_replacement(self.split, row, str(error))
            text = redact(str(error))  # the name may be a URI, and goes to logs and lists
            self.corrupt.append(Replaced(text, row, other))
            return sample
        if is_known:
            self.corrupt.append(self.known[position])
        return sample

    def pictures(self, samples: Sequence[list[_Image]]) -> tuple[Pictures, ...]:
        """Regroup samples by source."""
        return tuple(
            Pictures([sample[number][0] for sample in samples], [sample[number][1] for sample in samples])
            for number in range(len(self.sources))
        )


def _decode_sample(split: Split, sources: Sequence[Rows], position: int, reductions: Sequence[int]) -> list[_Image]:
    """Decode one sample from all sources."""
    images = []
    for source, reduction in zip(sources, reductions, strict=True):
        data = source.images[position]
        try:
            image = decode(data, reduction, split.background, split.bands)
        except CorruptImage as error:
            raise type(error)(f"{source.names[position]}: {error}") from error
        images.append((image, image_size(data) if reduction > 1 else (image.shape[1], image.shape[2])))
    return images


def _find_replacement(split: Split, index: int, reason: str) -> tuple[list[_Image], Int64s, int]:
    """Return the sample that takes the place of a row, with its labels and its row."""
    for other in islice(_other_rows(split, index), MOST_TRIED):
        rows = split.read(np.array([other]))
        sources = (rows, *rows.partners)
        try:
            return _decode_sample(split, sources, 0, [1] * len(sources)), rows.labels[0], other
        except CorruptImage:
            continue
    tried = min(MOST_TRIED, split.num_samples - 1)
    among = f" among the {tried:,} after row {index}; the first problem" if tried else ""
    raise NoValidImage(f"no valid image{among}: {redact(reason)}")


def _other_rows(split: Split, index: int) -> Iterator[int]:
    """Yield all other rows: first those of the unit, from `index` on and around, then those of the next units."""
    ends = np.cumsum(split.unit_sizes)
    unit = int(np.searchsorted(ends, index, side="right"))
    end, size = int(ends[unit]), int(split.unit_sizes[unit])
    first = end - size
    yield from (first + (index - first + distance) % size for distance in range(1, size))
    yield from (row % split.num_samples for row in range(end, first + split.num_samples))
