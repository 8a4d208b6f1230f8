"""The handwritten digits in scikit-learn: real images without a download."""

from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from typing_extensions import override

from raysl.data.source import ConfigError, DataConfig, Rows, Source, Split, runs
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


class _DigitsSplit(Split):
    classes = tuple(str(digit) for digit in range(10))
    is_random_access = True

    def __init__(self, is_test: bool) -> None:
        self.is_test = is_test
        self.unit_sizes = runs(len(self._members))
        self.fingerprint = f"digits:{'test' if is_test else 'train'}"

    def read(self, index: Int64s) -> Rows:
        rows = self._members[index]
        return Rows(
            images=list(self._images[rows]),
            labels=self._labels[rows],
            names=[f"digit {row}" for row in rows.tolist()],
        )

    def __getstate__(self) -> dict[str, object]:
        return {name: self.__dict__[name] for name in ("is_test", "unit_sizes", "fingerprint")}

    @cached_property
    def _members(self) -> Int64s:
        """Rows of this split, in the order of the whole set."""
        held_out = np.zeros(len(self._labels), bool)
        for digit in range(10):
            rows = np.flatnonzero(self._labels == digit)
            held_out[rows[permutation(len(rows), digit)[: len(rows) // 5]]] = True
        return np.flatnonzero(held_out == self.is_test)

    @cached_property
    def _images(self) -> np.ndarray:
        return np.round(self._bundle[0] * (255 / 16)).astype(np.uint8)

    @cached_property
    def _labels(self) -> Int64s:
        return self._bundle[1].astype(np.int64)

    @cached_property
    def _bundle(self) -> tuple[np.ndarray, np.ndarray]:
        table = np.loadtxt(_file(), delimiter=",")  # [N, 64 + 1]
        return table[:, :-1].reshape(-1, 8, 8), table[:, -1]


def _file() -> Path:
    """Return the file of the digits in scikit-learn, without importing it, which takes a second."""
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ConfigError("the digits are part of scikit-learn, which is not installed here: pip install scikit-learn")
    return Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
