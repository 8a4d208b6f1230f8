"""Ground truth of instance retrieval, also of pickle files without running code, and the images below a folder."""

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raysl.data.sources.listing import is_image, list_files
from raysl.errors import ConfigError
from raysl.hashing import Int64s
from raysl.storage.folder import Folder

Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels of the image as it is stored."""


@dataclass(frozen=True)
class Images:
    """Image files of one folder.

    Args:
        paths: below it.
        boxes: part of each that counts; empty, or None for an image, for the whole image.
    """

    uri: str
    paths: tuple[str, ...]
    boxes: tuple[Box | None, ...] = ()


@dataclass(frozen=True)
class Task:
    """Queries with their right results.

    Args:
        name: such as `hard`; empty where a dataset has one task.
        queries: int64 [Q], places in the list of queries.
        right: numbers of the right images in the database, int64 [P] for each query.
        ignored: numbers of images that get no rank, likewise.
    """

    name: str
    queries: Int64s
    right: tuple[Int64s, ...]
    ignored: tuple[Int64s, ...]

    def __post_init__(self) -> None:
        assert len(self.queries) == len(self.right) == len(self.ignored)


@dataclass(frozen=True)
class InstanceSet:
    """A dataset: database, queries and tasks.

    Args:
        database: images that are searched.
        queries: images that are looked for, apart from it or in it.
        tasks: each its own number.
    """

    database: Images
    queries: Images
    tasks: tuple[Task, ...]


class ImageFiles:
    """The images below a folder, by name."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.paths = sorted(file.path for file in list_files(uri).files if is_image(file.path))
        if not self.paths:
            raise ConfigError(f"no images below {uri!r}; give the folder of the whole dataset")
        self._by_stem: dict[str, list[str]] = {}
        for path in self.paths:
            self._by_stem.setdefault(_without_ending(path).rpartition("/")[2], []).append(path)

    def find(self, names: Sequence[str], listed_in: str) -> tuple[str, ...]:
        """Return the path of each name, which may lack folders in front and the ending.

        Args:
            names: names that some list has.
        """
        matches = [self._matching(name) for name in names]
        bad = [(name, paths) for name, paths in zip(names, matches, strict=True) if len(paths) != 1]
        if bad:
            name, paths = bad[0]
            what = f"may be {' or '.join(paths[:2])}" if paths else "is not there"
            raise ConfigError(
                f"{len(bad):,} of the {len(names):,} images that {listed_in} lists are not one file each below "
                f"{self.uri!r}: {name!r} {what}; is the download whole, and nothing else in it?"
            )
        return tuple(paths[0] for paths in matches)

    def _matching(self, name: str) -> list[str]:
        stem = _without_ending(name.replace("\\", "/").strip("/"))
        paths = self._by_stem.get(stem.rpartition("/")[2], [])
        # with the slash in front, a/1 does not match ba/1
        return [path for path in paths if f"/{_without_ending(path)}".endswith(f"/{stem}")]


def folder_of(path: str | None, dataset: str) -> Folder:
    """Return the folder of a dataset."""
    if path is None:
        raise ConfigError(f"{dataset} needs path=, the folder of its images and ground truth")
    folder = Folder(path)
    if not folder.exists():
        raise ConfigError(f"no folder {folder.uri!r}; give path= the folder of {dataset}")
    return folder


def places(values: Any, num: int, where: str, first: int = 0) -> Int64s:
    """Parse numbers of images in a database of `num`, int64 [P], that are counted from `first`."""
    array = np.atleast_1d(np.asarray(values))
    if array.size == 0:
        return np.empty(0, np.int64)
    # Matlab stores whole numbers as floats
    if array.dtype.kind not in "iuf" or array.ndim != 1 or (array != array.astype(np.int64)).any():
        raise ConfigError(f"{where}: {str(values)[:60]} is not a list of integers; fetch it anew")
    numbers: Int64s = array.astype(np.int64) - first
    if numbers.min() < 0 or numbers.max() >= num:
        bad = int(numbers.min() if numbers.min() < 0 else numbers.max()) + first
        raise ConfigError(f"{where}: image {bad} is none of {first} to {num - 1 + first}; fetch it anew")
    return numbers


def box_of(values: Any, where: str) -> Box:
    """Parse a box of four numbers."""
    edges = np.asarray(values, dtype=object).reshape(-1).tolist()
    try:
        first, top, last, bottom = (float(value) for value in edges)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {str(values)[:60]} is not a box of four numbers; fetch it anew") from error
    if not (first < last and top < bottom):  # NaN is out
        raise ConfigError(f"{where}: the box {[first, top, last, bottom]} holds nothing; fetch it anew")
    return first, top, last, bottom


def _without_ending(path: str) -> str:
    return path.rpartition(".")[0] if is_image(path) else path


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
