"""The folder of an ingest: whether it may be filled, whether it is complete, and what its manifest says."""

import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import fs

from raysl.config.dump import plain, write_inline
from raysl.config.schema import DataConfig
from raysl.data.sources.class_names import LABELS
from raysl.data.sources.listing import File, join_some
from raysl.data.sources.parquet_columns import CLASSES_KEY, Footers, Range, units_of
from raysl.errors import ConfigError
from raysl.storage.addresses import storage_errors
from raysl.storage.folder import PART, Folder
from raysl.storage.reads import in_parallel, read_file, read_ranges, small_reads
from raysl.storage.records import Damaged, check_types, read_record

FORMAT = 1
PLAN_FILE = "ingest.json"
MANIFEST_FILE = "manifest.json"
CORRUPT_FILE = "corrupt.jsonl"

Json = dict[str, Any]

_TAIL = 8  # bytes at the end of a Parquet file: the size of the footer, then a magic number

_FILES = (PLAN_FILE, MANIFEST_FILE, CORRUPT_FILE)
_LISTS = ("check.jsonl", "check.json")  # `raysl ingest --check` may have written to the same folder
_LISTED = ("path", "train", "test")  # settings of sources whose folders are searched with their sub-folders
_NUMBERS = re.compile(r"\[[\s\d,-]+\]")


def claim(folder: Folder, plan: Json, data: DataConfig | None) -> None:
    """Write the plan into a new folder, or check that the folder was begun with the same plan.

    Args:
        data: settings of the source; None for a dataset of Ray Data.

    Raises:
        ConfigError: if it is the source's folder or lies in it, holds other files, or was begun with another plan.
    """
    if data is not None:
        _refuse_source(folder.uri, data)
    before = folder.read_if_there(PLAN_FILE)
    others = [name for name in folder.names() if not _is_of_ingest(name, is_begun=bool(before))]
    if others:
        some = join_some(others, 5)
        raise ConfigError(f"{folder.uri} holds files of another origin: {some}; give --out an empty folder")
    if not before:
        folder.make()
        folder.write(PLAN_FILE, to_json(plan))
        return
    plans = (_flatten(read_record(before, folder.uri_of(PLAN_FILE))), _flatten(plan))
    old, new = ({key: write_inline(value) for key, value in leaves.items()} for leaves in plans)
    changed = [
        f"{key}: {old.get(key, 'unset')} -> {new.get(key, 'unset')}"
        for key in old | new
        if old.get(key) != new.get(key)
    ]
    if changed:
        lines = "\n  ".join(changed)
        raise ConfigError(
            f"{folder.uri} is of images or settings that differ:\n  {lines}\n"
            "give another --out, or go back to those settings to go on with it"
        )


def _is_of_ingest(name: str, is_begun: bool) -> bool:
    """Whether a file of this name may lie in a folder that an ingest fills."""
    if name.startswith(".") or name.endswith(PART) or name in _LISTS:
        return True
    return is_begun and (name in _FILES or name.startswith(("train-", "test-")) or not name.endswith(".parquet"))


def _refuse_source(out: str, data: DataConfig) -> None:
    """Refuse to write where the images are listed: the new files would be listed with them."""
    address = _normalize(out)
    for key, value in _flatten(plain(data)).items():
        if not isinstance(value, str) or not ("://" in value or value.startswith("/")):
            continue
        is_inside = key.rpartition(".")[2] in _LISTED and address.startswith(f"{_normalize(value)}/")
        if address == _normalize(value) or is_inside:
            what = "lies in the source" if is_inside else "is the source itself"
            raise ConfigError(f"--out {out} {what}, data.{key}={value}; give a folder outside")


def _normalize(uri: str) -> str:
    """Resolve links and drop the query and a final slash, so that equal addresses compare equal."""
    path = uri.partition("?")[0].removeprefix("file://") if "://" in uri else uri
    return path.rstrip("/") if "://" in path else os.path.realpath(path)


def _flatten(tree: Json, prefix: str = "") -> Json:
    leaves: Json = {}
    for key, value in tree.items():
        leaves |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return leaves


def to_json(tree: Json) -> bytes:
    """Encode a tree for the JSON files of an ingest; lists of numbers stand on one line."""
    text = _NUMBERS.sub(lambda numbers: " ".join(numbers[0].split()), json.dumps(tree, indent=1))
    return f"{text}\n".encode()


def check_finished(system: fs.FileSystem, root: str, files: Mapping[str, File]) -> dict[str, Json]:
    """Refuse folders of an unfinished ingest, or whose files have changed since.

    All sizes are compared, and the footers of files that are newer than the manifest;
    `raysl.data.ingest.ingest.verify` compares all bytes.

    Args:
        files: all files below it, by their paths there.

    Returns:
        The manifest of each ingest below the root, by its folder there: empty, or ending in a slash.
    """
    manifests: dict[str, Json] = {}
    for inner in [path.removesuffix(PLAN_FILE) for path in files if path.rpartition("/")[2] == PLAN_FILE]:
        folder = f"{root}/{inner}".rstrip("/")
        damaged: str | None = MANIFEST_FILE
        if (entry := files.get(f"{inner}{MANIFEST_FILE}")) is not None:
            manifests[inner] = read_manifest(system, folder)
            listed = files_of(manifests[inner])
            present = {file["name"]: files.get(f"{inner}{file['name']}") for file in listed}
            sizes = {name: file.size for name, file in present.items() if file is not None}
            newer = {name for name, file in present.items() if file is not None and _is_newer(file, entry)}
            damaged = first_damaged(system, folder, listed, sizes, newer)
        if damaged is not None:
            raise ConfigError(
                f"{folder} is an unfinished ingest: {damaged} is missing or incomplete; "
                "run the same `raysl ingest` again"
            )
    return manifests


def _is_newer(file: File, manifest: File) -> bool:
    return file.mtime_ns is not None and manifest.mtime_ns is not None and file.mtime_ns > manifest.mtime_ns


def read_manifest(system: fs.FileSystem, folder: str) -> Json:
    """Read the manifest of a finished ingest."""
    path = f"{folder}/{MANIFEST_FILE}"
    with storage_errors("read", path):
        try:
            kinds = {"format": int, "splits": dict[str, dict[str, Any]]}
            manifest: Json = read_record(read_file(system, path), path, kinds)
            if manifest["format"] != FORMAT:
                raise ConfigError(
                    f"{path} has format {manifest['format']}, and this raysl reads format {FORMAT}; run `raysl ingest` "
                    "again with another --out"
                )
            for split in manifest["splits"].values():
                check_types(split, path, _SPLIT_KINDS)
            for file in files_of(manifest):
                check_types(file, path, FILE_KINDS)
        except FileNotFoundError as error:
            raise ConfigError(f"{folder} holds no finished ingest: {MANIFEST_FILE} is missing") from error
        except Damaged as error:
            reason = str(error).removeprefix(f"{path} is damaged: ")
            raise Damaged(f"{path} is damaged; delete it and run the same `raysl ingest` again ({reason})") from error
    return manifest


_SPLIT_KINDS: dict[str, Any] = {
    **dict.fromkeys(("rows", "corrupt"), int),
    **dict.fromkeys(("fingerprint", "labels_digest"), str),
    "classes": list[str],
    **dict.fromkeys(("is_multilabel", "has_names"), bool),
    "column_bytes": int,
    "files": list[dict[str, Any]],
}
FILE_KINDS: dict[str, Any] = {
    **dict.fromkeys(("bytes", "footer_bytes", "rows"), int),
    **dict.fromkeys(("name", "footer_sha256", "sha256"), str),
    "groups": list[int],
    "labels": tuple[int, int],
}


def files_of(manifest: Json) -> list[Json]:
    """Return the files of all splits, each with `name`, `bytes` and `sha256`."""
    return [file for split in manifest["splits"].values() for file in split["files"]]


def first_damaged(
    system: fs.FileSystem, folder: str, files: Sequence[Json], sizes: Mapping[str, int | None], opened: Collection[str]
) -> str | None:
    """Return the name of the first file that is missing, or whose size or footer differs from the manifest's.

    Args:
        sizes: bytes of the files in the folder, by name.
        opened: names of the files whose footers are read.
    """
    for file in files:
        if sizes.get(file["name"]) != file["bytes"]:
            return str(file["name"])

    def is_damaged(file: Json) -> bool:
        sha256 = _footer_sha256(system, f"{folder}/{file['name']}", file["bytes"], file["footer_bytes"])
        return bool(sha256 != file["footer_sha256"])

    read = [file for file in files if file["name"] in opened]
    damaged = in_parallel(is_damaged, read, small_reads(system))
    return next((str(file["name"]) for file, is_bad in zip(read, damaged, strict=True) if is_bad), None)


def footer_of(system: fs.FileSystem, path: str, num_bytes: int) -> tuple[int, str]:
    """Return the size of a Parquet file's footer in bytes, and its SHA-256."""
    with storage_errors("read", path):
        (tail,) = read_ranges(system, path, [num_bytes - _TAIL], [_TAIL])
    size = int.from_bytes(tail[:4], "little") + _TAIL
    return size, _footer_sha256(system, path, num_bytes, size)


def _footer_sha256(system: fs.FileSystem, path: str, num_bytes: int, size: int) -> str:
    with storage_errors("read", path):
        (footer,) = read_ranges(system, path, [num_bytes - size], [size])
    return hashlib.sha256(footer).hexdigest()


IMAGES = "image"


def stored_schema(classes: Sequence[str], is_multilabel: bool, has_names: bool = False) -> pa.Schema:
    """Return the schema of the files that an ingest writes."""
    label = pa.list_(pa.int64()) if is_multilabel else pa.string() if has_names else pa.int64()
    fields = {"index": pa.int64(), IMAGES: pa.large_binary(), LABELS: label, "name": pa.string()}
    return pa.schema(fields, metadata={CLASSES_KEY: json.dumps(classes).encode()})


def ingested_footers(folder: str, manifest: Mapping[str, Any]) -> dict[tuple[str, ...], Footers]:
    """Return what a manifest says of the footers of each split that it describes in full, by the paths of its files.

    Lists of labels whose number of classes is unknown are read from the files.

    Args:
        folder: path of the ingest, empty or ending in a slash.
    """
    entries = [entry for entry in manifest["splits"].values() if entry["files"]]
    footers = [_footers(folder, entry) for entry in entries if entry["classes"] or not entry["is_multilabel"]]
    return dict(footers)


def _footers(folder: str, entry: Mapping[str, Any]) -> tuple[tuple[str, ...], Footers]:
    files = {f"{folder}{file['name']}": file for file in entry["files"]}
    paths = tuple(sorted(files))
    classes, is_multilabel, has_names = entry["classes"], entry["is_multilabel"], entry["has_names"]
    ranges: dict[str, Range | None] = {}
    if not (is_multilabel or has_names):
        ranges = {path: (files[path]["labels"][0], files[path]["labels"][1]) for path in paths}
    return paths, Footers(
        {paths[0]: stored_schema(classes, is_multilabel, has_names)},
        ranges,
        *units_of([np.array(files[path]["groups"], np.int64) for path in paths]),
        entry["column_bytes"],
        entry["fingerprint"],
        label_width=len(classes) if is_multilabel else None,
        has_names=has_names,
        labels_digest=entry["labels_digest"],
    )
