"""One file with what a start needs from the indices of many shards, so that it does not read each of them."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from raysl.data.sources.shards import Shard
from raysl.errors import ConfigError, log
from raysl.storage.folder import Folder

MANY = 100  # shards whose summaries are worth a file
ENDING = ".shards.json"


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
    read_units: list[int]
    values: list[str]


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
        stored = json.loads(content)
        return [Summary(**row) for row in stored["summaries"]] if stored["state"] == _state(shards) else None
    except (ValueError, LookupError, TypeError):
        return None  # it is made again from the indices


def write_summaries(
    summaries: Sequence[Summary], shards: Sequence[Shard], label_key: str | None, folder: str | None
) -> None:
    """Store summaries of many shards beside their indices."""
    where = _address(shards, label_key, folder)
    if where is None:
        return
    stored = {"state": _state(shards), "summaries": [vars(summary) for summary in summaries]}
    try:
        where[0].write(where[1], json.dumps(stored).encode())
    except ConfigError as error:
        log.warning("%s: the indices of %d shards are read at every start", error, len(shards))


def _state(shards: Sequence[Shard]) -> list[list[int]]:
    """Return size and time of each shard, which change when it is written again."""
    return [[shard.num_bytes or -1, shard.mtime_ns or -1] for shard in shards]


def _address(shards: Sequence[Shard], label_key: str | None, folder: str | None) -> tuple[Folder, str] | None:
    """Return the folder and the name of the summaries; None if they are not worth a file, or could not be trusted."""
    if len(shards) < MANY or any(shard.num_bytes is None or shard.mtime_ns is None for shard in shards):
        return None
    home = shards[0].folder
    # the folder is left out where this file lies in it too, so that the name still fits after both are moved
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
