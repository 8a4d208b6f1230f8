"""Hugging Face datasets: from the hub, from files, or saved to disk."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import fs
from typing_extensions import override

from raysl.config.ranges import Location
from raysl.data.source import ConfigError, DataConfig, Int64s, Source, Split, runs
from raysl.data.sources.class_names import (
    LABELS,
    check_range,
    check_seen,
    class_names,
    number_labels,
    parse_labels,
    renumber,
)
from raysl.data.sources.image_files import read_if_there
from raysl.data.sources.listing import composed
from raysl.data.sources.parquet_columns import check_columns_exist, is_label_type
from raysl.data.sources.parquet_labels import integers
from raysl.data.sources.part_names import held_out_part, parse_part_name, training_part, trainval_notes
from raysl.data.sources.versions import read_versions, versions_digest
from raysl.data.split import Encoded, LabelledSplit
from raysl.errors import DamagedData
from raysl.hashing import digest
from raysl.storage.addresses import open_uri
from raysl.storage.foreign import check_listed

DEFAULT_TRAIN = "train"


class HuggingFace(Source):
    """A dataset that the package `datasets` loads; needs `pip install datasets`.

    A dataset of the hub is downloaded into the cache of that package, on each node unless they share the cache; a local
    folder was written by `save_to_disk`, or has files that `load_dataset` can read. Images stay encoded.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """Which dataset, and which of its columns and splits to read."""

        name: str = "hugging_face"
        dataset: Location | None = None
        """Name on the hub, or local folder."""
        subset_name: str | None = None
        """Configuration of the dataset, if it has several."""
        image_column: str = "image"
        """Column of images, or of encoded images (binary)."""
        label_column: str | None = LABELS
        """Column of class labels, numbers or names, null where unlabelled. If the default is missing, nothing is
        labelled; any other must exist; null: nothing is labelled."""
        train_split: str = DEFAULT_TRAIN
        """Training split. If the default is missing, one with a similar name, such as Training."""
        test_split: str | None = None
        """Held-out split. Default: the one called validation, val or valid, else test or testing."""

        @override
        def is_place(self, field: str, text: str) -> bool:
            # A dataset that is not a local folder is a name on the hub.
            return field != "dataset" or os.path.exists(os.path.expanduser(text))

    @override
    def split(self, name: str) -> Split | None:
        config = self.config
        if config.dataset is None:
            raise ConfigError("hugging_face needs data.dataset=, a name on the hub or a local folder")
        parts = self._parts
        part = self._train_part if name == "train" else self._test_part
        if part is None:
            return None
        if part not in parts:
            raise ConfigError(
                f"{config.dataset!r} has no split {part!r}; its splits: {', '.join(parts)}; set data.{name}_split="
            )
        has_training = name == "test" and self._train_part in parts
        split = _TableSplit(config, parts, part, _TableSplit(config, parts, self._train_part) if has_training else None)
        if name == "test":
            return split
        unused = [other for other in parts if other != part]
        if unused and self._test_part is None:
            split.notes = (
                f"{config.dataset!r} has no split that is called held-out; its splits {', '.join(unused)} are not "
                "used: give data.test_split= to measure on one",
            )
        elif config.train_split == DEFAULT_TRAIN and config.test_split is None:
            split.notes = tuple(trainval_notes(self._meant, config.dataset, "_split"))
        return split

    @cached_property
    def _parts(self) -> dict[str, Any]:
        """The tables of all splits."""
        return _load(self.config.dataset, self.config.subset_name)

    @property
    def _train_part(self) -> str:
        chosen: str = self.config.train_split
        return chosen if chosen in self._parts or chosen != DEFAULT_TRAIN else self._called(training_part) or chosen

    @property
    def _test_part(self) -> str | None:
        chosen: str | None = self.config.test_split
        return chosen or self._called(held_out_part)

    def _called(self, choose: Callable[[Mapping[str, str]], str | None]) -> str | None:
        """Return the first split whose name means the chosen part."""
        return self._meant.get(choose(self._meant) or "")

    @cached_property
    def _meant(self) -> dict[str, str]:
        """The first split of each part that names mean; without train if trainval is chosen."""
        is_trainval = parse_part_name(self.config.train_split) == "trainval"
        meant: dict[str, str] = {}
        for split in self._parts:
            part = parse_part_name(split)
            if part is not None and not (is_trainval and part == "train"):
                meant.setdefault(part, split)
        return meant


class _TableSplit(LabelledSplit):
    def __init__(
        self, config: "HuggingFace.Config", parts: Mapping[str, Any], part: str, train: "_TableSplit | None" = None
    ) -> None:
        assert config.dataset is not None
        dataset, table = config.dataset, parts[part]
        # not the table itself: a split is sent to other processes, which open the table on their own
        self.table_key = (dataset, config.subset_name, part, config.image_column, table._fingerprint)
        if not len(table):
            raise ConfigError(f"the split {part!r} of {config.dataset!r} has no rows")
        _check_image(table, config)
        self.unit_sizes = runs(len(table))
        origin = f"the split {part!r} of {dataset!r}"
        labels, names = _labels(table, config)
        self.kind = "names" if names else "texts" if labels.dtype.kind == "U" else "numbers"
        self.labels, self.classes = _numbered(labels, names, origin, train)
        described = f"{table.features} {table.data.nbytes} {config.image_column}"
        self.fingerprint = digest(described, self.labels.tobytes())
        files = [(fs.LocalFileSystem(), file["filename"]) for file in table.cache_files] if _was_saved(dataset) else []
        self._written = versions_digest([table._fingerprint, *read_versions(files)])
        if train is not None and self.kind == train.kind == "numbers":
            check_seen(self, train, origin)

    @override
    def written(self, ask: bool = True) -> str:
        # From the fingerprint that `datasets` makes of the files that it read.
        return self._written

    @override
    def images_of(self, index: Int64s) -> list[Encoded]:
        return [_encoded(entry) for entry in _images(*self.table_key)[index.tolist()].column(0).to_pylist()]

    @override
    def name_of(self, row: int) -> str:
        dataset, _, part, *_ = self.table_key
        return f"{dataset} {part} {row}"


def _load(dataset: str, subset_name: str | None) -> dict[str, Any]:
    """Return the tables of a dataset by the names of its splits; files that were written anew are read anew."""
    return _loaded(dataset, subset_name, tuple(_versions(dataset)))


def _versions(dataset: str) -> Iterator[tuple[str, int, int]]:
    """Yield path, size and time of the files of a local dataset."""
    for folder, _, names in os.walk(os.path.expanduser(dataset)):
        for name in sorted(names):
            with suppress(FileNotFoundError):  # of a link that leads nowhere
                status = os.stat(path := os.path.join(folder, name))
                yield path, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=4)
def _loaded(dataset: str, subset_name: str | None, versions: tuple[tuple[str, int, int], ...]) -> dict[str, Any]:
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(f"hugging_face cannot import datasets ({error}); run `pip install datasets`") from error
    if dataset.startswith(("/", ".", "~")) and not os.path.exists(dataset):
        raise ConfigError(f"no folder {dataset!r}; give data.dataset= a folder, or a name on the hub")
    was_saved = _was_saved(dataset)
    if was_saved and subset_name is not None:
        raise ConfigError(f"data.subset_name={subset_name!r}: {dataset!r} was saved as one dataset; leave it out")
    try:
        loaded = datasets.load_from_disk(dataset) if was_saved else _load_dataset(datasets, dataset, subset_name)
    except (OSError, ValueError, IndexError, pa.ArrowException, datasets.exceptions.DatasetsError) as error:
        cause = error.__cause__ or error
        reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        raise ConfigError(f"cannot load {dataset!r} with datasets: {reason}") from error
    return dict(loaded) if isinstance(loaded, dict) else {"train": loaded}


def _load_dataset(datasets: Any, dataset: str, subset_name: str | None) -> Any:
    """Load a dataset without the code that it may bring, which versions before 4 would run."""
    is_old = int(datasets.__version__.partition(".")[0]) < 4
    return datasets.load_dataset(dataset, subset_name, **({"trust_remote_code": False} if is_old else {}))


def _was_saved(dataset: str) -> bool:
    """Whether `save_to_disk` wrote it."""
    return any(os.path.exists(f"{dataset}/{name}") for name in ("state.json", "dataset_dict.json"))


@lru_cache(maxsize=4)
def _images(dataset: str, subset_name: str | None, part: str, column: str, fingerprint: str) -> Any:
    """Return the encoded images of a split as an Arrow table of one column.

    Args:
        fingerprint: that of the table whose labels are in use. Of a table that was not saved it is only part of the
            key of this cache, since it may differ between machines.

    Raises:
        DamagedData: if the table was saved anew since.
    """
    import datasets

    table = _load(dataset, subset_name)[part]
    if _was_saved(dataset) and table._fingerprint != fingerprint:
        raise DamagedData(f"the dataset {dataset!r} was written anew while it was in use; start again")
    table = table.select_columns([column])
    if isinstance(table.features[column], datasets.Image):
        table = table.cast_column(column, datasets.Image(decode=False))
    return table.with_format("arrow")


def _encoded(entry: Any) -> Encoded:
    """Return an encoded image from binary, or from a struct of its bytes or path."""
    if entry is None or isinstance(entry, bytes):
        return entry
    if entry["bytes"] is not None:
        return bytes(entry["bytes"])
    if entry["path"] is None:
        return None
    # the maker of the dataset chose this address, so it is opened only if that can do no more than read
    check_listed(entry["path"], "the dataset")
    return read_if_there(*open_uri(entry["path"]))


def _check_image(table: Any, config: "HuggingFace.Config") -> None:
    import datasets

    check_columns_exist(repr(config.dataset), list(table.features), config.image_column, config.label_column)
    kind = table.features[config.image_column]
    is_binary = isinstance(kind, datasets.Value) and kind.dtype in ("binary", "large_binary")
    if not is_binary and not isinstance(kind, datasets.Image):
        raise ConfigError(
            f"{config.dataset!r}: column {config.image_column!r} holds {kind}, not images; set data.image_column="
        )


def _labels(table: Any, config: "HuggingFace.Config") -> tuple[np.ndarray, tuple[str, ...]]:
    """Return labels, int64 [N] with -1 where unlabelled or text [N], and the names of numbers, if there are any."""
    import datasets

    column = config.label_column
    if column is None or column not in table.features:
        return np.full(len(table), -1, np.int64), ()
    kind = table.features[column]
    origin, is_named = repr(config.dataset), isinstance(kind, datasets.ClassLabel)
    type_ = kind.pa_type if isinstance(kind, datasets.Value) else pa.null()
    if not is_named and not is_label_type(type_):
        raise ConfigError(
            f"{origin}: column {column!r} holds {kind}, not class labels, numbers or names; set data.label_column= "
            "to another column, or to null for unlabelled images"
        )
    values = table.select_columns([column]).with_format("arrow")[:].column(0)
    if is_named or pa.types.is_integer(type_):
        return integers(values, origin), tuple(map(composed, kind.names)) if is_named else ()
    return parse_labels(values.to_pylist(), origin, remedy="make the column one of ClassLabel"), ()


def _numbered(
    labels: np.ndarray, names: tuple[str, ...], origin: str, train: _TableSplit | None
) -> tuple[Int64s, tuple[str, ...]]:
    """Return labels as numbers int64 [N], and the names of their classes, which are those of the training images."""
    known = train.classes if train is not None else ()
    classes = known or names or class_names(labels)
    if train is not None and train.kind == "texts" and not names:
        labels = np.where(labels < 0, "", labels.astype(str)) if labels.dtype.kind != "U" else labels
    if labels.dtype.kind == "U":
        return number_labels(labels, classes, origin), classes
    check_range(int(labels.min()), int(labels.max()), origin, len(names or classes))
    return renumber(labels, names, classes, origin), classes
