"""Ground truth in pickle files, read without running code that they name."""

import io
import pickle
from typing import Any

import numpy as np

from raysl.errors import ConfigError


def _latin1(text: str, encoding: str) -> bytes:
    """Stand in for the function that protocol 2 calls to make bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"an encoding {encoding!r}")
    return text.encode("latin1")


_SCALAR = np.float64(0).__reduce__()[0]
_RECONSTRUCT = np.zeros(1).__reduce__()[0]
_FROM_BUFFER = np.zeros(1).__reduce_ex__(5)[0]
_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): np.dtype,
    ("numpy", "ndarray"): np.ndarray,
    ("_codecs", "encode"): _latin1,
    **{(f"numpy.{core}.multiarray", "scalar"): _SCALAR for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _RECONSTRUCT for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _FROM_BUFFER for core in ("core", "_core")},
}


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Allow classes of arrays only."""
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not an array, dict, list, text or number")
        return _KNOWN[module, name]


def read_plain(content: bytes, where: str) -> Any:
    """Read a pickle file of dicts, lists, texts, numbers and numpy arrays, written by Python 2 or 3.

    Raises:
        ConfigError: if it names anything else, which is then not run, or is not a pickle file.
    """
    try:
        return _Plain(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise ConfigError(
            f"cannot read {where!r}: {reason}; give the ground truth as its authors publish it"
        ) from error
