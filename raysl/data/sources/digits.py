"""The handwritten digits in scikit-learn: real images without a download."""

from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from typing_extensions import override

from raysl.data.source import ConfigError, DataConfig, Source, Split, runs
from raysl.data.split import Encoded, LabelledSplit
from raysl.hashing import Int64s, permutation


class Digits(Source):
    """1,797 scans of handwritten digits, 8x8 pixels, 10 classes.

    Source: UCI optical recognition of handwritten digits (Alpaydin and Kaynak 1998), as bundled with scikit-learn.
    The split is fixed and stratified: the same fifth of each class is held out, for all seeds.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """The digits have only the common settings."""

        name: str = "digits"

    @override
    def split(self, name: str) -> Split | None:
        return _DigitsSplit(name == "test")


class _DigitsSplit(LabelledSplit):
    classes = tuple(str(digit) for digit in range(10))

    def __init__(self, is_test: bool) -> None:
        _, labels = _digits()
        held_out = np.zeros(len(labels), bool)
        for digit in range(10):
            rows = np.flatnonzero(labels == digit)
            held_out[rows[permutation(len(rows), digit)[: len(rows) // 5]]] = True
        self.rows = np.flatnonzero(held_out == is_test)
        self.labels = labels[self.rows]
        self.unit_sizes = runs(len(self.rows))
        self.fingerprint = f"digits:{'test' if is_test else 'train'}"

    @override
    def images_of(self, index: Int64s) -> list[Encoded]:
        return list(_digits()[0][self.rows[index]])

    @override
    def name_of(self, row: int) -> str:
        return f"digit {self.rows[row]}"


@lru_cache(maxsize=1)
def _digits() -> tuple[np.ndarray, Int64s]:
    """Return all images, uint8 [N, 8, 8], and their labels, int64 [N]."""
    table = np.loadtxt(_file(), delimiter=",")  # [N, 64 + 1]
    images = np.round(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return images, table[:, -1].astype(np.int64)


def _file() -> Path:
    """Return the file of the digits in scikit-learn, without importing it, which takes a second."""
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ConfigError("the digits are part of scikit-learn, which is not installed here: pip install scikit-learn")
    return Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
