"""One file with what a start needs from the indices of many shards, so that it does not read each of them."""

import hashlib
import io
import json
import logging
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysl.data.sources.shards import Shard
from raysl.errors import ConfigError
from raysl.hashing import Int64s
from raysl.storage.folder import Folder

log = logging.getLogger("raysl")

MANY = 100  # shards whose summaries are worth a file
ENDING = ".shards.npz"
_FORMAT = 2


@dataclass(frozen=True)
class Summary:
    """Summary of the index of a shard.

    Args:
        num_left_out, left_out, num_unread, unread, read_units, values: fields of `ShardIndex`.
    """

    digest: str
    num_images: int
    num_left_out: int
    left_out: str
    num_unread: int
    unread: str
    read_units: Int64s
    values: tuple[str, ...]


def read_summaries(shards: Sequence[Shard], label_key: str | None, folder: str | None) -> list[Summary] | None:
    """Return the stored summaries of shards; None without any, or if a shard has another size or time since.

    Args:
        shards, label_key, folder: arguments of `summarize_shards`.
    """
    where = _address(shards, label_key, folder)
    content = None if where is None else where[0].read_if_there(where[1])
    if not content:
        return None
    try:
        stored = np.load(io.BytesIO(content), allow_pickle=False)
        if int(stored["format"]) != _FORMAT or stored["state"].tolist() != _state(shards):
            return None
        counts = stored["num_units"]
        units = np.split(stored["read_units"], np.cumsum(counts)[:-1])
        rows = zip(*(stored[name].tolist() for name in _COLUMNS), strict=True)
        return [
            Summary(**dict(zip(_COLUMNS, row, strict=True)), read_units=part, values=tuple(values))
            for row, part, values in zip(rows, units, from_bytes(stored["values"]), strict=True)
        ]
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None  # it is made again from the indices


def write_summaries(
    summaries: Sequence[Summary], shards: Sequence[Shard], label_key: str | None, folder: str | None
) -> None:
    """Store summaries of many shards beside their indices."""
    where = _address(shards, label_key, folder)
    if where is None:
        return
    columns: dict[str, Any] = {name: np.array([getattr(summary, name) for summary in summaries]) for name in _COLUMNS}
    content = io.BytesIO()
    np.savez(
        content,
        format=np.array(_FORMAT),
        state=np.array(_state(shards), np.int64),
        num_units=np.array([len(summary.read_units) for summary in summaries], np.int64),
        read_units=np.concatenate([summary.read_units for summary in summaries]),
        values=to_bytes([summary.values for summary in summaries]),
        **columns,
    )
    try:
        where[0].write(where[1], content.getvalue())
    except ConfigError as error:
        log.warning("%s: the indices of %d shards are read at every start", error, len(shards))


_COLUMNS = ("digest", "num_images", "num_left_out", "left_out", "num_unread", "unread")


def to_bytes(texts: Sequence[Any]) -> NDArray[np.uint8]:
    """Return texts, or lists of texts, as an array of bytes, which takes less room than one of texts."""
    return np.frombuffer(json.dumps(texts).encode(), np.uint8)


def from_bytes(stored: NDArray[np.uint8]) -> list[Any]:
    """Return what `to_bytes` was called with."""
    texts = json.loads(stored.tobytes())
    if not isinstance(texts, list):
        raise ValueError("a column is no list")
    return texts


def _state(shards: Sequence[Shard]) -> list[list[int]]:
    """Return size and time of each shard, which change when it is written again."""
    return [[shard.num_bytes or -1, shard.mtime_ns or -1] for shard in shards]


def _address(shards: Sequence[Shard], label_key: str | None, folder: str | None) -> tuple[Folder, str] | None:
    """Return the folder and the name of the summaries; None if they are not worth a file, or could not be trusted."""
    if len(shards) < MANY or any(shard.num_bytes is None or shard.mtime_ns is None for shard in shards):
        return None
    home = shards[0].folder
    origins = ("" if shard.folder == home and folder is None else shard.folder for shard in shards)
    names = "\n".join(
        [
            *(["arrays"] if shards[0].has_arrays else []),
            shards[0].image_key or "",
            label_key or "",
            *(f"{origin} {shard.name}" for origin, shard in zip(origins, shards, strict=True)),
        ]
    )
    digest = hashlib.sha256(names.encode()).hexdigest()[:16]
    return Folder(folder or home), f"{digest}{ENDING}"
