"""Patch Camelyon: images and labels in HDF5 files, as torchvision downloads them."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from raysl.data.source import Int64s, Rows, Split, runs

CLASSES = ("no tumour", "tumour")


class PCAMSplit(Split):
    """A part of Patch Camelyon (Veeling et al. 2018, arXiv 1806.03962): 96 x 96 images with or without a tumour.

    Args:
        dataset: torchvision's PCAM, opened.
    """

    is_random_access = True
    classes = CLASSES

    def __init__(self, dataset: Any) -> None:
        files = {kind: Path(dataset._base_folder) / file[0] for kind, file in dataset._FILES[dataset._split].items()}
        self.part, self.images = dataset._split, files["images"]
        with dataset.h5py.File(files["targets"]) as stored:
            self.labels = np.asarray(stored["y"][:], np.int64).reshape(-1)
        self.unit_sizes = runs(len(self.labels))
        self.fingerprint = hashlib.sha256(f"PCAM {self.part}".encode() + self.labels.tobytes()).hexdigest()[:16]

    @override
    def written(self, ask: bool = True) -> str:
        return f"{self.images.stat().st_mtime_ns:x}"

    @override
    def read(self, index: Int64s) -> Rows:
        import h5py

        # opened for each read: an open HDF5 file cannot be sent to the processes that read
        with h5py.File(self.images) as stored:
            images = [np.asarray(stored["x"][row]) for row in index.tolist()]
        return Rows(images, self.labels_of(index), self.names_of(index))

    @override
    def labels_of(self, index: Int64s) -> Int64s:
        return self.labels[index]

    @override
    def names_of(self, index: Int64s) -> list[str]:
        return [f"PCAM {self.part} {row}" for row in index.tolist()]
