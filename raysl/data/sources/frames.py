"""DICOM files of several frames, such as a volume or a film, as one image a frame."""

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import BinaryIO, cast

import numpy as np
from pyarrow import fs
from typing_extensions import override

from raysl.data.decode.dicom_frames import Frames, find_frames
from raysl.data.decode.dicom_header import INSTALL
from raysl.data.decode.pixels import CorruptImage
from raysl.data.limits import max_file_bytes
from raysl.data.sources.image_files import FilesSplit, call_if_there
from raysl.data.sources.listing import DICOM_ENDINGS, join_some
from raysl.data.split import Encoded, Int64s, LabelledSplit, Missing, by_unit, runs
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


def with_frames(files: FilesSplit, chosen: Int64s | None = None) -> "FilesSplit | FramesSplit":
    """Return the images with each frame of a DICOM file as an image of its own; the files themselves if none has more.

    The header of each file whose name ends as a DICOM file's is read.

    Args:
        chosen: int64 [N], frame of each file, from 1; 0 takes all. Default: all.

    Raises:
        ConfigError: if pydicom is missing, no decoder reads some of the files, or a file lacks the chosen frame.
    """
    rows = [row for row, path in enumerate(files.files) if path.lower().endswith(DICOM_ENDINGS)]
    if not rows:
        return files
    if find_spec("pydicom") is None:
        raise ConfigError(
            f"{len(rows):,} of the {len(files.files):,} images, first {files.name_of(rows[0])}: {INSTALL}"
        )
    located = files.locate(np.array(rows, np.int64))
    systems = {id(system): system for system, _ in located}.values()
    frames = list(in_parallel(lambda file: _find(*file), located, min(map(small_reads, systems))))
    _check_decoders(files, rows, frames)
    if all(each.num == 1 and not each.damage for each in frames) and (chosen is None or not (chosen > 1).any()):
        return files
    return FramesSplit(files, dict(zip(rows, frames, strict=True)), chosen)


class FramesSplit(LabelledSplit):
    """Files, those of several frames as one image a frame, which has the label of its file and its name with `#1`.

    Args:
        files: the files in their order.
        frames: frames of the DICOM files among them, by their rows in `files`.
        chosen: int64 [N], frame of each file, from 1; 0 takes all.
    """

    def __init__(self, files: FilesSplit, frames: Mapping[int, Frames], chosen: Int64s | None = None) -> None:
        counts = np.ones(len(files.files), np.int64)
        counts[list(frames)] = [each.num for each in frames.values()]
        chosen = np.zeros(len(counts), np.int64) if chosen is None else chosen
        if len(wrong := np.flatnonzero((chosen > counts) & (counts > 0))):
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
        self.labels, self.is_multilabel = files.labels[self.file_of], files.is_multilabel
        self.classes = files.classes
        self.unit_sizes = runs(len(self.file_of))
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
        return [f"{name}#{frame}" if file in self.frames else name for name, file, frame in named]

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
        for (_, positions), frames in zip(cut, self._cut(cut, index), strict=True):
            for position, image in zip(positions.tolist(), frames, strict=True):
                images[position] = image
        return images

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

    def read(name: str) -> list[bytes]:
        if isinstance(system, fs.LocalFileSystem):
            return _read_local(name, offsets.tolist(), sizes.tolist())
        return read_together(system, name, offsets, sizes)

    try:
        contents = call_if_there(system, path, read)
    except EOFError as error:
        contents = Missing(str(error))
    if isinstance(contents, Missing):
        return [contents] * len(numbers)
    return [layout.as_file(number, content) for number, content in zip(numbers.tolist(), contents, strict=True)]


def _read_local(path: str, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
    with open_regular(path) as file:
        contents = [os.pread(file.fileno(), size, offset) for offset, size in zip(offsets, sizes, strict=True)]
    if any(len(content) != size for content, size in zip(contents, sizes, strict=True)):
        raise EOFError("the file ends before its frames do; was it replaced?")
    return contents


def _find(system: fs.FileSystem, path: str) -> Frames:
    """Return the frames of a file; one that cannot be read has one, and says why when it is read."""

    def find(name: str) -> Frames:
        try:
            return _find_in(system, name)
        except CorruptImage as error:
            return Frames(1, damage=str(error))

    found = call_if_there(system, path, find)
    return Frames(1) if isinstance(found, Missing) else found


def _find_in(system: fs.FileSystem, path: str) -> Frames:
    if isinstance(system, fs.LocalFileSystem):
        with open_regular(path) as file:
            return find_frames(io.BufferedReader(file), os.fstat(file.fileno()).st_size)
    num_bytes = system.get_file_info(path).size
    if num_bytes is None:
        content = read_file(system, path, max_file_bytes())
        return find_frames(io.BytesIO(content), len(content))
    with RangeFile(system, path, num_bytes) as ranges:
        return find_frames(cast(BinaryIO, ranges), num_bytes)


def _check_decoders(files: FilesSplit, rows: Sequence[int], frames: Sequence[Frames]) -> None:
    """Refuse files that no installed decoder reads."""
    problems = [(row, each.problem) for row, each in zip(rows, frames, strict=True) if each.problem]
    if problems:
        row, problem = problems[0]
        raise ConfigError(
            f"{len(problems):,} of the {len(rows):,} DICOM files cannot be decoded, first {files.name_of(row)}: it is "
            f"compressed as {problem}"
        )
