"""Whether a folder that `raysl ingest` fills is whole."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyarrow import fs

from raysl.errors import ConfigError
from raysl.storage.addresses import telling
from raysl.storage.reads import REMOTE_READS, read_file, read_ranges

PLAN_FILE = "ingest.json"
MANIFEST_FILE = "manifest.json"

Json = dict[str, Any]

_TAIL = 8  # of a Parquet file: the size of the footer before it, and a mark


def check_finished(system: fs.FileSystem, sizes: Mapping[str, int]) -> None:
    """Refuse folders that an ingest began to fill and did not end, or whose files are not those that it wrote.

    Sizes and footers are compared, not all bytes: see `raysl.data.ingest.ingest.verify`.

    Args:
        system: where they are.
        sizes: bytes of all files below some folder, by path.

    Raises:
        ConfigError: naming the folder, and what is wrong with it.
    """
    for plan in (path for path in sizes if path.rpartition("/")[2] == PLAN_FILE):
        folder = plan.rpartition("/")[0]
        is_there = f"{folder}/{MANIFEST_FILE}" in sizes
        files = files_of(read_manifest(system, folder)) if is_there else []
        damaged = first_damaged(system, folder, files, sizes) if is_there else MANIFEST_FILE
        if damaged is not None:
            raise ConfigError(
                f"{folder} is an unfinished ingest: {damaged} is missing or not whole; "
                "run the same `raysl ingest` again"
            )


def read_manifest(system: fs.FileSystem, folder: str) -> Json:
    """What a finished ingest holds.

    Raises:
        ConfigError: if there is no such file, or it cannot be read.
    """
    path = f"{folder}/{MANIFEST_FILE}"
    with telling("read", path):
        try:
            manifest: Json = json.loads(read_file(system, path))
            if not all(file.keys() >= {"name", "bytes"} for file in files_of(manifest)):
                raise KeyError("files")
        except FileNotFoundError as error:
            raise ConfigError(f"{folder} holds no finished ingest: {MANIFEST_FILE} is missing") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} is damaged; delete it and run the same `raysl ingest` again") from error
    return manifest


def files_of(manifest: Json) -> list[Json]:
    """The files of all splits, with `name`, `bytes` and `sha256` each."""
    return [file for split in manifest["splits"].values() for file in split["files"]]


def first_damaged(system: fs.FileSystem, folder: str, files: Sequence[Json], sizes: Mapping[str, int]) -> str | None:
    """The name of the first file that is missing, or not what was written as far as its size and its footer tell.

    Args:
        system, folder: where they are.
        files: what a manifest says of them.
        sizes: bytes of the files that are there, by path.
    """
    for file in files:
        if sizes.get(f"{folder}/{file['name']}") != file["bytes"]:
            return str(file["name"])
    known = [file for file in files if file.get("footer_bytes")]  # ingests of older versions noted none

    def has_its_footer(file: Json) -> bool:
        found = _footer_sha256(system, f"{folder}/{file['name']}", file["bytes"], file["footer_bytes"])
        return bool(found == file["footer_sha256"])

    with ThreadPoolExecutor(REMOTE_READS) as pool:
        is_right = list(pool.map(has_its_footer, known))
    return next((str(file["name"]) for file, right in zip(known, is_right, strict=True) if not right), None)


def footer_of(system: fs.FileSystem, path: str, num_bytes: int) -> tuple[int, str]:
    """Bytes of a Parquet file's footer, and their checksum."""
    with telling("read", path):
        (tail,) = read_ranges(system, path, [num_bytes - _TAIL], [_TAIL])
    size = int.from_bytes(tail[:4], "little") + _TAIL
    return size, _footer_sha256(system, path, num_bytes, size)


def _footer_sha256(system: fs.FileSystem, path: str, num_bytes: int, size: int) -> str:
    with telling("read", path):
        (footer,) = read_ranges(system, path, [num_bytes - size], [size])
    return hashlib.sha256(footer).hexdigest()
