"""Stored features, read into memory or, if they are large, mapped from this machine's disk."""

import hashlib
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor

from raysl.benchmarks.benchmark import FEATURES, FeatureSet
from raysl.benchmarks.features.store import ABOUT_FILE, Rows, Store, array_of
from raysl.errors import ConfigError
from raysl.process.temporary import node_folder
from raysl.storage.addresses import open_uri, storage_errors
from raysl.storage.folder import Folder

FEATURES_FILE, LABELS_FILE = "features.bin", "labels.npy"
MOST_IN_MEMORY = 1 << 30
"""Bytes of features that are held in memory; more of them are mapped from a file."""


class Features:
    """Features of a split in dataset order, read from disk at first use.

    Args:
        path: Parquet folder or file that holds them.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    @cached_property
    def features(self) -> Tensor:
        """float32 [N, D]; beyond a gibibyte they are mapped from a file of this machine's temporary folder, which is
        deleted with the tensor, and changes to it are not saved."""
        if not self.is_large:
            out = torch.empty(self.num_rows, self.width)
            first = 0
            for rows in self.batches():
                out[first : first + len(rows.features)] = torch.from_numpy(rows.features)
                first += len(rows.features)
            return out
        with tempfile.NamedTemporaryFile(prefix="raysl_features_", suffix=".bin") as file:
            for rows in self.batches():
                file.write(np.ascontiguousarray(rows.features, np.float32).data)
            file.flush()
            mapped = np.memmap(Path(file.name), np.float32, mode="r+", shape=(self.num_rows, self.width))
        return torch.from_numpy(mapped)  # the file has no name any more, and lasts as long as the tensor

    @cached_property
    def labels(self) -> Tensor:
        """int64 [N] or [N, K]."""
        return torch.from_numpy(np.concatenate([rows.labels for rows in self.batches(with_features=False)]))

    @cached_property
    def index(self) -> Tensor:
        """int64 [N]."""
        return torch.from_numpy(np.concatenate([rows.index for rows in self.batches(with_features=False)]))

    @cached_property
    def names(self) -> list[str]:
        """Where each image came from; empty if the files do not say."""
        return [name for rows in self.batches(with_features=False) for name in rows.names]

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, by label; empty if they are not known."""
        return () if self._store is None else self._store.about.classes

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self._shape[0]

    @property
    def width(self) -> int:
        """Number of features."""
        return self._shape[1]

    @property
    def is_large(self) -> bool:
        """Whether the features are too many for the memory of each process."""
        return self.num_rows * self.width * 4 > MOST_IN_MEMORY

    def batches(self, with_features: bool = True) -> Iterator[Rows]:
        """Yield the rows from disk, some hundreds at a time; without features these are [B, 0]."""
        return self._store.parts(with_features) if self._store is not None else iter([_read_file(self.path)])

    def write_arrays(self, folder: Path) -> None:
        """Write features and labels into a folder as files that can be mapped and loaded."""
        labels = []
        with (folder / FEATURES_FILE).open("wb") as file:
            for rows in self.batches():
                file.write(np.ascontiguousarray(rows.features, np.float32).data)
                labels.append(rows.labels)
        np.save(folder / LABELS_FILE, np.concatenate(labels))

    @cached_property
    def _shape(self) -> tuple[int, int]:
        if self._store is None:
            rows = next(self.batches())
            return rows.features.shape
        return self._store.about.num_rows, next(self._store.parts()).features.shape[1]

    @cached_property
    def _store(self) -> Store | None:
        """The folder of the features, unless they are a single file."""
        folder = Folder(self.path)
        return Store.open(folder) if folder.exists(ABOUT_FILE) else None


def read_features(path: str) -> Features:
    """Read what `raysl extract` wrote, or a Parquet file with the columns index, label and features.

    Raises:
        ConfigError: if there are none, they are of another raysl, or parts are missing.
    """
    features = Features(path=path)
    # look at the files now, so that errors are raised here and not at first use
    _ = features._shape
    return features


def _read_file(path: str) -> Rows:
    system, inside = open_uri(path)
    with storage_errors("read", path), system.open_input_file(inside) as file:
        table = pq.ParquetFile(file).read()
    if missing := [name for name in ("features", "label", "index") if name not in table.column_names]:
        raise ConfigError(f"{path} has no column {missing[0]!r}; give a file that raysl extract has written")
    names = table["name"].to_pylist() if "name" in table.column_names else []
    return Rows(array_of(table["index"]), names, array_of(table["label"]), array_of(table["features"]))


class StoredSet:
    """The features of a split by one network, at several stages.

    Args:
        stores: whole stores by the names of their stages.
        token: name of the files that the processes of a node share, see `raysl.process.temporary`; empty: each process
            has features of its own.
    """

    def __init__(self, stores: dict[str, Store], token: str = "") -> None:
        self.stores = stores
        self.token = token

    def load(self, stages: Sequence[str]) -> FeatureSet:
        """Read the features of some stages; the first one becomes `features` if `FEATURES` is not among them."""
        stored = {stage: self._load(self.stores[stage]) for stage in stages if stage in self.stores}
        features, labels = stored[FEATURES] if FEATURES in stored else next(iter(stored.values()))
        inner = {stage: values for stage, (values, _) in stored.items() if stage != FEATURES}
        return FeatureSet(features, labels(), inner)

    @property
    def any(self) -> Features:
        """Rows, labels and names."""
        return Features(path=next(iter(self.stores.values())).folder.uri)

    @property
    def is_shared(self) -> bool:
        """Whether the processes of a node share files of the features of any stage."""
        return bool(self.token) and any(Features(store.folder.uri).is_large for store in self.stores.values())

    def _load(self, store: Store) -> tuple[Tensor, Callable[[], Tensor]]:
        """Read features, and return a function that reads their labels, which all stages have alike; many features are
        fetched once for all processes of the node, which map the same file."""
        plain = Features(store.folder.uri)
        if not self.token or not plain.is_large:
            return plain.features, lambda: plain.labels
        name = hashlib.sha256(store.folder.uri.encode()).hexdigest()[:16]
        folder = node_folder(self.token, name, plain.write_arrays)
        features = _mapped(folder.path / FEATURES_FILE, (plain.num_rows, plain.width), folder.close)
        return features, lambda: torch.from_numpy(np.load(folder.path / LABELS_FILE))


def _mapped(path: Path, shape: tuple[int, int], close: Callable[[], None]) -> Tensor:
    """Map a file of float32; changes of the tensor are its own. `close` is called when the tensor is gone."""
    mapped = np.memmap(path, np.float32, mode="c", shape=shape)
    weakref.finalize(mapped, close)
    return torch.from_numpy(mapped)
