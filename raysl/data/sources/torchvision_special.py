"""Torchvision's datasets that have no parts, more than one label an image, or HDF5 files."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from raysl.data.source import ConfigError, Int64s, runs
from raysl.data.split import Encoded, LabelledSplit
from raysl.hashing import digest

CLEVR_EDGES = (8.0, 8.5, 9.0, 9.5, 10.0)
CLEVR_DISTANCES: tuple[str, ...] = ("below 8", "8 to 8.5", "8.5 to 9", "9 to 9.5", "9.5 to 10", "10 or more")


def clevr_distances(dataset: Any, paths: Sequence[Any]) -> Int64s:
    """Return in which range of `CLEVR_DISTANCES` the nearest object of each image lies, int64 [N].

    The distance from the camera is the third of an object's `pixel_coords` (VTAB, Zhai et al. 2019, arXiv 1910.04867,
    task clevr-closest-object-distance).
    """
    part = paths[0].parent.name
    scenes = json.loads((paths[0].parents[2] / "scenes" / f"CLEVR_{part}_scenes.json").read_text())["scenes"]
    nearest = {
        scene["image_filename"]: min(object_["pixel_coords"][2] for object_ in scene["objects"]) for scene in scenes
    }
    distances = [nearest[path.name] for path in paths]
    return np.searchsorted(CLEVR_EDGES, distances, side="right").astype(np.int64)


def _caltech101(dataset: Any, part: str | None) -> tuple[list[str], Int64s]:
    """Return all images and labels; torchvision leaves out the folder BACKGROUND_Google."""
    folder = os.path.join(dataset.root, "101_ObjectCategories")
    pairs = zip(dataset.y, dataset.index, strict=True)
    paths = [os.path.join(folder, dataset.categories[label], f"image_{number:04d}.jpg") for label, number in pairs]
    return paths, np.array(dataset.y, np.int64)


def _sun397(dataset: Any, part: str) -> tuple[list[str], Int64s]:
    """Return the images that a list of the dataset's authors names, in its order: a line is /a/abbey/sun_aaa.jpg."""
    folder: Path = dataset._data_dir
    file = folder / f"{part}.txt"
    if not file.is_file():
        lists = ", ".join(sorted(path.stem for path in folder.glob("T*ing_[0-9][0-9].txt"))) or "none"
        raise ConfigError(
            f"SUN397 has no list {str(file)!r} (there: {lists}); put the lists of its Partitions.zip into that folder"
        )
    pairs = zip(dataset._image_files, dataset._labels, strict=True)
    labels = {path.relative_to(folder).as_posix(): label for path, label in pairs}
    names = [line.strip().lstrip("/") for line in file.read_text().splitlines() if line.strip()]
    if absent := [name for name in names if name not in labels]:
        raise ConfigError(
            f"{len(absent):,} of the {len(names):,} images that {file} lists are missing, first {absent[0]!r}; "
            "is the download complete?"
        )
    return [str(folder / name) for name in names], np.array([labels[name] for name in names], np.int64)


WHOLE: Mapping[str, Callable[[Any, Any], tuple[list[str], Int64s]]] = {
    "Caltech101": _caltech101,
    "SUN397": _sun397,
}
"""Images and labels of a part of datasets that torchvision opens as a whole, by their names."""


class PCAMSplit(LabelledSplit):
    """A part of Patch Camelyon (Veeling et al. 2018, arXiv 1806.03962): 96 x 96 images with or without a tumour."""

    classes = ("no tumour", "tumour")

    def __init__(self, dataset: Any) -> None:
        files = {kind: Path(dataset._base_folder) / file[0] for kind, file in dataset._FILES[dataset._split].items()}
        self.part, self.images = dataset._split, files["images"]
        with dataset.h5py.File(files["targets"]) as stored:
            self.labels = np.asarray(stored["y"][:], np.int64).reshape(-1)
        self.unit_sizes = runs(len(self.labels))
        self.fingerprint = digest(f"PCAM {self.part}", self.labels.tobytes())

    @override
    def written(self, ask: bool = True) -> str:
        return f"{self.images.stat().st_mtime_ns:x}"

    @override
    def images_of(self, index: Int64s) -> list[Encoded]:
        import h5py

        # opened for each read: an open HDF5 file cannot be sent to the processes that read
        with h5py.File(self.images) as stored:
            return [np.asarray(stored["x"][row]) for row in index.tolist()]

    @override
    def name_of(self, row: int) -> str:
        return f"PCAM {self.part} {row}"
