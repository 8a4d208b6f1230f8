"""Listing the files below a folder, with names of any bytes and links to anywhere; which files are images."""

import errno
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from stat import S_ISDIR, S_ISREG
from typing import NamedTuple

import numpy as np
from pyarrow import fs

from raysl.config.places import ARRAYS, ENDINGS, EXTENSIONS, is_hidden
from raysl.errors import ConfigError
from raysl.redact import visible
from raysl.storage.addresses import stat_uri, storage_errors

MOST_NAMES = 1_000
"""Of one folder that links lead to: two links a level double them at each."""
_NOWHERE = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR)


class File(NamedTuple):
    """A file below a folder.

    Args:
        path: path below the folder; bytes that are not UTF-8 are lone surrogates, as `os.fsdecode` makes them.
        size: bytes; None if the file system does not know them.
        mtime_ns: modification time in nanoseconds; None if the file system does not know it.
        identity: number that two names of one local file share; None if there is none.
    """

    path: str
    size: int | None
    mtime_ns: int | None
    identity: int | None


@dataclass(frozen=True)
class Listing:
    """Content of a folder without the names that `is_hidden` hides.

    Args:
        circles: links to a folder above them; they are not followed.
    """

    files: list[File]
    circles: list[str]
    dangling: list[str]

    def notes(self, uri: str, files: Sequence[File], is_used: Callable[[str], bool]) -> tuple[str, ...]:
        """Describe problems with links, a line each."""
        lines = []
        repeats = _repeats(files)
        if repeats:
            again, first = (printable(file.path) for file in repeats[0])
            lines.append(
                f"{len(repeats):,} of the {len(files):,} images of {uri!r} are links to other images there: "
                f"{again!r} is {first!r}; remove such links if each image is to count once"
            )
        if self.circles:
            circles = join_some(sorted(self.circles))
            lines.append(f"links to a folder that contains them are not followed in {uri!r}: {circles}")
        dangling = sorted(path for path in self.dangling if is_used(path))
        if dangling:
            names = join_some(dangling)
            lines.append(f"{len(dangling):,} links in {uri!r} point to missing files and are left out: {names}")
        return tuple(lines)


def list_files(uri: str) -> Listing:
    """List all files below a folder, sub-folders included."""
    system, info = stat_uri(uri)
    with storage_errors("read", uri):
        if isinstance(system, fs.LocalFileSystem):
            return _walk(info.path)
        entries = system.get_file_info(fs.FileSelector(info.path, recursive=True))
    inner = ((entry.path[len(info.path) :].strip("/"), entry) for entry in entries if entry.type == fs.FileType.File)
    files = [File(path, entry.size, entry.mtime_ns, None) for path, entry in inner if not is_hidden(path)]
    return Listing(files, [], [])


def list_folder_files(uri: str) -> dict[str, File]:
    """List the files directly in a folder by name, without those that `is_hidden` hides."""
    system, info = stat_uri(uri)
    with storage_errors("read", uri):
        if isinstance(system, fs.LocalFileSystem):
            files = [_file(name, status) for name, status in _statuses(info.path, []) if S_ISREG(status.st_mode)]
        else:
            entries = system.get_file_info(fs.FileSelector(info.path))
            regular = (entry for entry in entries if entry.type == fs.FileType.File)
            files = [File(entry.base_name, entry.size, entry.mtime_ns, None) for entry in regular]
    return {file.path: file for file in files if not is_hidden(file.path)}


def list_folders(uri: str) -> list[str]:
    """List the names of the folders directly in a folder, sorted, without those that `is_hidden` hides."""
    system, info = stat_uri(uri)
    with storage_errors("read", uri):
        if isinstance(system, fs.LocalFileSystem):
            with os.scandir(info.path) as entries:
                names = [entry.name for entry in entries if entry.is_dir()]
        else:
            below = system.get_file_info(fs.FileSelector(info.path))
            names = [entry.base_name for entry in below if entry.type == fs.FileType.Directory]
    return sorted(name for name in names if not is_hidden(name))


def printable(path: str) -> str:
    """Return a path that can be printed and stored: bytes that are not UTF-8 and control characters as `\\xe9`."""
    return visible(path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))


def composed(name: str) -> str:
    """Return a name in composed characters (NFC), so that those of Macs, which are decomposed (NFD), equal others.

    >>> composed("cafe\u0301") == "caf\u00e9"
    True
    """
    return unicodedata.normalize("NFC", name)


def spellings(path: str) -> list[str]:
    """Return a path as it is, then in composed and in decomposed characters (NFC, NFD), each once."""
    return [path] if path.isascii() else list(dict.fromkeys([path, composed(path), unicodedata.normalize("NFD", path)]))


def join_some(names: Sequence[str], num: int = 3) -> str:
    """Join the first few names, for messages.

    >>> join_some(["a", "b", "c", "d"])
    'a, b, c, ...'
    """
    return ", ".join(printable(name) for name in names[:num]) + (", ..." if len(names) > num else "")


def _walk(root: str) -> Listing:
    listing = Listing([], [], [])
    waiting: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", (_identity(os.stat(root)),))]
    visits: Counter[tuple[int, int]] = Counter()
    while waiting:
        folder, ancestors = waiting.pop()
        visits[ancestors[-1]] += 1
        if visits[ancestors[-1]] > MOST_NAMES:
            raise ConfigError(
                f"links lead to the folder {printable(folder)!r} in {root!r} under more than {MOST_NAMES:,} names; "
                "remove such links"
            )
        prefix = f"{folder}/" if folder else ""
        dangling: list[str] = []
        for name, status in _statuses(f"{root}/{folder}", dangling):
            path = f"{prefix}{name}"
            if is_hidden(name):
                continue
            if S_ISREG(status.st_mode):
                listing.files.append(_file(path, status))
            elif _identity(status) in ancestors:
                listing.circles.append(path)
            else:
                waiting.append((path, (*ancestors, _identity(status))))
        listing.dangling.extend(f"{prefix}{name}" for name in dangling)
    return listing


def _statuses(folder: str, dangling: list[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files and folders in a folder, links followed; dangling links are added to `dangling`."""
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat()
            except OSError as error:
                if error.errno not in _NOWHERE:
                    raise
                dangling.append(entry.name)
                continue
            if S_ISDIR(status.st_mode) or S_ISREG(status.st_mode):
                yield entry.name, status


def _file(path: str, status: os.stat_result) -> File:
    return File(path, status.st_size, status.st_mtime_ns, hash(_identity(status)))


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _repeats(files: Sequence[File]) -> list[tuple[File, File]]:
    """Return files that are listed earlier under another name, each with that earlier one."""
    # a file of unknown identity gets a number of its own, so that it equals no other
    identities = np.array(
        [-position if file.identity is None else file.identity for position, file in enumerate(files)]
    )
    _, first, group = np.unique(identities, return_index=True, return_inverse=True)
    originals = first[group.reshape(-1)]
    again = np.flatnonzero(originals != np.arange(len(files)))
    return [(files[position], files[int(originals[position])]) for position in again.tolist()]


UNREADABLE = tuple(f".{ending}" for ending in ("heic", "heif", "avif", "jxl", "svg", "psd", "tga", "dng", "cr2", "nef"))
"""Endings of images in formats that raysl does not read."""


def is_image(path: str) -> bool:
    """Whether a file is an image that raysl reads, by the ending of its name."""
    return path.lower().endswith(EXTENSIONS)


def is_image_or_array(path: str) -> bool:
    """Whether a file is an image that raysl reads where `data.channels` is a number: arrays of numpy too."""
    return is_image(path) or path.lower().endswith(tuple(f".{ending}" for ending in ARRAYS))


DICOM_ENDINGS, NIFTI_ENDINGS = (tuple(f".{ending}" for ending in ENDINGS[kind]) for kind in ("DICOM", "NIfTI"))
ARRAY_ENDINGS = (".npy",)
FRAME_ENDINGS = (*DICOM_ENDINGS, *NIFTI_ENDINGS, *ARRAY_ENDINGS)
"""Endings of files that may hold several images, as frames or slices."""
_FRAME = re.compile(rf"(.*(?:{'|'.join(map(re.escape, FRAME_ENDINGS))}))#([1-9]\d{{0,8}})", re.IGNORECASE | re.DOTALL)


def parse_frame(path: str) -> tuple[str, int]:
    """Return the file and the frame, from 1, that a name says; 0 for all frames.

    >>> parse_frame("a/1.dcm#12"), parse_frame("a/1.nii.gz")
    (('a/1.dcm', 12), ('a/1.nii.gz', 0))
    """
    match = _FRAME.fullmatch(path)
    return (match[1], int(match[2])) if match else (path, 0)
