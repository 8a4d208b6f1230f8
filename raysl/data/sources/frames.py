"""Files of several frames or slices, such as a volume or a film, as one image a frame."""

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import groupby
from typing import BinaryIO, cast

import numpy as np
from pyarrow import fs
from typing_extensions import override

from raysl.data.decode.array_slices import find_array_slices
from raysl.data.decode.decode import MARKS
from raysl.data.decode.dicom_frames import find_frames
from raysl.data.decode.dicom_header import INSTALL, is_dicom
from raysl.data.decode.frames import Frames
from raysl.data.decode.gzipped import GZIP, inflated_head, read_inflated
from raysl.data.decode.nifti import HEAD_BYTES, find_slices
from raysl.data.decode.nifti import INSTALL as INSTALL_NIBABEL
from raysl.data.decode.pixels import CorruptImage
from raysl.data.limits import max_file_bytes
from raysl.data.sources.image_files import FilesSplit, call_if_there
from raysl.data.sources.listing import ARRAY_ENDINGS, DICOM_ENDINGS, FRAME_ENDINGS, NIFTI_ENDINGS, join_some
from raysl.data.split import UNIT_ROWS, Encoded, Int64s, LabelledSplit, Missing, by_unit, runs
from raysl.errors import ConfigError
from raysl.hashing import digest
from raysl.storage.reads import (
    REMOTE_READS,
    RangeFile,
    in_parallel,
    open_regular,
    read_file,
    read_together,
    small_reads,
)
from raysl.transforms.channels import Channels

UNIT_BYTES = 1 << 28
"""Bytes of the slices of a compressed file that are read together: a file with more is decompressed several times."""


def with_frames(files: FilesSplit, channels: Channels, chosen: Int64s | None = None) -> "FilesSplit | FramesSplit":
    """Return the images with each frame of a DICOM file, and each slice of a NIfTI file or of an array, as an image of
    its own; the files themselves if none has more than one.

    The header of each file whose name ends as such a file's is read; of arrays, where `channels` is a number.

    Args:
        channels: `data.channels`.
        chosen: int64 [N], frame of each file, from 1; 0 takes all. Default: all.

    Raises:
        ConfigError: if pydicom or nibabel is missing, no decoder reads some of the files, or a file lacks the chosen
            frame.
    """
    num_channels = channels if isinstance(channels, int) else None
    endings = FRAME_ENDINGS if num_channels else (*DICOM_ENDINGS, *NIFTI_ENDINGS)
    rows = [row for row, path in enumerate(files.files) if path.lower().endswith(endings)]
    if not rows:
        return files
    paths = files.files.take(np.array(rows, np.int64))
    _check_libraries(files, rows, paths)
    # a list may name each slice of a file, and its header is read once
    rows_of = dict(zip(reversed(paths), reversed(rows), strict=True))
    located = files.locate(np.array(list(rows_of.values()), np.int64))
    systems = {id(system): system for system, _ in located}.values()
    layouts = in_parallel(lambda file: _find(*file, num_channels), located, min(map(small_reads, systems)))
    frames_of = dict(zip(rows_of, layouts, strict=True))
    frames = [frames_of[path] for path in paths]
    _check_decoders(files, rows, frames)
    is_single = all(each.num == 1 and not each.damage and not len(each.offsets) for each in frames)
    if is_single and (chosen is None or not (chosen > 1).any()):
        return files
    return FramesSplit(files, dict(zip(rows, frames, strict=True)), chosen)


class FramesSplit(LabelledSplit):
    """Files, those of several frames as one image a frame, which has the label of its file and its name with `#1`.

    Args:
        files: the files in their order.
        frames: frames of those that may have several, by their rows in `files`.
        chosen: int64 [N], frame of each file, from 1; 0 takes all.
    """

    def __init__(self, files: FilesSplit, frames: Mapping[int, Frames], chosen: Int64s | None = None) -> None:
        counts = np.ones(len(files.files), np.int64)
        counts[list(frames)] = [each.num for each in frames.values()]
        chosen = np.zeros(len(counts), np.int64) if chosen is None else chosen
        is_damaged = np.zeros(len(counts), np.bool_)
        is_damaged[[row for row, each in frames.items() if each.damage]] = True
        if len(wrong := np.flatnonzero((chosen > counts) & (counts > 0) & ~is_damaged)):
            row = int(wrong[0])
            raise ConfigError(f"{files.name_of(row)} has {counts[row]:,} frames, and frame {chosen[row]:,} is listed")
        empty = [files.name_of(row) for row in np.flatnonzero(counts == 0).tolist()]
        taken = np.where(chosen > 0, np.minimum(counts, 1), counts)
        self.files = files
        self.frames = {row: each for row, each in frames.items() if len(each.offsets)}
        self.damaged = {row: each.damage for row, each in frames.items() if each.damage}
        self.file_of = np.repeat(np.arange(len(counts)), taken)  # [M]
        ends = np.cumsum(taken)
        self.starts = ends - taken
        self.frame_of = np.arange(len(self.file_of)) - self.starts[self.file_of]
        self.frame_of += np.repeat(np.maximum(chosen - 1, 0), taken)  # from 0
        if not len(self.file_of):
            raise ConfigError(f"no image: none of the {len(empty):,} DICOM files has pixels, first {empty[0]}")
        self.is_random_access = not any(each.is_gzip for each in self.frames.values())
        self.labels, self.is_multilabel = files.labels[self.file_of], files.is_multilabel
        self.classes = files.classes
        self.unit_sizes = self._units(taken)
        left_out = f"{len(empty):,} DICOM files have no pixels and are left out: {join_some(empty)}"
        self.notes = files.notes + ((left_out,) if empty else ())
        self.fingerprint = digest(files.fingerprint, self.file_of.tobytes(), self.frame_of.tobytes())

    @override
    def content(self) -> Mapping[str, str]:
        return self.files.content()

    @override
    def written(self, ask: bool = True) -> str:
        return self.files.written(ask)

    @override
    def name_of(self, row: int) -> str:
        return self.names_of(np.array([row]))[0]

    @override
    def names_of(self, index: Int64s) -> list[str]:
        files, frames = self.file_of[index], self.frame_of[index] + 1
        named = zip(self.files.names_of(files), files.tolist(), frames.tolist(), strict=True)
        return [f"{name}#{frame}" if self._has_several(file) else name for name, file, frame in named]

    @override
    def images_of(self, index: Int64s) -> Sequence[Encoded]:
        images: list[Encoded] = [None] * len(index)
        whole: list[int] = []
        cut: list[tuple[int, Int64s]] = []
        for file, positions in by_unit(self.starts, index):
            if file in self.frames:
                cut.append((file, positions))
            elif file in self.damaged:
                for position in positions.tolist():
                    images[position] = Missing(self.damaged[file])
            else:
                whole += positions.tolist()
        for position, image in zip(whole, self.files.images_of(self.file_of[index[whole]]), strict=True):
            images[position] = image
        cut = self._together(cut)
        for (_, positions), frames in zip(cut, self._cut(cut, index), strict=True):
            for position, image in zip(positions.tolist(), frames, strict=True):
                images[position] = image
        return images

    def _has_several(self, file: int) -> bool:
        return file in self.frames and self.frames[file].num > 1

    def _compressed(self, file: int) -> str:
        """Return the path of a file that is read from its beginning, since it is compressed; else ''."""
        return self.files.files[file] if file in self.frames and self.frames[file].is_gzip else ""

    def _units(self, taken: Int64s) -> Int64s:
        """Return the rows of each read unit: slices of one compressed file, and runs of what can be read alone.

        Args:
            taken: int64 [N], images of each file.
        """
        sizes: list[int] = []
        for path, group in groupby(range(len(taken)), self._compressed):
            files = list(group)
            most = max(1, UNIT_BYTES // int(self.frames[files[0]].sizes[0])) if path else UNIT_ROWS
            sizes += runs(int(taken[files].sum()), most).tolist()
        return np.array(sizes, np.int64)

    def _together(self, cut: list[tuple[int, Int64s]]) -> list[tuple[int, Int64s]]:
        """Return the same with all rows of a compressed file together, which a list may name slice by slice."""
        parts: dict[str | int, list[tuple[int, Int64s]]] = {}
        for file, positions in cut:
            parts.setdefault(self._compressed(file) or file, []).append((file, positions))
        return [(each[0][0], np.concatenate([positions for _, positions in each])) for each in parts.values()]

    def _cut(self, cut: list[tuple[int, Int64s]], index: Int64s) -> Iterator[list[Encoded]]:
        """Yield the frames that are wanted of each file.

        Args:
            cut: number of each file, and the positions of its frames in `index`.
        """
        located = self.files.locate(np.array([file for file, _ in cut], np.int64))
        most = max_file_bytes()  # of this thread

        def read(number: int) -> list[Encoded]:
            file, positions = cut[number]
            return _read_frames(*located[number], self.frames[file], self.frame_of[index[positions]], most)

        if all(isinstance(system, fs.LocalFileSystem) for system, _ in located):
            return map(read, range(len(cut)))
        return in_parallel(read, range(len(cut)), REMOTE_READS)


def _read_frames(system: fs.FileSystem, path: str, layout: Frames, numbers: Int64s, most: int) -> list[Encoded]:
    """Return frames of one file as files of one frame each; Missing where they cannot be read."""
    offsets, sizes = layout.offsets[numbers], layout.sizes[numbers]
    if int(sizes.max()) > most:
        return [Missing(f"more than {most:,} bytes")] * len(numbers)

    def read(name: str) -> Sequence[bytes | Missing]:
        if layout.is_gzip:
            with _opened(system, name) as (file, _):
                return read_inflated(file, offsets, sizes)
        if isinstance(system, fs.LocalFileSystem):
            return _read_local(name, offsets.tolist(), sizes.tolist())
        return read_together(system, name, offsets, sizes)

    try:
        contents = call_if_there(system, path, read)
    except EOFError as error:
        contents = Missing(str(error))
    if isinstance(contents, Missing):
        return [contents] * len(numbers)
    return [
        content if isinstance(content, Missing) else layout.as_file(number, content)
        for number, content in zip(numbers.tolist(), contents, strict=True)
    ]


def _read_local(path: str, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
    with open_regular(path) as file:
        contents = [os.pread(file.fileno(), size, offset) for offset, size in zip(offsets, sizes, strict=True)]
    if any(len(content) != size for content, size in zip(contents, sizes, strict=True)):
        raise EOFError("the file ends before its frames do; was it replaced?")
    return contents


def _find(system: fs.FileSystem, path: str, num_channels: int | None) -> Frames:
    """Return the frames of a file; one that cannot be read has one, and says why when it is read.

    Args:
        num_channels: `data.channels` where it is a number, else None.
    """

    def find(name: str) -> Frames:
        try:
            with _opened(system, name) as (file, num_bytes):
                return _find_in(file, num_bytes, path.lower(), num_channels)
        except CorruptImage as error:
            return Frames(1, damage=str(error))

    found = call_if_there(system, path, find)
    return Frames(1) if isinstance(found, Missing) else found


def _find_in(file: BinaryIO, num_bytes: int, name: str, num_channels: int | None) -> Frames:
    """Return the frames of an open file, whose name says what it is unless it begins as an ordinary image does."""
    head = file.read(HEAD_BYTES)
    file.seek(0)
    # the preamble of a DICOM file may be the header of a TIFF
    if head.startswith(MARKS) and not is_dicom(head):
        return Frames(1)
    if name.endswith(DICOM_ENDINGS):
        return find_frames(file, num_bytes)
    if name.endswith(ARRAY_ENDINGS):
        return find_array_slices(file, num_bytes, num_channels or 0)
    if head.startswith(GZIP):
        return find_slices(io.BytesIO(inflated_head(file, HEAD_BYTES)), None, is_gzip=True)
    return find_slices(file, num_bytes)


@contextmanager
def _opened(system: fs.FileSystem, path: str) -> Iterator[tuple[BinaryIO, int]]:
    """Open a file of which parts are read, and return it with its length."""
    if isinstance(system, fs.LocalFileSystem):
        with open_regular(path) as local:
            yield io.BufferedReader(local), os.fstat(local.fileno()).st_size
        return
    num_bytes = system.get_file_info(path).size
    if num_bytes is None:
        content = read_file(system, path, max_file_bytes())
        yield io.BytesIO(content), len(content)
        return
    with RangeFile(system, path, num_bytes) as ranges:
        yield cast(BinaryIO, ranges), num_bytes


def _check_libraries(files: FilesSplit, rows: Sequence[int], paths: Sequence[str]) -> None:
    """Refuse files whose library is missing."""
    for library, endings, install in (("pydicom", DICOM_ENDINGS, INSTALL), ("nibabel", NIFTI_ENDINGS, INSTALL_NIBABEL)):
        of_kind = [row for row, path in zip(rows, paths, strict=True) if path.lower().endswith(endings)]
        if of_kind and find_spec(library) is None:
            raise ConfigError(
                f"{len(of_kind):,} of the {len(files.files):,} images, first {files.name_of(of_kind[0])}: {install}"
            )


def _check_decoders(files: FilesSplit, rows: Sequence[int], frames: Sequence[Frames]) -> None:
    """Refuse files that no installed decoder reads."""
    problems = [(row, each.problem) for row, each in zip(rows, frames, strict=True) if each.problem]
    if problems:
        row, problem = problems[0]
        num = sum(files.files[each].lower().endswith(DICOM_ENDINGS) for each in rows)
        raise ConfigError(
            f"{len(problems):,} of the {num:,} DICOM files cannot be decoded, first {files.name_of(row)}: it is "
            f"compressed as {problem}"
        )
