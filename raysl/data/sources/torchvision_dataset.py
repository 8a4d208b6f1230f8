"""The classification datasets of torchvision, by name."""

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any, Literal

import numpy as np
from typing_extensions import override

from raysl.config.component import ASKS_TRUST
from raysl.config.ranges import Location
from raysl.data.source import ConfigError, DataConfig, Int64s, Source, Split, runs
from raysl.data.sources.image_files import FilesSplit
from raysl.data.sources.torchvision_special import CLEVR_DISTANCES, WHOLE, PCAMSplit, clevr_distances
from raysl.data.split import Encoded, LabelledSplit
from raysl.hashing import digest

Part = str | bool | None


@dataclass(frozen=True)
class _Layout:
    """The arguments and attributes of a dataset class of torchvision.

    Args:
        train, test: values of its argument `split`, or of `train` if they are bool; None: it has no parts, and takes no
            such argument.
        images: attribute with pixels uint8 [N, H, W] or of `channels`, or with paths of files, or with (path, label).
        labels: attribute with the labels; None if they are beside the paths.
        channels: order of the axes of an image's pixels; None if images are files.
    """

    train: Part
    test: Part
    images: str
    labels: str | None
    channels: str | None = None


_CIFAR = _Layout(True, False, "data", "targets", "HWC")
_MNIST = _Layout(True, False, "data", "targets", "HW")
LAYOUTS = {
    "CIFAR10": _CIFAR,
    "CIFAR100": _CIFAR,
    "CLEVRClassification": _Layout("train", "val", "_image_files", "_labels"),
    "Caltech101": _Layout(None, None, "", "y"),
    "Country211": _Layout("train", "test", "samples", None),
    "DTD": _Layout("train", "test", "_image_files", "_labels"),
    "EuroSAT": _Layout(None, None, "samples", None),
    "FGVCAircraft": _Layout("trainval", "test", "_image_files", "_labels"),
    "FashionMNIST": _MNIST,
    "Flowers102": _Layout("train", "test", "_image_files", "_labels"),
    "Food101": _Layout("train", "test", "_image_files", "_labels"),
    "GTSRB": _Layout("train", "test", "_samples", None),
    "Imagenette": _Layout("train", "val", "_samples", None),
    "KMNIST": _MNIST,
    "MNIST": _MNIST,
    "OxfordIIITPet": _Layout("trainval", "test", "_images", "_labels"),
    "PCAM": _Layout("train", "test", "", None),
    "RenderedSST2": _Layout("train", "test", "_samples", None),
    "STL10": _Layout("train", "test", "data", "labels", "CHW"),
    "SUN397": _Layout("Training_01", "Testing_01", "_image_files", "_labels"),
    "SVHN": _Layout("train", "test", "data", "labels", "CHW"),
    "StanfordCars": _Layout("train", "test", "_samples", None),
    "USPS": _MNIST,
}


class TorchvisionDataset(Source):
    """A dataset of `torchvision.datasets` with its train and test parts, from the files that torchvision wrote.

    Names: CIFAR10, CIFAR100, CLEVRClassification, Caltech101, Country211, DTD, EuroSAT, FGVCAircraft, FashionMNIST,
    Flowers102, Food101, GTSRB, Imagenette, KMNIST, MNIST, OxfordIIITPet, PCAM, RenderedSST2, STL10, SUN397, SVHN,
    StanfordCars, USPS. Image files, and the rows of PCAM, are read one by one; datasets that torchvision stores as
    arrays stay in the memory of each process that reads.

    All images of Caltech101 and EuroSAT are training ones, for `drawn` to draw from. Parts of SUN397 are lists in its
    folder, by default those of its first split, `SUN397/Training_01.txt` and `SUN397/Testing_01.txt`.
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
        validation_split: str | None = None
        """Further training images, behind those of `train_split`: benchmarks choose their settings on them where they
        can. For datasets of image files, such as val of DTD."""
        target: Literal["count", "distance"] = "count"
        """Label of CLEVRClassification: the number of objects, or the range, one of six, of the distance of the nearest
        one (VTAB, arXiv 1910.04867)."""

    @override
    def split(self, name: str) -> Split | None:
        layout = self._layout()
        chosen = self.config.train_split if name == "train" else self.config.test_split
        part = layout.train if name == "train" else layout.test
        if chosen is not None and isinstance(part, bool):
            raise ConfigError(
                f"data.{name}_split={chosen!r}: {self.config.dataset} has only train and test; leave it out"
            )
        part = part if chosen is None else chosen
        if part is None and name == "test":
            return None
        validation = self.config.validation_split if name == "train" else None
        if validation is not None and (layout.channels is not None or self.config.dataset == "PCAM"):
            raise ConfigError(f"data.validation_split={validation!r}: {self.config.dataset} is not stored as files")
        if layout.channels is not None:
            return _ArraysSplit(self.config.dataset, self.config.root, part, self.config.download)
        if self.config.dataset == "PCAM":
            return PCAMSplit(_open(self.config.dataset, self.config.root, part, self.config.download))
        files, labels, classes = self._files(part)
        if validation is None:
            return FilesSplit(self.config.root, files, labels, classes)
        more, its_labels, _ = self._files(validation)
        if shared := set(files) & set(more):
            raise ConfigError(
                f"data.validation_split={validation!r}: {len(shared):,} of its {len(more):,} images are in the part "
                f"{part!r}, such as {min(shared)}; set data.train_split= to one without them"
            )
        split = FilesSplit(self.config.root, files + more, np.concatenate([labels, its_labels]), classes)
        split.num_validation = len(more)
        return split

    def _files(self, part: Part) -> tuple[list[str], Int64s, tuple[str, ...]]:
        """Return the paths below `root` of a part, their labels int64 [N], and names of the classes."""
        config = self.config
        if part is not None and LAYOUTS[config.dataset].train is None:
            raise ConfigError(
                f"{config.dataset} has no part {part!r}; leave out data.train_split= and data.test_split="
            )
        paths: Sequence[Any]
        if config.dataset in WHOLE:
            dataset = _open(config.dataset, config.root, None, config.download)
            paths, labels = WHOLE[config.dataset](dataset, part)
        else:
            dataset = _open(config.dataset, config.root, part, config.download)
            paths, labels = _content(dataset, LAYOUTS[config.dataset])
        if config.dataset == "CLEVRClassification" and config.target == "distance":
            labels, classes = clevr_distances(dataset, paths), CLEVR_DISTANCES
        else:
            classes = _classes(dataset, labels)
        files = [os.path.relpath(path, config.root).replace(os.sep, "/") for path in paths]
        return files, labels, classes

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


class _ArraysSplit(LabelledSplit):
    def __init__(self, dataset: str, root: str, part: Part, download: bool) -> None:
        if download:
            _open(dataset, root, part, download=True)
        # not the pixels themselves: a split is sent to other processes, which open the dataset on their own
        self.settings = (dataset, root, part)
        _, self.labels, self.classes = _arrays(*self.settings)
        self.unit_sizes = runs(len(self.labels))
        self.fingerprint = digest(f"{dataset} {part}", self.labels.tobytes())

    @override
    def content(self) -> Mapping[str, str]:
        pixels, _, _ = _arrays(*self.settings)
        return {"pixels": digest(np.ascontiguousarray(pixels).data)}

    @override
    def images_of(self, index: Int64s) -> list[Encoded]:
        pixels, _, _ = _arrays(*self.settings)
        return [pixels[row] for row in index.tolist()]

    @override
    def name_of(self, row: int) -> str:
        dataset, _, part = self.settings
        word = part if isinstance(part, str) else ("train" if part else "test")
        return f"{dataset} {word} {row}"


@lru_cache(maxsize=4)
def _arrays(dataset: str, root: str, part: Part) -> tuple[np.ndarray, Int64s, tuple[str, ...]]:
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
    labels = attrgetter(layout.labels)(dataset)
    if any(label is None for label in labels):
        raise ConfigError(f"this part of torchvision's {type(dataset).__name__} has no labels; give another one")
    return images, np.asarray(labels, dtype=np.int64)


def _classes(dataset: Any, labels: Int64s) -> tuple[str, ...]:
    """Return the names of the classes, or their numbers if torchvision has no names."""
    names = vars(type(dataset)).get("classes") or vars(dataset).get("classes")
    if names is None:
        return tuple(str(label) for label in range(int(labels.max(initial=-1)) + 1))
    return tuple(name if isinstance(name, str) else ", ".join(name) for name in names)


def _open(dataset: str, root: str, part: Part, download: bool) -> Any:
    """Open a dataset with torchvision."""
    import torchvision.datasets

    kind = vars(torchvision.datasets)[dataset]
    chosen = {} if part is None else {"train" if isinstance(part, bool) else "split": part}
    try:
        # torchvision's Caltech101 would make the folder
        if dataset == "Caltech101" and not download and not os.path.isdir(os.path.join(root, "caltech101")):
            raise RuntimeError("Dataset not found")
        return kind(root, **chosen, download=download)
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
