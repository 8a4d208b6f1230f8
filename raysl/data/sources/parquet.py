"""Parquet files with a column of encoded images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyarrow import fs
from typing_extensions import override

from raysl.config.ranges import Location
from raysl.data.ingest.folder import MANIFEST_FILE, Json, check_finished, files_of
from raysl.data.source import ConfigError, DataConfig, Source, Split
from raysl.data.sources.class_names import LABELS, check_seen
from raysl.data.sources.ingested import IMAGES, IngestedSplit, ingested_splits
from raysl.data.sources.listing import File, join_some, list_files
from raysl.data.sources.parquet_split import FileVersion, ParquetSplit
from raysl.data.sources.part_names import PartFiles, choose_files, held_out_notes
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
        if name == "train":
            return self._train
        if (uri := self.config.test) is not None:
            listing = list_parquet_files(uri)
            return self._held_out(uri, listing, list(listing.paths.values()), listing.notes)
        if self.config.path is None or not self._path_parts.test:
            return None
        # the training split shows the notes on `path`, unless it is from elsewhere
        notes = () if self.config.train is None else self._path_listing.notes
        return self._held_out(self.config.path, self._path_listing, self._path_parts.test, notes)

    def _held_out(
        self, uri: str, listing: "ParquetListing", paths: Sequence[str], notes: tuple[str, ...]
    ) -> ParquetSplit:
        """Return held-out images with the numbers of the training images, where there are any."""
        has_training = self.config.train is not None or self.config.path is not None
        train = self._train if has_training and not self.config.classes else None
        split = self._make_split(uri, listing, paths, notes, train)
        if train is not None and split.labelling.has_plain_numbers and train.labelling.has_plain_numbers:
            check_seen(split, train, uri)
        return split

    @cached_property
    def _train(self) -> ParquetSplit:
        if (uri := self.config.train) is not None:
            listing = list_parquet_files(uri)
            notes = (*listing.notes, *held_out_notes(listing.paths, uri))
            return self._make_split(uri, listing, list(listing.paths.values()), notes)
        if self.config.path is None:
            raise ConfigError("parquet needs data.path= or data.train=, a Parquet file or a folder of them")
        parts, listing = self._path_parts, self._path_listing
        if not parts.train:
            raise ConfigError(f"{self.config.path!r} holds only val and test files; give data.train=")
        return self._make_split(self.config.path, listing, parts.train, (*listing.notes, *parts.notes))

    @cached_property
    def _path_listing(self) -> "ParquetListing":
        return list_parquet_files(self.config.path)

    @cached_property
    def _path_parts(self) -> PartFiles[str]:
        """Training and held-out files in `path`."""
        return choose_files(self._path_listing.paths.items(), self.config.path)

    def _make_split(
        self,
        uri: str,
        listing: "ParquetListing",
        paths: Sequence[str],
        notes: tuple[str, ...],
        train: ParquetSplit | None = None,
    ) -> ParquetSplit:
        config = self.config
        has_known_columns = config.image_column == IMAGES and config.label_column in (LABELS, None)
        described = listing.ingested if has_known_columns else ()
        manifest = next((split for split in described if split.paths == tuple(paths)), None)
        columns = config.image_column, config.label_column
        split = ParquetSplit(uri, paths, *columns, config.classes, train, listing.versions, manifest)
        split.notes = (*notes, *split.notes)
        return split


@dataclass(frozen=True)
class ParquetListing:
    """Parquet files of a folder.

    Args:
        paths: maps the path relative to the folder to the path in the file system; sorted.
        notes: one line for each kind of file that is not used.
        versions: maps the path in the file system to the file's version.
        ingested: splits whose files a manifest describes.
    """

    paths: dict[str, str]
    notes: tuple[str, ...]
    versions: dict[str, FileVersion]
    ingested: tuple[IngestedSplit, ...] = ()


def list_parquet_files(uri: str) -> ParquetListing:
    """List the Parquet files at a path or URI, sub-folders included."""
    system, info = stat_uri(uri)
    if info.type == fs.FileType.File:
        # a file that the user names is used whatever a manifest beside it says
        versions = _file_versions(system, {info.path: File(info.path, info.size, info.mtime_ns, None)}, {})
        return ParquetListing({info.path.rpartition("/")[2]: info.path}, (), versions)
    if info.type != fs.FileType.Directory:
        raise ConfigError(f"no file or folder {uri!r}; give a Parquet file or a folder of them")
    files = {file.path: file for file in list_files(uri).files}
    manifests = check_finished(system, info.path, files)
    parquet_paths = sorted(path for path in files if path.lower().endswith(ENDINGS))
    check_names(parquet_paths, uri)
    hashes = {folder: _hashes(folder, manifest) for folder, manifest in manifests.items()}
    paths = {path: f"{info.path}/{path}" for path in parquet_paths if not _is_excluded(path, hashes)}
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
    versions = _file_versions(system, used, _manifest_hashes(info.path, files, hashes))
    ingested = (split for folder in manifests for split in ingested_splits(f"{info.path}/{folder}", manifests[folder]))
    return ParquetListing(paths, (note,) if excluded else (), versions, tuple(ingested))


def _file_versions(
    system: fs.FileSystem, files: Mapping[str, File], hashes: Mapping[str, tuple[str, int | None]]
) -> dict[str, FileVersion]:
    """Map the path of each file to its version.

    Args:
        files: maps the path to the file as it is listed.
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


def _manifest_hashes(
    root: str, files: Mapping[str, File], hashes: Mapping[str, Mapping[str, str]]
) -> dict[str, tuple[str, int | None]]:
    """Map the full path of each file that a manifest hashes to its SHA-256 and the manifest's modification time."""
    return {
        # check_finished has refused folders without a manifest
        f"{root}/{path}": (sha256, files[f"{folder}{MANIFEST_FILE}"].mtime_ns)
        for folder, listed_files in hashes.items()
        for path, sha256 in listed_files.items()
        if sha256
    }


def _hashes(folder: str, manifest: Json) -> dict[str, str]:
    """Map the path of each file in a manifest to its SHA-256, "" if it has none."""
    return {f"{folder}{file['name']}": file.get("sha256", "") for file in files_of(manifest)}


def _is_excluded(path: str, hashes: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether a folder above the file has a manifest that does not list it."""
    return any(path.startswith(folder) and path not in listed for folder, listed in hashes.items())
