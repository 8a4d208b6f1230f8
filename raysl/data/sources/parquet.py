"""Parquet files with a column of encoded images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from raysl.config.ranges import Location
from raysl.config.schema import DataConfig
from raysl.data.source import Source, Split
from raysl.data.sources.class_names import LABELS
from raysl.data.sources.parquet_files import Files, Known, found_files
from raysl.data.sources.parquet_split import ParquetSplit
from raysl.data.sources.part_names import Chosen, chosen, held_out_notes
from raysl.errors import ConfigError


class Parquet(Source):
    """A Parquet file or a folder of them; the row group is the read unit.

    In a folder, the files whose names, or those of their folders, begin or end with `train` are the training images,
    and `val` or else `test` the held-out ones (`valid`, `validation`, `training` and `testing` mean the same); where no
    file is called `train`, all but the held-out ones are. Of what `raysl ingest` wrote, the files that its manifest
    lists count.

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
        label_column: str | None = LABELS
        """Column of labels, null where unlabelled. The default may be absent, then nothing is labelled, any other may
        not; null: nothing is labelled."""
        classes: tuple[str, ...] = ()
        """Names of the classes, by label. Default: those that the files give, else the labels themselves."""

    def split(self, name: str) -> Split | None:
        """See `Source.split`."""
        if name == "train":
            return self._train
        if self.config.test is not None:
            uri, files = self.config.test, found_files(self.config.test)
            return self._made(uri, list(files.paths.values()), files.known, files.notes, self._training_classes)
        if self.config.path is None or not self._parts.test:
            return None
        return self._made(self.config.path, self._parts.test, self._files.known, (), self._training_classes)

    @cached_property
    def _train(self) -> ParquetSplit:
        if (uri := self.config.train) is not None:
            files = found_files(uri)
            notes = (*files.notes, *held_out_notes(files.paths, uri))
            return self._made(uri, list(files.paths.values()), files.known, notes)
        if self.config.path is None:
            raise ConfigError("parquet needs data.path= or data.train=, a Parquet file or a folder of them")
        if not self._parts.train:
            raise ConfigError(f"{self.config.path!r} holds val and test files alone; give data.train=")
        return self._made(self.config.path, self._parts.train, self._files.known, self._parts.notes)

    @cached_property
    def _files(self) -> Files:
        """Files in `path`."""
        return found_files(self.config.path)

    @cached_property
    def _parts(self) -> Chosen[str]:
        """Files in `path` by what they are for."""
        parts = chosen(self._files.paths.items(), self.config.path)
        return Chosen(parts.train, parts.test, (*self._files.notes, *parts.notes))

    @property
    def _training_classes(self) -> tuple[str, ...]:
        """Classes that number the held-out images; none where these are alone, or where the settings name them."""
        is_alone = self.config.train is None and self.config.path is None
        return () if self.config.classes or is_alone else self._train.classes

    def _made(
        self,
        uri: str,
        files: Sequence[str],
        known: Mapping[str, Known],
        notes: tuple[str, ...],
        training: tuple[str, ...] = (),
    ) -> ParquetSplit:
        config = self.config
        split = ParquetSplit(uri, files, config.image_column, config.label_column, config.classes, training, known)
        split.notes = notes
        return split
