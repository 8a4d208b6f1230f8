"""Images with the depth of each pixel: the layouts of NYU Depth v2 and KITTI, and what the field does with each.

NYU Depth v2 (Silberman et al., ECCV 2012) in the layout of BTS, and KITTI (Uhrig et al., Sparsity Invariant CNNs, 3DV
2017) in that of its download and of the Monocular Depth Estimation Toolbox.

BTS (Lee et al. 2019, arXiv 1907.10326) has `rgb_00045.jpg` beside `sync_depth_00045.png` in a folder for each scene,
and lists with the address of both in a line. Depths are numbers of 16 bits, millimetres or 256ths of a metre, and 0
where none was measured.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from raysl.benchmarks.dense.dataset_files import Files, PairedSplit, TargetSource, require, rows_of
from raysl.config.ranges import Location
from raysl.data.decode.decode import open_image
from raysl.data.decode.pixels import CorruptImage
from raysl.data.source import DataConfig
from raysl.data.sources.listing import list_folders
from raysl.errors import ConfigError
from raysl.storage.folder import Folder

Area = tuple[int, int, int, int]
"""First row, row after the last, first column, column after the last."""
Layout = Literal["nyu", "kitti"]


@dataclass(frozen=True)
class Protocol:
    """Images and numbers that the field has for a dataset.

    Args:
        units: numbers in a file for a metre.
        max_depth: largest depth in metres.
        train_area: part of a training image that crops come from; None is all.
        test_area: part of a test image that is measured; None is all.
        crop: height and width of training crops in pixels.
        brightness: factors of the brightness of half of the training crops, lowest and highest.
        cut: height and width in pixels of what is kept of each image, its lowest rows and middle columns; None is all.
    """

    train_set: str
    test_set: str
    units: int
    max_depth: float
    train_area: Area | None
    test_area: Area | None
    crop: tuple[int, int]
    brightness: tuple[float, float]
    cut: tuple[int, int] | None = None


PROTOCOLS: dict[Layout, Protocol] = {
    "nyu": Protocol(
        train_set="sync",
        test_set="official_splits/test",
        units=1000,
        max_depth=10.0,
        train_area=(45, 472, 43, 608),
        test_area=(45, 471, 41, 601),
        crop=(416, 544),
        brightness=(0.75, 1.25),
    ),
    # the test area is the share of Garg et al. 2016 (arXiv 1603.04992) of 352 x 1216 pixels, in whole pixels
    "kitti": Protocol(
        train_set="kitti_eigen_train.txt",
        test_set="kitti_eigen_test.txt",
        units=256,
        max_depth=80.0,
        train_area=None,
        test_area=(143, 349, 43, 1172),
        crop=(352, 704),
        brightness=(0.9, 1.1),
        cut=(352, 1216),
    ),
}
KITTI_DEPTHS = ("gt_depth", "data_depth_annotated", "data_depth_annotated/train", "data_depth_annotated/val")
"""Folders that may have those of the drives with depths, in the toolbox's layout and in that of the download."""
IMAGE, DEPTH = "rgb_", "sync_depth_"
"""Beginnings of the names of images and of their depths."""


class DepthImages(TargetSource):
    """Images with depths, in the layout that BTS has of NYU Depth v2, or in that of KITTI."""

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """Those of the benchmark `depth`, which has them under the same names."""

        name: str = "raysl.benchmarks.dense.depth_files:DepthImages"
        path: Location
        layout: Layout = "nyu"
        train_set: str | None = None
        test_set: str | None = None

    @override
    def split(self, name: str) -> "DepthSplit":
        config = self.config
        protocol = PROTOCOLS[config.layout]
        train, test = config.train_set or protocol.train_set, config.test_set or protocol.test_set
        chosen = train if name == "train" else test
        return depth_split(Folder(config.path), chosen, config.layout).part(config.limit)


@dataclass(frozen=True)
class DepthSplit(PairedSplit):
    """Images and their depths.

    Args:
        units: numbers in a file of depths for a metre.
        cut: height and width of what is kept of each image, see `Protocol`.
    """

    classes: tuple[str, ...] = ()
    units: int = 1000
    cut: tuple[int, int] | None = None

    @override
    def target(self, number: int) -> Tensor:
        """Read the depths of an image's pixels in metres, float32 [H, W], 0 where unknown."""
        return torch.from_numpy(self.targets.decoded(number, partial(metres, units=self.units)))

    @override
    def sample(self, number: int) -> tuple[Tensor, Tensor]:
        image, depth = super().sample(number)
        if self.cut is None:
            return image, depth
        (height, width), (rows, columns) = depth.shape, self.cut
        if height < rows or width < columns:
            raise ConfigError(
                f"{self.images.uri_of(number)} has {height}x{width} pixels, and the field cuts KITTI's images to "
                f"{rows}x{columns}: is it smaller than the original?"
            )
        top, first = height - rows, (width - columns) // 2
        return (
            image[:, top:, first : first + columns],
            depth[top:, first : first + columns],
        )


def metres(data: bytes, units: int = 1000) -> np.ndarray:
    """Read depths in metres, float32 [H, W].

    Args:
        units: numbers in the file for a metre.
    """
    with open_image(data) as file:
        if not file.mode.startswith("I"):
            raise CorruptImage(
                f"an image of the mode {file.mode}, and depths are numbers of 16 bits, {units:,} for a metre"
            )
        return np.array(file).astype(np.float32) / units


def depth_split(folder: Folder, chosen: str, layout: Layout = "nyu") -> DepthSplit:
    """List the images of a set.

    Args:
        chosen: folder inside, with a folder for each scene; or a list that ends in .txt, whose lines have the address
            of an image and that of its depths, from the folder that the list is in. Lines with `None` are left out. Of
            KITTI it is a list, and its addresses begin in the folders of images and of depths.
    """
    protocol = PROTOCOLS[layout]
    if layout == "kitti":
        pairs = _kitti(folder, chosen)
    else:
        pairs = _listed(folder, chosen) if chosen.endswith(".txt") else _scenes(folder, chosen)
    pairs.sort()
    images, depths = [image for image, _ in pairs], [depth for _, depth in pairs]
    return DepthSplit(
        Files.of(folder.uri, images, chosen),
        Files.of(folder.uri, depths, chosen),
        units=protocol.units,
        cut=protocol.cut,
    )


def _kitti(folder: Folder, chosen: str) -> list[tuple[str, str]]:
    """Return the listed pairs of KITTI.

    A line has `2011_09_26/2011_09_26_drive_0002_sync/image_02/data/0000000069.png` and
    `2011_09_26_drive_0002_sync/proj_depth/groundtruth/image_02/0000000069.png`.
    """
    if not chosen.endswith(".txt"):
        raise ConfigError(f"{chosen!r} is no list; KITTI's images are those of a list that ends in .txt")
    images = "input/" if folder.exists("input") else ""
    roots = [root for root in KITTI_DEPTHS if folder.exists(root)]
    if not roots:
        raise ConfigError(
            f"{folder.uri} has neither {KITTI_DEPTHS[0]} nor {KITTI_DEPTHS[1]} with the depths; is the download whole?"
        )
    # a drive is in one of the folders train and val of the download, whatever the split says
    root_of = {drive: root for root in reversed(roots) for drive in list_folders(folder.uri_of(root))}
    inner = chosen[: chosen.rfind("/") + 1]
    pairs = []
    for image, depth in _listed(folder, chosen):
        image, depth = image.removeprefix(inner), depth.removeprefix(inner)
        pairs.append((f"{images}{image}", f"{root_of.get(depth.split('/', 1)[0], roots[0])}/{depth}"))
    return pairs


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
