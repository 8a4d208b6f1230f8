"""Images with the depth of each pixel: NYU Depth v2 (Silberman et al., ECCV 2012) in the layout of BTS.

BTS (Lee et al. 2019, arXiv 1907.10326) has `rgb_00045.jpg` beside `sync_depth_00045.png` in a folder for each scene,
and lists with the address of both in a line. Depths are millimetres of 16 bits, and 0 where none was measured.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from raysl.benchmarks.dense.dataset_files import Files, PairedSplit, require, rows_of
from raysl.data.decode.decode import open_image
from raysl.data.decode.pixels import CorruptImage
from raysl.data.sources.listing import list_folders
from raysl.errors import ConfigError
from raysl.storage.folder import Folder

UNITS_PER_METRE = 1000
IMAGE, DEPTH = "rgb_", "sync_depth_"
"""Beginnings of the names of images and of their depths."""


@dataclass(frozen=True)
class DepthSplit(PairedSplit):
    """Images and their depths."""

    classes: tuple[str, ...] = ()

    @override
    def target(self, number: int) -> Tensor:
        """Read the depths of an image's pixels in metres, float32 [H, W], 0 where unknown."""
        return torch.from_numpy(self.targets.decoded(number, metres))


def metres(data: bytes) -> np.ndarray:
    """Read depths in metres, float32 [H, W]."""
    with open_image(data) as file:
        if not file.mode.startswith("I"):
            raise CorruptImage(f"an image of the mode {file.mode}, and depths are numbers of 16 bits in millimetres")
        return np.array(file).astype(np.float32) / UNITS_PER_METRE


def depth_split(folder: Folder, chosen: str) -> DepthSplit:
    """List the images of a set.

    Args:
        chosen: folder inside, with a folder for each scene; or a list that ends in .txt, whose lines have the address
            of an image and that of its depths, from the folder that the list is in. Lines with `None` are left out.
    """
    pairs = _listed(folder, chosen) if chosen.endswith(".txt") else _scenes(folder, chosen)
    pairs.sort()
    images, depths = [image for image, _ in pairs], [depth for _, depth in pairs]
    return DepthSplit(Files.of(folder.uri, images, chosen), Files.of(folder.uri, depths, chosen))


def _listed(folder: Folder, chosen: str) -> list[tuple[str, str]]:
    inner = chosen[: chosen.rfind("/") + 1]
    rows = rows_of(folder, chosen)
    if short := [row for row in rows if len(row) < 2]:
        raise ConfigError(
            f"{folder.uri_of(chosen)}: the line {short[0][0]!r} has one word; write the addresses of image and depths"
        )
    return [(f"{inner}{row[0].lstrip('/')}", f"{inner}{row[1].lstrip('/')}") for row in rows if row[1] != "None"]


def _scenes(folder: Folder, chosen: str) -> list[tuple[str, str]]:
    require(folder, chosen)
    pairs = []
    for scene in list_folders(folder.uri_of(chosen)):
        inner = f"{chosen}/{scene}"
        for name in folder.child(inner).names():
            if name.startswith(IMAGE):
                number = name.removeprefix(IMAGE).rpartition(".")[0]
                pairs.append((f"{inner}/{name}", f"{inner}/{DEPTH}{number}.png"))
    if not pairs:
        raise ConfigError(f"{folder.uri_of(chosen)} has no folder with files {IMAGE}*; is it a folder of scenes?")
    return pairs
