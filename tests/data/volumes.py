"""Volumes of several frames or slices in a folder, read as one image each, for the tests of DICOM and of NIfTI."""

from pathlib import Path
from typing import Any

import numpy as np

from raysl.data.decode.decode import decode
from raysl.data.sources.image_folder import ImageFolder
from raysl.data.split import Split
from tests.data.samples import all_rows

CHANNELS: dict[str, Any] = {"channels": 1, "mean": (0.5,), "std": (0.25,), "value_range": (0.0, 1000.0)}


def folder(path: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def opened(path: Path | str, **settings: Any) -> Split:
    return ImageFolder(ImageFolder.Config(path=str(path), **{**CHANNELS, **settings})).required("train")


def pixels(split: Split, rows: list[int] | None = None) -> list[np.ndarray]:
    images = all_rows(split).images if rows is None else split.read(np.array(rows)).images
    return [decode(image, bands=split.bands)[0].numpy() for image in images]


def same(found: list[np.ndarray], expected: Any) -> bool:
    return len(found) == len(expected) and all(map(np.array_equal, found, expected))
