"""What is in a shard of the WebDataset layout: where each image lies, and its label."""

import hashlib
import io
import logging
import re
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import fs

from raysl.data.sources.class_names import label_of
from raysl.data.sources.listing import IMAGES, shown
from raysl.data.sources.shards import Member, Shard, members
from raysl.errors import ConfigError
from raysl.hashing import Int64s
from raysl.storage.addresses import join, open_uri, telling
from raysl.storage.folder import Folder
from raysl.storage.reads import read_file

log = logging.getLogger("raysl")

ENDING = ".index.npz"
SAMPLE = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)")  # a key, and what the file is of that sample
SCANS = 4  # remote shards that are read whole at a time


@dataclass(frozen=True)
class ShardIndex:
    """The images of one shard, in the order of the tar.

    Args:
        offsets: int64 [N], first byte of each image in the shard.
        sizes: int64 [N], bytes of each image.
        labels: int64 [N], -1 where unlabelled.
        keys: bytes [N], what the files of each sample have in common.
        num_left_out: images whose names have more dots than one, of samples that have no other image.
        left_out: the name of the first of these.
    """

    offsets: Int64s
    sizes: Int64s
    labels: Int64s
    keys: np.ndarray
    num_left_out: int = 0
    left_out: str = ""

    @property
    def digest(self) -> str:
        """A number, in hexadecimal, that changes when images or labels do."""
        arrays = (self.offsets, self.sizes, self.labels, self.keys)
        return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return self.offsets.nbytes + self.sizes.nbytes + self.labels.nbytes + self.keys.nbytes


@dataclass(frozen=True)
class Summary:
    """What there is to know of a shard while its images are not read.

    Args:
        digest: of its index.
        num_images: how many it has.
        smallest_label: -1, or less where a label is none.
        largest_label: -1 where nothing is labelled.
        num_left_out, left_out: as in its index.
    """

    digest: str
    num_images: int
    smallest_label: int
    largest_label: int
    num_left_out: int
    left_out: str


def summaries(shards: Sequence[Shard], label_key: str | None, folder: str | None) -> list[Summary]:
    """What every shard has, by its index: read where there is one that is newer than its shard, else made and written.

    Args:
        shards: tars.
        label_key: field of the integer label in `.json` members; None: these are not read.
        folder: where indices lie; default: beside the shards.

    Raises:
        ConfigError: if a shard is damaged, has a label that is no integer, or if the index of a remote one cannot be
            written.
    """
    is_stored = _stored(shards, folder)
    stale = sum(not there for there in is_stored)
    if stale > SCANS:
        log.info("reading what is in %d of %d shards; this is done once", stale, len(shards))

    def summary(shard: Shard, there: bool) -> tuple[Summary, bool]:
        index, is_kept = _ready(shard, there, label_key, folder)
        least, most = int(index.labels.min(initial=-1)), int(index.labels.max(initial=-1))
        return Summary(index.digest, len(index.sizes), least, most, index.num_left_out, index.left_out), is_kept

    with ThreadPoolExecutor(SCANS) as pool:
        found = list(pool.map(summary, shards, is_stored))
    lost = [shard for shard, (_, is_kept) in zip(shards, found, strict=True) if not is_kept]
    if lost:
        uri, name = _beside(lost[0], folder)
        log.warning("cannot write %s: what is in %d shards is looked up at every start", join(uri, name), len(lost))
    return [one for one, _ in found]


def index_of(shard: Shard, label_key: str | None, folder: str | None) -> ShardIndex:
    """The index of one shard; see `summaries`."""
    return _ready(shard, _stored([shard], folder)[0], label_key, folder)[0]


def _ready(shard: Shard, is_stored: bool, label_key: str | None, folder: str | None) -> tuple[ShardIndex, bool]:
    """An index, and whether it is kept for the next time."""
    found = _loaded(shard, label_key, folder) if is_stored else None
    if found is not None:
        return found, True
    index = _scanned(shard, label_key)
    return index, _write(index, shard, label_key, folder)


def _beside(shard: Shard, folder: str | None) -> tuple[str, str]:
    """Folder and name of a shard's index."""
    if folder is None:
        return shard.folder, f"{shard.name}{ENDING}"
    origin = hashlib.sha256(shard.folder.encode()).hexdigest()[:8]  # shards of several folders may be named alike
    return folder, f"{origin}-{shard.name.replace('/', '-')}{ENDING}"


def _stored(shards: Sequence[Shard], folder: str | None) -> list[bool]:
    """Whether there is an index that is no older than its shard."""
    places = [_beside(shard, folder) for shard in shards]
    infos: dict[tuple[str, str], fs.FileInfo] = {}
    for uri in {uri for uri, _ in places}:
        system, root = open_uri(uri)
        names = [name for where, name in places if where == uri]
        with telling("read", uri):
            found = system.get_file_info([f"{root}/{name}" for name in names])
        infos |= {(uri, name): info for name, info in zip(names, found, strict=True)}
    return [_is_newer(infos[place], shard) for place, shard in zip(places, shards, strict=True)]


def _is_newer(info: fs.FileInfo, shard: Shard) -> bool:
    if info.type != fs.FileType.File:
        return False
    return shard.mtime_ns is None or info.mtime_ns is None or bool(info.mtime_ns >= shard.mtime_ns)


def _loaded(shard: Shard, label_key: str | None, folder: str | None) -> ShardIndex | None:
    """The stored index; None where it is of other settings, or of a shard of another size or a later time."""
    uri, name = _beside(shard, folder)
    system, root = open_uri(uri)
    try:
        stored = np.load(io.BytesIO(read_file(system, f"{root}/{name}")), allow_pickle=False)
        if "num_left_out" not in stored:  # of an earlier version, which knew fewer endings
            return None
        if str(stored["label_key"]) != (label_key or "") or int(stored["num_bytes"]) != (shard.num_bytes or -1):
            return None
        if "mtime_ns" in stored and shard.mtime_ns is not None and int(stored["mtime_ns"]) > shard.mtime_ns:
            return None
        offsets, sizes, labels, keys = (stored[name] for name in ("offsets", "sizes", "labels", "keys"))
        return ShardIndex(offsets, sizes, labels, keys, int(stored["num_left_out"]), str(stored["left_out"]))
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{join(uri, name)} is no index of a shard ({error}); delete it") from error


def _write(index: ShardIndex, shard: Shard, label_key: str | None, folder: str | None) -> bool:
    content = io.BytesIO()
    np.savez(
        content,
        **vars(index),
        label_key=np.array(label_key or ""),
        num_bytes=np.array(shard.num_bytes or -1),
        mtime_ns=np.array(shard.mtime_ns or 0),
    )
    uri, name = _beside(shard, folder)
    target = Folder(uri)
    try:
        if folder is not None:
            target.make()
        target.write(name, content.getvalue())
    except (ConfigError, NotImplementedError) as error:
        if not isinstance(shard.place()[0], fs.LocalFileSystem):
            raise ConfigError(
                f"cannot write {name!r}, what is in a remote shard ({error}); "
                "give data.index= a folder or URI that all workers read and this one writes"
            ) from error
        return False
    return True


def _scanned(shard: Shard, label_key: str | None) -> ShardIndex:
    system, path = shard.place()
    with telling("read", path):
        is_local = isinstance(system, fs.LocalFileSystem)
        with system.open_input_file(path) if is_local else pa.BufferReader(read_file(system, path)) as file:
            return _index(file, path, label_key)


def _index(file: Any, where: str, label_key: str | None) -> ShardIndex:
    images: dict[str, Member] = {}
    labels: dict[str, int] = {}
    seen: set[str] = set()
    dotted: list[tuple[str, str]] = []
    for member in members(file, where):
        match = SAMPLE.fullmatch(member.name)
        if match is None:
            continue
        if member.name in seen:
            raise ConfigError(f"{where} has the member {member.name!r} twice; make the tar anew")
        seen.add(member.name)
        key, kind = match.group(1), match.group(2).lower()
        if kind in IMAGES:
            images.setdefault(key, member)
        elif kind.rpartition(".")[2] in IMAGES:
            dotted.append((key, member.name))
        elif kind == "cls" or (kind == "json" and label_key is not None and key not in labels):
            file.seek(member.offset)
            label = label_of(file.read(member.size), kind, label_key, f"{where}: {member.name}")
            if label is not None:
                labels[key] = label
    left_out = [shown(name) for key, name in dotted if key not in images]
    return ShardIndex(
        np.array([member.offset for member in images.values()], np.int64),
        np.array([member.size for member in images.values()], np.int64),
        np.array([labels.get(key, -1) for key in images], np.int64),
        np.array([key.encode(errors="surrogateescape") for key in images], np.bytes_),
        len(left_out),
        left_out[0] if left_out else "",
    )
