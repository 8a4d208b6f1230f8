"""Parquet files with a column of encoded images."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pyarrow import fs
from typing_extensions import override

from raysl.config.ranges import Location
from raysl.data.ingest.folder import IMAGES, MANIFEST_FILE, check_finished, files_of, ingested_footers
from raysl.data.source import ConfigError, DataConfig, Source, Split
from raysl.data.sources.class_names import LABELS, check_seen
from raysl.data.sources.listing import File, join_some, list_files
from raysl.data.sources.parquet_columns import Footers
from raysl.data.sources.parquet_split import FileVersion, ParquetSplit
from raysl.data.sources.part_names import choose_part
from raysl.data.sources.shards import check_names
from raysl.data.sources.versions import read_versions
from raysl.storage.addresses import stat_uri

ENDINGS = (".parquet", ".pq")
"""Endings of the files in a folder that are read, in small letters or capitals."""


class Parquet(Source):
    """A Parquet file or a folder of them; the row group is the read unit.

    A file in a folder is training data if its name or a folder's name begins or ends with `train` (or `training`).
    Held-out: `val` (`valid`, `validation`), or `test` (`testing`) if there is no `val`. If nothing matches `train`, all
    files that match none of these words are training data. In a folder that `raysl ingest` wrote, only the files in
    its manifest are used.

    Labels are numbers, class names, or lists with one value per class: 1 present, 0 absent, -1 ignore. Without a
    column, folders such as `label=cat/` (Hive partitions) label their files. Class names are sorted; their numbers come
    from the training split. Names that raysl or `datasets` stored in files number held-out labels by name. A text
    column `name`, or `path` if there is no `name`, names the images. Other columns are ignored.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """Paths of the files, and the columns to read."""

        name: str = "parquet"
        path: Location | None = None
        """Parquet file or folder, local or a URI, with files or folders called `train*` and `val*` or `test*`."""
        train: Location | None = None
        """Parquet file or folder of the training images, local or a URI; replaces those in `path`."""
        test: Location | None = None
        """Parquet file or folder of the held-out images, local or a URI; replaces those in `path`."""
        image_column: str = "image"
        """Column of encoded images: binary values, or structs with a field `bytes`."""
        label_column: str | None = LABELS
        """Column of labels; a row without a value is unlabelled. The default column may be missing (images are then
        unlabelled). A column you name must exist. null: ignore labels."""
        classes: tuple[str, ...] = ()
        """Class names in the order of the labels. Default: the names stored in the files, or else the labels."""

    @override
    def split(self, name: str) -> Split | None:
        return self._train if name == "train" else self._open(name)

    @cached_property
    def _train(self) -> ParquetSplit:
        train = self._open("train")
        assert train is not None
        return train

    @cached_property
    def _listings(self) -> "dict[str, ParquetListing]":
        return {}

    def _list(self, uri: str) -> "ParquetListing":
        """List the files at an address, once for all splits."""
        if uri not in self._listings:
            self._listings[uri] = list_parquet_files(uri)
        return self._listings[uri]

    def _open(self, name: str) -> ParquetSplit | None:
        """Return a split; the training images number held-out labels, where there are any."""
        config, is_train = self.config, name == "train"
        kind = "a Parquet file or a folder of them"
        chosen = choose_part(config, name, kind, lambda uri: self._list(uri).paths.items())
        if chosen is None:
            return None
        uri, paths, notes = chosen
        listing = self._list(uri)
        # the training split shows the notes on `path`
        if is_train or config.test is not None or config.train is not None:
            notes = (*listing.notes, *notes)
        has_training = not is_train and (config.train is not None or config.path is not None)
        train = self._train if has_training and not config.classes else None
        # facts in a manifest hold for its own columns and for exactly its files
        has_known_columns = config.image_column == IMAGES and config.label_column in (LABELS, None)
        manifest = listing.ingested.get(tuple(paths)) if has_known_columns else None
        columns = config.image_column, config.label_column
        split = ParquetSplit(uri, paths, *columns, config.classes, train, listing.versions, manifest)
        split.notes = (*notes, *split.notes)
        if train is not None and split.labelling.has_plain_numbers and train.labelling.has_plain_numbers:
            check_seen(split, train, uri)
        return split


@dataclass(frozen=True)
class ParquetListing:
    """Parquet files of a folder.

    Args:
        paths: maps the path relative to the folder to the path in the file system; sorted.
        notes: one line for each kind of file that is not used.
        versions: maps the path in the file system to the file's version.
        ingested: maps the paths of a split's files to their footers, as a manifest has them.
    """

    paths: dict[str, str]
    notes: tuple[str, ...]
    versions: dict[str, FileVersion]
    ingested: dict[tuple[str, ...], Footers]


def list_parquet_files(uri: str) -> ParquetListing:
    """List the Parquet files at a path or URI, sub-folders included."""
    system, info = stat_uri(uri)
    if info.type == fs.FileType.File:
        # a file that the user names is used whatever a manifest beside it says
        versions = _file_versions(system, {info.path: File(info.path, info.size, info.mtime_ns, None)}, {})
        return ParquetListing({info.path.rpartition("/")[2]: info.path}, (), versions, {})
    if info.type != fs.FileType.Directory:
        raise ConfigError(f"no file or folder {uri!r}; give a Parquet file or a folder of them")
    files = {file.path: file for file in list_files(uri).files}
    manifests = check_finished(system, info.path, files)
    parquet_paths = sorted(path for path in files if path.lower().endswith(ENDINGS))
    check_names(parquet_paths, uri)
    # hashes of the files in each manifest, by their paths below this folder
    hashes = {
        folder: {f"{folder}{file['name']}": file["sha256"] for file in files_of(manifest)}
        for folder, manifest in manifests.items()
    }
    paths = {
        path: f"{info.path}/{path}"
        for path in parquet_paths
        if not any(path.startswith(folder) and path not in listed for folder, listed in hashes.items())
    }
    if not parquet_paths:
        raise ConfigError(f"no .parquet files in {uri!r}, sub-folders included")
    if not paths:
        raise ConfigError(
            f"the {MANIFEST_FILE} of the ingest in {uri!r} lists none of its {len(parquet_paths):,} .parquet files; "
            "move them to another folder to use them"
        )
    excluded = [path for path in parquet_paths if path not in paths]
    note = (
        f"{len(excluded):,} Parquet files in {uri!r} are not used, as the {MANIFEST_FILE} of the ingest there does not "
        f"list them: {join_some(excluded)}; move them away"
    )
    used = {full_path: files[path] for path, full_path in paths.items()}
    # check_finished has refused folders without a manifest
    written = {
        f"{info.path}/{path}": (sha256, files[f"{folder}{MANIFEST_FILE}"].mtime_ns)
        for folder, listed in hashes.items()
        for path, sha256 in listed.items()
    }
    versions = _file_versions(system, used, written)
    ingested: dict[tuple[str, ...], Footers] = {}
    for folder, manifest in manifests.items():
        ingested |= ingested_footers(f"{info.path}/{folder}", manifest)
    return ParquetListing(paths, (note,) if excluded else (), versions, ingested)


def _file_versions(
    system: fs.FileSystem, files: Mapping[str, File], hashes: Mapping[str, tuple[str, int | None]]
) -> dict[str, FileVersion]:
    """Map the path of each file to its version.

    Args:
        hashes: maps the path of a file that an ingest wrote to its SHA-256 and its manifest's modification time.
    """
    without_mtime = [path for path, file in files.items() if file.mtime_ns is None]
    tags = dict(zip(without_mtime, read_versions([(system, path) for path in without_mtime]), strict=True))
    versions = {}
    for path, file in files.items():
        mtime = file.mtime_ns
        sha256, manifest_mtime = hashes.get(path, ("", None))
        # a file that is not newer than the manifest has the content that the manifest has hashed
        has_valid_hash = bool(sha256) and mtime is not None and manifest_mtime is not None and mtime <= manifest_mtime
        written = tags.get(path) if mtime is None else str(mtime)
        versions[path] = FileVersion(sha256, "" if has_valid_hash else written or "", file.size)
    return versions
