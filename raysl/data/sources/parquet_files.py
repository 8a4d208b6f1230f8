"""Which Parquet files lie at a place; in a folder that `raysl ingest` filled, those that its manifest lists."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pyarrow import fs

from raysl.data.ingest.ingested import MANIFEST_FILE, PLAN_FILE, check_finished
from raysl.data.sources.listing import File, listed, listing
from raysl.data.sources.shards import check_names
from raysl.data.sources.versions import versions_of
from raysl.errors import ConfigError
from raysl.storage.addresses import info_of, telling
from raysl.storage.reads import read_file


@dataclass(frozen=True)
class Known:
    """What is known of a Parquet file before it is opened.

    Args:
        sha256: of its bytes, as the manifest of an ingest says; empty of other files.
        written: the version of the file; empty where the storage tells none, or where `sha256` says all because it has
            not been written since its manifest.
    """

    sha256: str = ""
    written: str = ""


@dataclass(frozen=True)
class Files:
    """Parquet files.

    Args:
        paths: in their file system, by their paths below the place, sorted.
        notes: what else is there, a line each.
        known: what is known of each, by its path in the file system.
    """

    paths: dict[str, str]
    notes: tuple[str, ...]
    known: dict[str, Known]


def found_files(uri: str) -> Files:
    """The Parquet files at a place, sub-folders included.

    Raises:
        ConfigError: if there are none, or they are of an ingest that has not ended.
    """
    system, info = info_of(uri)
    if info.type == fs.FileType.File:
        return Files({info.path.rpartition("/")[2]: info.path}, (), _known(system, {info.path: info.mtime_ns}, {}))
    if info.type != fs.FileType.Directory:
        raise ConfigError(f"no file or folder {uri!r}; give data.path= a Parquet file or a folder of them")
    files = {file.path: file for file in listing(uri).files}
    sizes = {path: file.size for path, file in files.items()}
    check_finished(system, {f"{info.path}/{path}": -1 if size is None else size for path, size in sizes.items()})
    parquet = sorted(path for path in sizes if path.endswith(".parquet"))
    check_names(parquet, uri)
    counted = _of_manifests(system, info.path, sizes)
    kept = {path: f"{info.path}/{path}" for path in parquet if _counts(path, counted)}
    if not kept:
        raise ConfigError(f"no .parquet files in {uri!r}, sub-folders included")
    others = [path for path in parquet if path not in kept]
    notes = (
        f"{len(others):,} Parquet files in {uri!r} are not used, as the {MANIFEST_FILE} of the ingest there does not "
        f"list them: {listed(others)}; move them away",
    )
    mtimes = {inner: files[path].mtime_ns for path, inner in kept.items()}
    return Files(kept, notes if others else (), _known(system, mtimes, _hashes(info.path, files, counted)))


def _known(
    system: fs.FileSystem, mtimes: Mapping[str, int | None], hashes: Mapping[str, tuple[str, int | None]]
) -> dict[str, Known]:
    """What is known of each file.

    Args:
        system: where they are.
        mtimes: when each was written, where the listing has that.
        hashes: SHA-256 of those that an ingest wrote, and when its manifest was written.
    """
    asked = [path for path, mtime in mtimes.items() if mtime is None]
    versions = dict(zip(asked, versions_of([(system, path) for path in asked]), strict=True))
    known = {}
    for path, mtime in mtimes.items():
        sha256, noted = hashes.get(path, ("", None))
        is_as_noted = bool(sha256) and mtime is not None and noted is not None and mtime <= noted
        written = versions.get(path) if mtime is None else str(mtime)
        known[path] = Known(sha256, "" if is_as_noted else written or "")
    return known


def _hashes(
    root: str, files: Mapping[str, File], manifests: Mapping[str, Mapping[str, str]]
) -> dict[str, tuple[str, int | None]]:
    return {
        f"{root}/{path}": (sha256, files[f"{folder}{MANIFEST_FILE}"].mtime_ns)
        for folder, listed_files in manifests.items()
        for path, sha256 in listed_files.items()
        if sha256
    }


def _of_manifests(system: fs.FileSystem, root: str, sizes: Mapping[str, int | None]) -> dict[str, dict[str, str]]:
    """SHA-256 by the paths that the manifest of each ingest lists, by its folder, which ends in a slash where it is not
    the root."""
    found: dict[str, dict[str, str]] = {}
    for path in sizes:
        folder, name = path[: path.rfind("/") + 1], path[path.rfind("/") + 1 :]
        if name != PLAN_FILE:
            continue
        manifest = f"{root}/{folder}{MANIFEST_FILE}"
        with telling("read", manifest):
            splits = json.loads(read_file(system, manifest))["splits"].values()
        found[folder] = {
            f"{folder}{file['name']}": file.get("sha256", "") for split in splits for file in split["files"]
        }
    return found


def _counts(path: str, manifests: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether every manifest in a folder around the file lists it."""
    return all(path in files for folder, files in manifests.items() if path.startswith(folder))
