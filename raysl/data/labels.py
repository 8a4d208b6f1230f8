"""Labels that replace those of a dataset."""

import numpy as np

from raysl.data.split import Rows, Split
from raysl.hashing import Int64s


def with_labels(split: Split, label_type: str) -> Split:
    """The split with its own labels (`standard`), each sample's index (`sample_index`), or 0 for all (`zero`)."""
    return split if label_type == "standard" else _Relabelled(split, label_type == "sample_index")


class _Relabelled(Split):
    """A split whose labels name no classes: the index of each sample, or 0."""

    def __init__(self, split: Split, is_index: bool) -> None:
        self.split = split
        self.is_index = is_index
        self.unit_sizes = split.unit_sizes
        self.fingerprint = split.fingerprint
        self.classes = ()
        self.is_random_access = split.is_random_access
        self.num_sources = split.num_sources
        self.notes = split.notes

    def read(self, index: Int64s) -> Rows:
        rows = self.split.read(index)
        return Rows(rows.images, self.labels_of(index), rows.names, rows.partners)

    def labels_of(self, index: Int64s) -> Int64s:
        return index.astype(np.int64) if self.is_index else np.zeros(len(index), np.int64)

    def names_of(self, index: Int64s) -> list[str]:
        return self.split.names_of(index)
