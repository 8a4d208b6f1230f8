"""Indices of WebDataset shards: the position and label of each image, stored beside the shard."""

import hashlib
import io
import json
import re
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import fs

from raysl.config.places import ARRAYS, IMAGES, is_hidden
from raysl.data.sources.class_names import read_member_label
from raysl.data.sources.listing import printable
from raysl.data.sources.shard_summaries import Summary, read_summaries, write_summaries
from raysl.data.sources.shards import Member, Shard, read_members, stat_names
from raysl.errors import ConfigError, log
from raysl.hashing import Int64s
from raysl.storage.folder import Folder, join, open_uri, storage_errors
from raysl.storage.reads import LASTING, RANGE_FILES, RUN_BYTES, RangeFile, in_parallel, read_file
from raysl.storage.records import fits

ENDING, ENDING_ARRAYS = ".index.npz", ".arrays.index.npz"  # the latter where arrays are images too
SAMPLE = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)")  # the key of a sample, and the kind of the file
LOCAL_SCANS = 4  # shards at a time


@dataclass(frozen=True)
class ShardIndex:
    """The images of one shard, in the order of the tar.

    Args:
        offsets: int64 [N], first byte of each image in the shard.
        sizes: int64 [N], bytes of each image.
        labels: int64 [N], positions of the labels in `values`, -1 without a label.
        keys: bytes [N], the common part of the names of each sample's files.
        num_left_out: samples without an image except one with several dots in its name.
        left_out: the name of the first such image.
        num_unread: images beside a better one of their sample.
        unread: the names of the first such image and of the better one.
        values: the different labels as they are written.
    """

    offsets: Int64s
    sizes: Int64s
    labels: Int64s
    keys: np.ndarray
    num_left_out: int = 0
    left_out: str = ""
    num_unread: int = 0
    unread: str = ""
    values: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that change with the images and labels."""
        arrays = (self.offsets, self.sizes, self.labels, self.keys)
        content = [*(array.tobytes() for array in arrays), json.dumps(self.values).encode()]
        return hashlib.sha256(b"".join(content)).hexdigest()[:16]

    @property
    def read_units(self) -> Int64s:
        """Images of each run of members that is read by one request, int64 [R]."""
        ends = self.offsets + self.sizes
        cuts = [0] if len(ends) else []
        while cuts and cuts[-1] < len(ends):
            last = int(np.searchsorted(ends, self.offsets[cuts[-1]] + RUN_BYTES, side="right"))
            # one image at least, since a single one may be larger than a run
            cuts.append(max(last, cuts[-1] + 1))
        return np.array([end - start for start, end in pairwise(cuts)], np.int64)

    @property
    def num_bytes(self) -> int:
        """Memory of the arrays."""
        return self.offsets.nbytes + self.sizes.nbytes + self.labels.nbytes + self.keys.nbytes


def summarize_shards(shards: Sequence[Shard], label_key: str | None, folder: str | None) -> list[Summary]:
    """Read the index of every shard that has one newer than itself; make and write the others.

    Args:
        shards: tars.
        label_key: field of the label in `.json` members; None: these are not read.
        folder: folder of the indices; default: beside the shards.
    """
    known = read_summaries(shards, label_key, folder)
    if known is not None:
        return known
    is_stored = _are_stored(shards, folder)
    num_missing = is_stored.count(False)
    if num_missing > LOCAL_SCANS:
        log.info("indexing %d of %d shards; this is done once", num_missing, len(shards))

    def summarize(pair: tuple[Shard, bool]) -> tuple[Summary, bool]:
        index, is_written = _load_or_make(*pair, label_key, folder)
        left_out = index.num_left_out, index.left_out, index.num_unread, index.unread
        units, values = index.read_units.tolist(), list(index.values)
        return Summary(index.digest, len(index.sizes), *left_out, units, values), is_written

    is_local = all(isinstance(shard.locate()[0], fs.LocalFileSystem) for shard in shards)
    pairs = zip(shards, is_stored, strict=True)
    results = list(in_parallel(summarize, pairs, LOCAL_SCANS if is_local else RANGE_FILES))
    unwritten = [shard for shard, (_, is_written) in zip(shards, results, strict=True) if not is_written]
    if unwritten:
        uri, name = _index_address(unwritten[0], folder)
        log.warning("cannot write %s: %d shards are indexed at every start", join(uri, name), len(unwritten))
    summaries = [summary for summary, _ in results]
    if not unwritten:
        write_summaries(summaries, shards, label_key, folder)
    return summaries


def read_index(shard: Shard, label_key: str | None, folder: str | None, digest: str) -> ShardIndex:
    """Return the index of one shard; the one that is stored if it has the digest, else as `summarize_shards` does."""
    with suppress(*LASTING):
        stored = _load(shard, label_key, folder)
        if stored is not None and stored.digest == digest:
            return stored
    return _load_or_make(shard, _are_stored([shard], folder)[0], label_key, folder)[0]


def _load_or_make(shard: Shard, is_stored: bool, label_key: str | None, folder: str | None) -> tuple[ShardIndex, bool]:
    """Return an index, and whether it is stored."""
    stored = _load(shard, label_key, folder) if is_stored else None
    if stored is not None:
        return stored, True
    index = _scan(shard, label_key)
    return index, _write(index, shard, label_key, folder)


def _index_address(shard: Shard, folder: str | None) -> tuple[str, str]:
    ending = ENDING_ARRAYS if shard.has_arrays else ENDING
    if folder is None:
        return shard.folder, f"{shard.name}{ending}"
    origin = hashlib.sha256(shard.folder.encode()).hexdigest()[:8]  # shards of several folders may have the same names
    return folder, f"{origin}-{shard.name.replace('/', '-')}{ending}"


def _are_stored(shards: Sequence[Shard], folder: str | None) -> list[bool]:
    """Tell for each shard whether it has an index that is not older."""
    addresses = [_index_address(shard, folder) for shard in shards]
    infos: dict[tuple[str, str], fs.FileInfo] = {}
    for uri in {uri for uri, _ in addresses}:
        names = [name for where, name in addresses if where == uri]
        infos |= {(uri, name): info for name, info in zip(names, stat_names(uri, names), strict=True)}
    return [_is_newer(infos[address], shard) for address, shard in zip(addresses, shards, strict=True)]


def _is_newer(info: fs.FileInfo, shard: Shard) -> bool:
    if info.type != fs.FileType.File:
        return False
    return shard.mtime_ns is None or info.mtime_ns is None or bool(info.mtime_ns >= shard.mtime_ns)


def _load(shard: Shard, label_key: str | None, folder: str | None) -> ShardIndex | None:
    """Load a stored index; None if it has other settings, or is of a shard of another size or a later time."""
    uri, name = _index_address(shard, folder)
    system, root = open_uri(uri)
    content = read_file(system, f"{root}/{name}")
    try:
        stored = np.load(io.BytesIO(content), allow_pickle=False)
        settings = (str(stored["label_key"]), str(stored["image_key"]), int(stored["num_bytes"]))
        if settings != (label_key or "", shard.image_key or "", shard.num_bytes or -1):
            return None
        if "mtime_ns" in stored and shard.mtime_ns is not None and int(stored["mtime_ns"]) > shard.mtime_ns:
            return None
        columns: dict[str, Any] = {name: stored[name] for name in ("offsets", "sizes", "labels", "keys")}
        kinds = {"num_left_out": int, "left_out": str, "num_unread": int, "unread": str}
        columns |= {name: kind(stored[name]) for name, kind in kinds.items()}
        index = ShardIndex(**columns, values=tuple(json.loads(stored["values"].tobytes())))
        _check(index, shard.num_bytes)
        return index
    except (*_BROKEN, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigError(f"{join(uri, name)} is not an index of a shard ({error}); delete it") from error


_BROKEN = (ValueError, LookupError, TypeError, EOFError, OSError, MemoryError, RuntimeError)
"""What numpy and zipfile raise for files that are damaged."""


def _check(index: ShardIndex, num_bytes: int | None) -> None:
    """Refuse an index whose columns are not as `_index_tar` makes them, or which leads out of its shard."""
    numbers = (index.offsets, index.sizes, index.labels)
    if any(column.dtype != np.int64 for column in numbers) or index.keys.dtype.kind != "S":
        raise ValueError("a column has another type")
    if {column.shape for column in (*numbers, index.keys)} != {(len(index.keys),)}:
        raise ValueError("its columns differ in length")
    if len(index.keys) and (min(index.offsets.min(), index.sizes.min()) < 0 or index.labels.min() < -1):
        raise ValueError("a number is negative")
    if not fits(list(index.values), list[str]) or index.labels.max(initial=-1) >= len(index.values):
        raise ValueError("a label has no text")
    most = np.iinfo(np.int64).max if num_bytes is None else num_bytes
    # not as a sum of offset and size, which could overflow in a damaged index
    if len(index.keys) and (index.sizes > most - index.offsets).any():
        raise ValueError("a member ends behind the shard")


def _write(index: ShardIndex, shard: Shard, label_key: str | None, folder: str | None) -> bool:
    content = io.BytesIO()
    np.savez(
        content,
        **{**vars(index), "values": np.frombuffer(json.dumps(index.values).encode(), np.uint8)},
        label_key=np.array(label_key or ""),
        image_key=np.array(shard.image_key or ""),
        num_bytes=np.array(shard.num_bytes or -1),
        mtime_ns=np.array(shard.mtime_ns or 0),
    )
    uri, name = _index_address(shard, folder)
    target = Folder(uri)
    try:
        if folder is not None:
            target.make()
        target.write(name, content.getvalue())
    except (ConfigError, NotImplementedError) as error:
        if not isinstance(shard.locate()[0], fs.LocalFileSystem):
            raise ConfigError(
                f"cannot write {name!r}, the index of a remote shard ({error}); "
                "give data.index= a folder or URI that this process can write and all workers can read"
            ) from error
        return False
    return True


def _scan(shard: Shard, label_key: str | None) -> ShardIndex:
    system, path = shard.locate()
    with storage_errors("read", path):
        is_local = isinstance(system, fs.LocalFileSystem)
        if not is_local and shard.num_bytes is not None:
            with RangeFile(system, path, shard.num_bytes) as ranges:
                return _index_tar(ranges, path, label_key, shard)
        with system.open_input_file(path) if is_local else pa.BufferReader(read_file(system, path)) as file:
            return _index_tar(file, path, label_key, shard)


def _index_tar(file: Any, where: str, label_key: str | None, shard: Shard) -> ShardIndex:
    endings = (shard.image_key,) if shard.image_key else (*IMAGES, *ARRAYS) if shard.has_arrays else IMAGES
    images: dict[str, list[Member]] = {}
    labels: dict[str, str] = {}
    seen: set[str] = set()
    dotted: list[tuple[str, str]] = []
    for member in read_members(file, where):
        match = SAMPLE.fullmatch(member.name)
        if match is None or is_hidden(member.name):
            continue
        if member.name in seen:
            raise ConfigError(f"{where} has the member {member.name!r} twice; make the tar again")
        seen.add(member.name)
        key, kind = match.group(1), match.group(2).lower()
        if kind in endings:
            images.setdefault(key, []).append(member)
        elif kind.rpartition(".")[2] in endings:
            dotted.append((key, member.name))
        # a .cls counts more than a .json, whichever of them comes first in the tar
        elif kind == "cls" or (kind == "json" and label_key is not None and key not in labels):
            file.seek(member.offset)
            label = read_member_label(file.read(member.size), kind, label_key, f"{where}: {member.name}")
            if label is not None:
                labels[key] = label
    left_out = [printable(name) for key, name in dotted if key not in images]
    best = {key: min(members, key=_order) for key, members in images.items()}
    # by offset, as `read_units` searches the ends of the images by bisection
    best = dict(sorted(best.items(), key=lambda item: item[1].offset))
    unread = [(member, best[key]) for key, members in images.items() for member in members if member is not best[key]]
    values = sorted({labels[key] for key in best if key in labels})
    number = {value: position for position, value in enumerate(values)}
    return ShardIndex(
        np.array([member.offset for member in best.values()], np.int64),
        np.array([member.size for member in best.values()], np.int64),
        np.array([number[labels[key]] if key in labels else -1 for key in best], np.int64),
        np.array([key.encode(errors="surrogateescape") for key in best], np.bytes_),
        len(left_out),
        left_out[0] if left_out else "",
        len(unread),
        " beside ".join(printable(member.name) for member in unread[0]) if unread else "",
        tuple(values),
    )


PHOTOS = ("jpg", "jpeg", "jpe", "jfif", "mpo", "webp", "jp2", "j2k", "jpx")
"""Endings of photos, which are read before other images of the same sample, such as masks in PNG files."""


def _order(member: Member) -> tuple[bool, int]:
    """Return the key by which the image of a sample is chosen: a photo, else the first in the tar."""
    return member.name.rpartition(".")[2].lower() not in PHOTOS, member.offset
