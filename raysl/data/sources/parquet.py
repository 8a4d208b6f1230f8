"""Parquet files with a column of encoded images."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyarrow import fs
from typing_extensions import override

from raysl.config.ranges import Location
from raysl.config.schema import DataConfig
from raysl.data.ingest.folder import MANIFEST_FILE, PLAN_FILE, check_finished
from raysl.data.source import Source, Split
from raysl.data.sources.class_names import LABELS
from raysl.data.sources.listing import File, join_some, list_files
from raysl.data.sources.parquet_split import FileVersion, ParquetSplit
from raysl.data.sources.part_names import PartFiles, choose_files, held_out_notes
from raysl.data.sources.shards import check_names
from raysl.data.sources.versions import read_versions
from raysl.errors import ConfigError
from raysl.storage.addresses import stat_uri, storage_errors
from raysl.storage.reads import read_file


class Parquet(Source):
    """A Parquet file or a folder of them; the row group is the read unit.

    In a folder, the files whose names, or those of their folders, begin or end with `train` are the training images,
    and `val` or else `test` the held-out ones (`valid`, `validation`, `training` and `testing` mean the same); if no
    file is called `train`, all but the held-out ones are. In a folder that `raysl ingest` wrote, only the files in its
    manifest count.

    Labels are integers, names (sorted, and numbered by the training images), or lists with one for each class:
    1 present, 0 absent, -1 ignore. A column `name` or else `path` of texts names the images. Other columns are ignored.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """Where the files lie, and which columns to read."""

        name: str = "parquet"
        path: Location | None = None
        """File, folder or URI with `train*` and `val*` or `test*` Parquet files or folders."""
        train: Location | None = None
        """File, folder or URI of the training images, instead of those in `path`."""
        test: Location | None = None
        """File, folder or URI of the held-out images, instead of those in `path`."""
        image_column: str = "image"
        """Column of encoded images: binary, or structs with the field `bytes`."""
        label_column: str | None = LABELS
        """Column of labels, null where unlabelled. If the default is missing, nothing is labelled; any other must
        exist; null: nothing is labelled."""
        classes: tuple[str, ...] = ()
        """Names of the classes, by label. Default: those that the files store, else the labels themselves."""

    @override
    def split(self, name: str) -> Split | None:
        if name == "train":
            return self._train
        if self.config.test is not None:
            uri, files = self.config.test, list_parquet_files(self.config.test)
            return self._make_split(
                uri, list(files.paths.values()), files.versions, files.notes, self._training_classes
            )
        if self.config.path is None or not self._parts.test:
            return None
        return self._make_split(self.config.path, self._parts.test, self._files.versions, (), self._training_classes)

    @cached_property
    def _train(self) -> ParquetSplit:
        if (uri := self.config.train) is not None:
            files = list_parquet_files(uri)
            notes = (*files.notes, *held_out_notes(files.paths, uri))
            return self._make_split(uri, list(files.paths.values()), files.versions, notes)
        if self.config.path is None:
            raise ConfigError("parquet needs data.path= or data.train=, a Parquet file or a folder of them")
        if not self._parts.train:
            raise ConfigError(f"{self.config.path!r} holds only val and test files; give data.train=")
        return self._make_split(self.config.path, self._parts.train, self._files.versions, self._parts.notes)

    @cached_property
    def _files(self) -> "Files":
        return list_parquet_files(self.config.path)

    @cached_property
    def _parts(self) -> PartFiles[str]:
        """Files in `path`, divided into training and held-out ones."""
        parts = choose_files(self._files.paths.items(), self.config.path)
        return PartFiles(parts.train, parts.test, (*self._files.notes, *parts.notes))

    @property
    def _training_classes(self) -> tuple[str, ...]:
        """Classes by which held-out images are numbered; empty without training images or if the settings name them."""
        is_alone = self.config.train is None and self.config.path is None
        return () if self.config.classes or is_alone else self._train.classes

    def _make_split(
        self,
        uri: str,
        files: Sequence[str],
        versions: Mapping[str, FileVersion],
        notes: tuple[str, ...],
        training: tuple[str, ...] = (),
    ) -> ParquetSplit:
        config = self.config
        split = ParquetSplit(uri, files, config.image_column, config.label_column, config.classes, training, versions)
        split.notes = notes
        return split


@dataclass(frozen=True)
class Files:
    """Parquet files of a folder.

    Args:
        paths: in their file system, by their paths below the folder, sorted.
        notes: about files that are not used, a line each.
        versions: of each, by its path in the file system.
    """

    paths: dict[str, str]
    notes: tuple[str, ...]
    versions: dict[str, FileVersion]


def list_parquet_files(uri: str) -> Files:
    """List the Parquet files at a path or URI, sub-folders included.

    Raises:
        ConfigError: if there are none, or they are of an unfinished ingest.
    """
    system, info = stat_uri(uri)
    if info.type == fs.FileType.File:
        return Files(
            {info.path.rpartition("/")[2]: info.path}, (), _find_versions(system, {info.path: info.mtime_ns}, {})
        )
    if info.type != fs.FileType.Directory:
        raise ConfigError(f"no file or folder {uri!r}; give data.path= a Parquet file or a folder of them")
    files = {file.path: file for file in list_files(uri).files}
    sizes = {path: file.size for path, file in files.items()}
    check_finished(system, {f"{info.path}/{path}": -1 if size is None else size for path, size in sizes.items()})
    parquet = sorted(path for path in sizes if path.endswith(".parquet"))
    check_names(parquet, uri)
    manifests = _read_manifests(system, info.path, sizes)
    used = {path: f"{info.path}/{path}" for path in parquet if _is_listed(path, manifests)}
    if not used:
        raise ConfigError(f"no .parquet files in {uri!r}, sub-folders included")
    others = [path for path in parquet if path not in used]
    notes = (
        f"{len(others):,} Parquet files in {uri!r} are not used, as the {MANIFEST_FILE} of the ingest there does not "
        f"list them: {join_some(others)}; move them away",
    )
    mtimes = {inner: files[path].mtime_ns for path, inner in used.items()}
    return Files(used, notes if others else (), _find_versions(system, mtimes, _hashes(info.path, files, manifests)))


def _find_versions(
    system: fs.FileSystem, mtimes: Mapping[str, int | None], hashes: Mapping[str, tuple[str, int | None]]
) -> dict[str, FileVersion]:
    """Return the version of each file.

    Args:
        system: the file system of the files.
        mtimes: modification time of each, if the listing has it.
        hashes: SHA-256 of those that an ingest wrote, and the modification time of its manifest.
    """
    unknown = [path for path, mtime in mtimes.items() if mtime is None]
    tags = dict(zip(unknown, read_versions([(system, path) for path in unknown]), strict=True))
    versions = {}
    for path, mtime in mtimes.items():
        sha256, manifest_mtime = hashes.get(path, ("", None))
        is_unchanged = bool(sha256) and mtime is not None and manifest_mtime is not None and mtime <= manifest_mtime
        written = tags.get(path) if mtime is None else str(mtime)
        versions[path] = FileVersion(sha256, "" if is_unchanged else written or "")
    return versions


def _hashes(
    root: str, files: Mapping[str, File], manifests: Mapping[str, Mapping[str, str]]
) -> dict[str, tuple[str, int | None]]:
    return {
        f"{root}/{path}": (sha256, files[f"{folder}{MANIFEST_FILE}"].mtime_ns)
        for folder, listed_files in manifests.items()
        for path, sha256 in listed_files.items()
        if sha256
    }


def _read_manifests(system: fs.FileSystem, root: str, sizes: Mapping[str, int | None]) -> dict[str, dict[str, str]]:
    """Read the manifests of ingests: by folder ("" or ending in a slash), the SHA-256 of each path that it lists."""
    manifests: dict[str, dict[str, str]] = {}
    for path in sizes:
        folder, name = path[: path.rfind("/") + 1], path[path.rfind("/") + 1 :]
        if name != PLAN_FILE:
            continue
        manifest = f"{root}/{folder}{MANIFEST_FILE}"
        with storage_errors("read", manifest):
            splits = json.loads(read_file(system, manifest))["splits"].values()
        manifests[folder] = {
            f"{folder}{file['name']}": file.get("sha256", "") for split in splits for file in split["files"]
        }
    return manifests


def _is_listed(path: str, manifests: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether every manifest in a folder above the file lists it."""
    return all(path in files for folder, files in manifests.items() if path.startswith(folder))
