"""Which Parquet files lie at a place; in a folder that `raysl ingest` filled, those that its manifest lists."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pyarrow import fs

from raysl.addresses import info_of, telling
from raysl.data.ingest.ingested import MANIFEST_FILE, PLAN_FILE, check_finished
from raysl.data.sources.listing import listed, listing
from raysl.data.sources.shards import check_names
from raysl.errors import ConfigError
from raysl.reads import read_file


@dataclass(frozen=True)
class Files:
    """Parquet files.

    Args:
        paths: in their file system, by their paths below the place, sorted.
        notes: what else is there, a line each.
    """

    paths: dict[str, str]
    notes: tuple[str, ...]


def found_files(uri: str) -> Files:
    """The Parquet files at a place, sub-folders included.

    Raises:
        ConfigError: if there are none, or they are of an ingest that has not ended.
    """
    system, info = info_of(uri)
    if info.type == fs.FileType.File:
        return Files({info.path.rpartition("/")[2]: info.path}, ())
    if info.type != fs.FileType.Directory:
        raise ConfigError(f"no file or folder {uri!r}; give data.path= a Parquet file or a folder of them")
    sizes = {file.path: file.size for file in listing(uri).files}
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
    return Files(kept, notes if others else ())


def _of_manifests(system: fs.FileSystem, root: str, sizes: Mapping[str, int | None]) -> dict[str, set[str]]:
    """Paths that the manifest of each ingest lists, by its folder, which ends in a slash where it is not the root."""
    found: dict[str, set[str]] = {}
    for path in sizes:
        folder, name = path[: path.rfind("/") + 1], path[path.rfind("/") + 1 :]
        if name != PLAN_FILE:
            continue
        manifest = f"{root}/{folder}{MANIFEST_FILE}"
        with telling("read", manifest):
            splits = json.loads(read_file(system, manifest))["splits"].values()
        found[folder] = {f"{folder}{file['name']}" for split in splits for file in split["files"]}
    return found


def _counts(path: str, manifests: Mapping[str, set[str]]) -> bool:
    """Whether every manifest in a folder around the file lists it."""
    return all(path in files for folder, files in manifests.items() if path.startswith(folder))
