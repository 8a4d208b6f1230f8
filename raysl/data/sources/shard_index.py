"""Indices of WebDataset shards: the position and label of each image, stored beside the shard.

For many shards, one more file holds the summaries of all indices, so that a start reads one file and not hundreds.
"""

import io
import json
import re
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import fs

from raysl.config.places import ARRAYS, IMAGES, is_hidden
from raysl.data.sources.listing import printable
from raysl.data.sources.shards import Member, Shard, read_members, stat_names
from raysl.errors import ConfigError, log
from raysl.hashing import Int64s, digest
from raysl.storage.folder import Folder, join, open_uri, storage_errors
from raysl.storage.reads import LASTING, RANGE_FILES, RUN_BYTES, RangeFile, in_parallel, read_file
from raysl.storage.records import from_record

ENDING, ENDING_ARRAYS = ".index.npz", ".arrays.index.npz"  # the latter if arrays count as images
SUMMARIES_ENDING = ".shards.json"
LEAST_SHARDS = 100  # from this number on, the summaries are stored in a file
SAMPLE = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)")  # the key of a sample, and the kind of the file
LOCAL_SCANS = 4  # shards at a time


@dataclass(frozen=True)
class Summary:
    """What a start needs from the index of a shard.

    Args:
        digest: 16 hexadecimal digits that change with the images and labels.
        read_units: numbers of images in each run of members that is read by one request.
        values: distinct labels as texts.
        num_left_out: number of images left out because of several dots in their names.
        left_out: name of the first such image.
        num_unread: number of images left out because another one of their sample is read.
        unread: names of the first such image and of the one that is read.
    """

    digest: str
    num_images: int
    read_units: list[int]
    values: list[str]
    num_left_out: int
    left_out: str
    num_unread: int
    unread: str

    def __post_init__(self) -> None:
        if sum(self.read_units) != self.num_images or min(self.read_units, default=1) < 1:
            raise ValueError("its read units do not hold each image once")


@dataclass(frozen=True)
class ShardIndex:
    """The images of one shard, in the order of the tar.

    Args:
        offsets: int64 [N], first byte of each image in the shard.
        sizes: int64 [N], bytes of each image.
        labels: int64 [N], positions of the labels in `summary.values`, -1 without a label.
        keys: bytes [N], the common part of the names of each sample's files.
    """

    offsets: Int64s
    sizes: Int64s
    labels: Int64s
    keys: np.ndarray
    summary: Summary

    @property
    def num_bytes(self) -> int:
        """Memory of the arrays."""
        return self.offsets.nbytes + self.sizes.nbytes + self.labels.nbytes + self.keys.nbytes


def summarize_shards(shards: Sequence[Shard], label_key: str | None, folder: str | None) -> list[Summary]:
    """Return the summaries of all shards; indices that are missing or older than their shard are made and written.

    Args:
        label_key: field of the label in `.json` members; None to read no `.json`.
        folder: folder of the indices; default: beside the shards.
    """
    if (known := _read_summaries(shards, label_key, folder)) is not None:
        return known
    is_stored = _have_index(shards, folder)
    num_missing = is_stored.count(False)
    if num_missing > LOCAL_SCANS:
        log.info("indexing %d of %d shards; this is done once", num_missing, len(shards))

    def summarize(pair: tuple[Shard, bool]) -> tuple[Summary, bool]:
        index, is_written = _load_or_make(*pair, label_key, folder)
        return index.summary, is_written

    is_local = all(isinstance(shard.locate()[0], fs.LocalFileSystem) for shard in shards)
    pairs = zip(shards, is_stored, strict=True)
    results = list(in_parallel(summarize, pairs, LOCAL_SCANS if is_local else RANGE_FILES))
    summaries = [summary for summary, _ in results]
    unwritten = [shard for shard, (_, is_written) in zip(shards, results, strict=True) if not is_written]
    if unwritten:
        uri, name = _index_address(unwritten[0], folder)
        log.warning("cannot write %s: %d shards are indexed at every start", join(uri, name), len(unwritten))
    else:
        _write_summaries(summaries, shards, label_key, folder)
    return summaries


def read_index(shard: Shard, label_key: str | None, folder: str | None, digest: str) -> ShardIndex:
    """Return the index of one shard: the stored one if it has the digest, else a current one, made if need be."""
    with suppress(*LASTING):
        stored = _load(shard, label_key, folder)
        if stored is not None and stored.summary.digest == digest:
            return stored
    return _load_or_make(shard, _have_index([shard], folder)[0], label_key, folder)[0]


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
    # shards of several folders may have the same names, and a/b and a-b look alike
    origin = digest(join(shard.folder, shard.name))[:8]
    return folder, f"{origin}-{shard.name.replace('/', '-')}{ending}"


def _have_index(shards: Sequence[Shard], folder: str | None) -> list[bool]:
    """Return for each shard whether it has an index that is not older than the shard."""
    addresses = [_index_address(shard, folder) for shard in shards]
    infos: dict[tuple[str, str], fs.FileInfo] = {}
    for uri in {uri for uri, _ in addresses}:
        names = [name for where, name in addresses if where == uri]
        infos |= {(uri, name): info for name, info in zip(names, stat_names(uri, names), strict=True)}

    def is_newer(info: fs.FileInfo, shard: Shard) -> bool:
        is_unknown = shard.mtime_ns is None or info.mtime_ns is None
        return bool(info.type == fs.FileType.File and (is_unknown or info.mtime_ns >= shard.mtime_ns))

    return [is_newer(infos[address], shard) for address, shard in zip(addresses, shards, strict=True)]


def _load(shard: Shard, label_key: str | None, folder: str | None) -> ShardIndex | None:
    """Load a stored index; None if it has other settings, or if the shard had another size or time."""
    uri, name = _index_address(shard, folder)
    system, root = open_uri(uri)
    content = read_file(system, f"{root}/{name}")
    try:
        stored = np.load(io.BytesIO(content), allow_pickle=False)
        facts = json.loads(stored["facts"].tobytes())
        *settings, mtime_ns = facts["shard"]
        if settings != [label_key, shard.image_key, shard.num_bytes]:
            return None
        if mtime_ns is not None and shard.mtime_ns is not None and mtime_ns != shard.mtime_ns:
            return None
        columns: dict[str, Any] = {name: stored[name] for name in ("offsets", "sizes", "labels", "keys")}
        index = ShardIndex(**columns, summary=from_record(Summary, facts["summary"], name))
        _check(index, shard.num_bytes)
        return index
    except (*_BROKEN, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigError(f"{join(uri, name)} is not an index of a shard ({error}); delete it") from error


_BROKEN = (ConfigError, ValueError, LookupError, TypeError, EOFError, OSError, MemoryError, RuntimeError)
"""Errors that records, numpy and zipfile raise for damaged files."""


def _check(index: ShardIndex, num_bytes: int | None) -> None:
    """Refuse an index that `_index_tar` cannot have made, or that points outside its shard."""
    numbers = (index.offsets, index.sizes, index.labels)
    if any(column.dtype != np.int64 for column in numbers) or index.keys.dtype.kind != "S":
        raise ValueError("a column has another type")
    if {column.shape for column in (*numbers, index.keys)} != {(index.summary.num_images,)}:
        raise ValueError("its columns differ in length")
    if len(index.keys) and (min(index.offsets.min(), index.sizes.min()) < 0 or index.labels.min() < -1):
        raise ValueError("a number is negative")
    if index.labels.max(initial=-1) >= len(index.summary.values):
        raise ValueError("a label has no text")
    most = np.iinfo(np.int64).max if num_bytes is None else num_bytes
    # a difference, since the sum of offset and size could overflow in a damaged index
    if (index.sizes > most - index.offsets).any():
        raise ValueError("a member ends after the end of the shard")


def _write(index: ShardIndex, shard: Shard, label_key: str | None, folder: str | None) -> bool:
    content = io.BytesIO()
    facts = {
        "shard": [label_key, shard.image_key, shard.num_bytes, shard.mtime_ns],
        "summary": asdict(index.summary),
    }
    columns = {name: value for name, value in vars(index).items() if name != "summary"}
    np.savez(content, **columns, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8))
    uri, name = _index_address(shard, folder)
    target = Folder(uri)
    try:
        if folder is not None:
            target.make()
        target.write(name, content.getvalue())
    except ConfigError as error:
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
        # a .cls replaces a .json, in whichever order they are in the tar
        elif kind == "cls" or (kind == "json" and label_key is not None and key not in labels):
            file.seek(member.offset)
            label = _read_label(file.read(member.size), kind, label_key, f"{where}: {member.name}")
            if label is not None:
                labels[key] = label
    left_out = [printable(name) for key, name in dotted if key not in images]
    best = {key: min(members, key=_image_preference) for key, members in images.items()}
    # sorted by offset, because `_read_units` uses a binary search
    best = dict(sorted(best.items(), key=lambda item: item[1].offset))
    unread = [(member, best[key]) for key, members in images.items() for member in members if member is not best[key]]
    values = sorted({labels[key] for key in best if key in labels})
    number = {value: position for position, value in enumerate(values)}
    offsets = np.array([member.offset for member in best.values()], np.int64)
    sizes = np.array([member.size for member in best.values()], np.int64)
    numbers = np.array([number[labels[key]] if key in labels else -1 for key in best], np.int64)
    keys = np.array([key.encode(errors="surrogateescape") for key in best], np.bytes_)
    summary = Summary(
        digest(*(array.tobytes() for array in (offsets, sizes, numbers, keys)), json.dumps(values)),
        len(best),
        _read_units(offsets, offsets + sizes),
        values,
        len(left_out),
        left_out[0] if left_out else "",
        len(unread),
        " beside ".join(printable(member.name) for member in unread[0]) if unread else "",
    )
    return ShardIndex(offsets, sizes, numbers, keys, summary)


def _read_label(content: bytes, kind: str, label_key: str | None, where: str) -> str | None:
    """Return the label in a `.cls` or `.json` as text (a number or a name); None if the `.json` lacks the field."""
    try:
        if kind == "cls":
            return content.decode().strip()
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        format_name = "a number or a name in UTF-8" if kind == "cls" else "JSON"
        raise ConfigError(f"{where} holds {content[:40]!r}, not {format_name}: {error}") from error
    label = fields.get(label_key) if isinstance(fields, dict) else None
    if label is not None and type(label) not in (int, float, str):
        raise ConfigError(
            f"{where}: {label_key} is {label!r}, not a number or a name; set data.label_key= to another field"
        )
    return None if label is None else str(label).strip()


def _read_units(offsets: Int64s, ends: Int64s) -> list[int]:
    """Return the number of images in each run of members that is read by one request."""
    cuts = [0] if len(ends) else []
    while cuts and cuts[-1] < len(ends):
        last = int(np.searchsorted(ends, offsets[cuts[-1]] + RUN_BYTES, side="right"))
        # at least one image, since one alone may be larger than RUN_BYTES
        cuts.append(max(last, cuts[-1] + 1))
    return [end - start for start, end in pairwise(cuts)]


PHOTOS = ("jpg", "jpeg", "jpe", "jfif", "mpo", "webp", "jp2", "j2k", "jpx")
"""Endings of photos. They are preferred to other images of the same sample, such as masks in PNG files."""


def _image_preference(member: Member) -> tuple[bool, int]:
    """Return the sort key by which a sample's image is chosen: photos come first, then the order in the tar."""
    return member.name.rpartition(".")[2].lower() not in PHOTOS, member.offset


def _read_summaries(shards: Sequence[Shard], label_key: str | None, folder: str | None) -> list[Summary] | None:
    """Return the stored summaries of many shards; None if there are none, or if a shard has changed since."""
    address = _summaries_address(shards, label_key, folder)
    content = None if address is None else address[0].read_if_there(address[1])
    if not content:
        return None
    try:
        stored = json.loads(content)
        return [Summary(**row) for row in stored["summaries"]] if stored["state"] == _sizes_and_times(shards) else None
    except (ValueError, LookupError, TypeError):
        return None  # a damaged file is made again from the indices


def _write_summaries(
    summaries: Sequence[Summary], shards: Sequence[Shard], label_key: str | None, folder: str | None
) -> None:
    address = _summaries_address(shards, label_key, folder)
    if address is None:
        return
    stored = {"state": _sizes_and_times(shards), "summaries": [vars(summary) for summary in summaries]}
    try:
        address[0].write(address[1], json.dumps(stored).encode())
    except ConfigError as error:
        log.warning("%s: the indices of %d shards are read at every start", error, len(shards))


def _sizes_and_times(shards: Sequence[Shard]) -> list[list[int]]:
    """Return size and time of each shard, which change when it is written again."""
    return [[shard.num_bytes or -1, shard.mtime_ns or -1] for shard in shards]


def _summaries_address(shards: Sequence[Shard], label_key: str | None, folder: str | None) -> tuple[Folder, str] | None:
    """Return folder and name of the file of summaries; None for few shards, or if a size or time is unknown."""
    if len(shards) < LEAST_SHARDS or any(shard.num_bytes is None or shard.mtime_ns is None for shard in shards):
        return None
    home = shards[0].folder
    # shards in the same folder as this file count by their name alone, so that the folder may be moved
    origins = ("" if shard.folder == home and folder is None else shard.folder for shard in shards)
    settings = ["arrays" if shards[0].has_arrays else "", shards[0].image_key or "", label_key or ""]
    names = "\n".join([*settings, *(f"{origin} {shard.name}" for origin, shard in zip(origins, shards, strict=True))])
    return Folder(folder or home), f"{digest(names)}{SUMMARIES_ENDING}"
