"""The classification datasets of torchvision, by name."""

import difflib
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np
from typing_extensions import override

from raysl.config.component import ASKS_TRUST
from raysl.config.ranges import Location
from raysl.config.schema import DataConfig
from raysl.data.source import Rows, Source, Split, runs
from raysl.data.sources.files import FilesSplit
from raysl.errors import ConfigError
from raysl.hashing import Int64s


@dataclass(frozen=True)
class _Layout:
    """The arguments and attributes of a dataset class of torchvision.

    Args:
        train, test: values of its argument `split`, or of `train` if they are bool.
        images: attribute with pixels uint8 [N, H, W] or of `channels`, or with paths of files, or with (path, label).
        labels: attribute with the labels; None if they are beside the paths.
        channels: order of the axes of an image's pixels; None if images are files.
    """

    train: str | bool
    test: str | bool
    images: str
    labels: str | None
    channels: str | None = None


_CIFAR = _Layout(True, False, "data", "targets", "HWC")
_MNIST = _Layout(True, False, "data", "targets", "HW")
LAYOUTS = {
    "CIFAR10": _CIFAR,
    "CIFAR100": _CIFAR,
    "Country211": _Layout("train", "test", "samples", None),
    "DTD": _Layout("train", "test", "_image_files", "_labels"),
    "FGVCAircraft": _Layout("trainval", "test", "_image_files", "_labels"),
    "FashionMNIST": _MNIST,
    "Flowers102": _Layout("train", "test", "_image_files", "_labels"),
    "Food101": _Layout("train", "test", "_image_files", "_labels"),
    "GTSRB": _Layout("train", "test", "_samples", None),
    "Imagenette": _Layout("train", "val", "_samples", None),
    "KMNIST": _MNIST,
    "MNIST": _MNIST,
    "OxfordIIITPet": _Layout("trainval", "test", "_images", "_labels"),
    "RenderedSST2": _Layout("train", "test", "_samples", None),
    "STL10": _Layout("train", "test", "data", "labels", "CHW"),
    "SVHN": _Layout("train", "test", "data", "labels", "CHW"),
    "StanfordCars": _Layout("train", "test", "_samples", None),
    "USPS": _MNIST,
}


class TorchvisionDataset(Source):
    """A dataset of `torchvision.datasets` with its train and test parts, from the files that torchvision wrote.

    Names: CIFAR10, CIFAR100, Country211, DTD, FGVCAircraft, FashionMNIST, Flowers102, Food101, GTSRB, Imagenette,
    KMNIST, MNIST, OxfordIIITPet, RenderedSST2, STL10, SVHN, StanfordCars, USPS. Image files are read one by one;
    datasets that torchvision stores as arrays stay in the memory of each process that reads.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """Which dataset, and where it lies."""

        name: str = "torchvision"
        dataset: str | None = None
        """Class of torchvision.datasets, such as CIFAR10."""
        root: Location | None = None
        """Local folder of torchvision's datasets; all nodes must have it."""
        download: bool = field(default=False, metadata=ASKS_TRUST)
        """Download the dataset into `root` if it is missing."""
        train_split: str | None = None
        """Training part, as torchvision names it, such as unlabeled of STL10. Default: train or trainval."""
        test_split: str | None = None
        """Held-out part, as torchvision names it. Default: test, for Imagenette val."""

    @override
    def split(self, name: str) -> Split | None:
        layout = self._layout()
        given = self.config.train_split if name == "train" else self.config.test_split
        part = layout.train if name == "train" else layout.test
        if given is not None and isinstance(part, bool):
            raise ConfigError(
                f"data.{name}_split={given!r}: {self.config.dataset} has only train and test; leave it out"
            )
        part = part if given is None else given
        if layout.channels is not None:
            return _ArraysSplit(self.config.dataset, self.config.root, part, self.config.download)
        dataset = _open(self.config.dataset, self.config.root, part, self.config.download)
        paths, labels = _content(dataset, layout)
        files = [os.path.relpath(path, self.config.root).replace(os.sep, "/") for path in paths]
        return FilesSplit(self.config.root, files, labels, _classes(dataset, labels))

    def _layout(self) -> _Layout:
        name, root = self.config.dataset, self.config.root
        if name is None or name not in LAYOUTS:
            known = {other.lower(): other for other in LAYOUTS}
            near = difflib.get_close_matches((name or "").lower(), known, n=1)
            hint = f"did you mean {known[near[0]]}?" if near else f"known: {', '.join(LAYOUTS)}"
            raise ConfigError(f"data.dataset={name!r} is not a dataset of torchvision that raysl reads; {hint}")
        if root is None or "://" in root:
            raise ConfigError(f"data.root={root!r}: torchvision needs a local folder; give data.root=/path/of/datasets")
        return LAYOUTS[name]


class _ArraysSplit(Split):
    is_random_access = True

    def __init__(self, dataset: str, root: str, part: str | bool, download: bool) -> None:
        if download:
            _open(dataset, root, part, download=True)
        self.settings = (dataset, root, part)
        _, labels, self.classes = _arrays(*self.settings)
        self.unit_sizes = runs(len(labels))
        self.fingerprint = hashlib.sha256(f"{dataset} {part}".encode() + labels.tobytes()).hexdigest()[:16]

    @override
    def content(self) -> Mapping[str, str]:
        pixels, _, _ = _arrays(*self.settings)
        return {"pixels": hashlib.sha256(np.ascontiguousarray(pixels).data).hexdigest()[:16]}

    @override
    def read(self, index: Int64s) -> Rows:
        pixels, _, _ = _arrays(*self.settings)
        return Rows([pixels[row] for row in index.tolist()], self.labels_of(index), self.names_of(index))

    @override
    def labels_of(self, index: Int64s) -> Int64s:
        return _arrays(*self.settings)[1][index]

    @override
    def names_of(self, index: Int64s) -> list[str]:
        dataset, _, part = self.settings
        word = part if isinstance(part, str) else ("train" if part else "test")
        return [f"{dataset} {word} {row}" for row in index.tolist()]


@lru_cache(maxsize=4)
def _arrays(dataset: str, root: str, part: str | bool) -> tuple[np.ndarray, Int64s, tuple[str, ...]]:
    """Pixels uint8 [N, H, W] or [N, H, W, 3], labels int64 [N], and names of the classes."""
    layout = LAYOUTS[dataset]
    loaded = _open(dataset, root, part, download=False)
    images, labels = _content(loaded, layout)
    pixels = np.asarray(images)
    return (pixels.transpose(0, 2, 3, 1) if layout.channels == "CHW" else pixels), labels, _classes(loaded, labels)


def _content(dataset: Any, layout: _Layout) -> tuple[Sequence[Any], Int64s]:
    """Return the images, as arrays or paths, and their labels int64 [N]."""
    images = attrgetter(layout.images)(dataset)
    if layout.labels is None:
        return [path for path, _ in images], np.array([label for _, label in images], np.int64)
    return images, np.asarray(attrgetter(layout.labels)(dataset), dtype=np.int64)


def _classes(dataset: Any, labels: Int64s) -> tuple[str, ...]:
    """Return the names of the classes, or their numbers if torchvision has no names."""
    names = vars(type(dataset)).get("classes") or vars(dataset).get("classes")
    if names is None:
        return tuple(str(label) for label in range(int(labels.max(initial=-1)) + 1))
    return tuple(name if isinstance(name, str) else ", ".join(name) for name in names)


def _open(dataset: str, root: str, part: str | bool, download: bool) -> Any:
    """Open a dataset with torchvision.

    Raises:
        ConfigError: if it is missing or damaged, or cannot be downloaded.
    """
    import torchvision.datasets

    kind = vars(torchvision.datasets)[dataset]
    try:
        return kind(root, **{"train" if isinstance(part, bool) else "split": part}, download=download)
    except (RuntimeError, OSError, ValueError, ImportError) as error:
        reason = str(error).replace(" You can use download=True to download it", "").strip(" .")
        if isinstance(error, ValueError | ImportError):
            raise ConfigError(f"cannot use torchvision's {dataset}, part {part!r}: {reason}") from error
        if download:
            raise ConfigError(f"cannot download torchvision's {dataset} into {root!r}: {reason}") from error
        raise ConfigError(
            f"torchvision's {dataset} is missing or incomplete in {root!r} ({reason}); "
            "set data.download=true to download it, or data.root= to its folder"
        ) from error
