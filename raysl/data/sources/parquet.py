"""Parquet files with a column of encoded images."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from pyarrow import fs

from raysl.config.locations import Location
from raysl.config.schema import ConfigError, DataConfig
from raysl.data.ingested import check_finished
from raysl.data.source import Source, Split
from raysl.data.sources.parquet_split import ParquetSplit
from raysl.storage import absolute, info_of, telling

HELD_OUT = ("val", "test")


class Parquet(Source):
    """A Parquet file or a folder of them; the row group is the read unit.

    In a folder, the files whose names, or those of their folders, begin with `train` are the training images, and `val`
    or else `test` the held-out ones; where no name begins with `train`, all files but the `val` and `test` ones are.

    Labels are integers, names (sorted, and numbered by the training images), or lists with one of each class:
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
        label_column: str = "label"
        """Column of labels, null where unlabelled; without it nothing is labelled."""
        classes: tuple[str, ...] = ()
        """Names of the classes, by label. Default: those that the files give, else the labels themselves."""

        def __post_init__(self) -> None:
            super().__post_init__()
            for name in ("path", "train", "test"):  # workers run in other directories
                if getattr(self, name) is not None:
                    object.__setattr__(self, name, absolute(getattr(self, name)))

    def split(self, name: str) -> Split | None:
        """See `Source.split`."""
        if name == "train":
            return self._train
        if self.config.test is not None:
            uri, files = self.config.test, list(_files(self.config.test).values())
        elif self.config.path is not None:
            uri, parts = self.config.path, _by_part(_files(self.config.path))
            files = next((parts[part] for part in HELD_OUT if parts[part]), [])
        else:
            return None
        return self._made(uri, files, self._training_classes) if files else None

    @cached_property
    def _train(self) -> ParquetSplit:
        if self.config.train is not None:
            return self._made(self.config.train, _files(self.config.train).values())
        if self.config.path is None:
            raise ConfigError("parquet needs data.path= or data.train=, a Parquet file or a folder of them")
        parts = _by_part(_files(self.config.path))
        chosen = parts["train"] or parts["other"]
        if not chosen:
            raise ConfigError(f"{self.config.path!r} holds val and test files alone; give data.train=")
        return self._made(self.config.path, chosen)

    @property
    def _training_classes(self) -> tuple[str, ...]:
        """Classes that number the held-out images; none where these are alone, or where the settings name them."""
        is_alone = self.config.train is None and self.config.path is None
        return () if self.config.classes or is_alone else self._train.classes

    def _made(self, uri: str, files: Iterable[str], training: tuple[str, ...] = ()) -> ParquetSplit:
        config = self.config
        return ParquetSplit(uri, files, config.image_column, config.label_column, config.classes, training)


def _by_part(files: dict[str, str]) -> dict[str, list[str]]:
    """Files by what the name of the file, or of the folder it is in, begins with."""
    parts: dict[str, list[str]] = {"train": [], "val": [], "test": [], "other": []}
    for inner, path in files.items():
        names = inner.split("/")[::-1]
        part = next((part for name in names for part in ("train", *HELD_OUT) if name.startswith(part)), "other")
        parts[part].append(path)
    return parts


def _files(uri: str) -> dict[str, str]:
    """Parquet files at a place, by their path below it."""
    system, info = info_of(uri)
    if info.type == fs.FileType.File:
        return {_base(info.path): info.path}
    if info.type != fs.FileType.Directory:
        raise ConfigError(f"no file or folder {uri!r}; give data.path= a Parquet file or a folder of them")
    with telling("read", uri):
        entries = system.get_file_info(fs.FileSelector(info.path, recursive=True))
    check_finished(system, {entry.path: entry.size for entry in entries if entry.type == fs.FileType.File})
    parquet = sorted(entry.path for entry in entries if entry.path.endswith(".parquet"))
    if not parquet:
        raise ConfigError(f"no .parquet files in {uri!r}, sub-folders included")
    return {path[len(info.path) :].strip("/"): path for path in parquet}


def _base(path: str) -> str:
    return path.rsplit("/", 1)[-1]
