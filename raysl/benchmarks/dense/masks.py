"""Images with a class for each pixel: the layouts of Pascal VOC 2012, ADE20K and Cityscapes.

Everingham et al., The Pascal Visual Object Classes Challenge, IJCV 2010; Zhou et al., Scene Parsing through ADE20K
Dataset, CVPR 2017 (the 150 classes of its scene parsing benchmark); Cordts et al., The Cityscapes Dataset for Semantic
Urban Scene Understanding, CVPR 2016 (the 19 classes of its evaluation).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from raysl.benchmarks.dense.dataset_files import Files, PairedSplit, TargetSource, lines_of, require
from raysl.config.ranges import Location
from raysl.data.decode.decode import open_image
from raysl.data.decode.pixels import CorruptImage
from raysl.data.source import DataConfig
from raysl.data.sources.listing import list_folders
from raysl.errors import ConfigError
from raysl.storage.folder import Folder

IGNORE = 255
"""The number of an ignored pixel, in memory and in VOC's files."""
UNKNOWN = 254
LISTS = "ImageSets/Segmentation"
AUGMENTED, MASKS_OF_AUGMENTED = "trainaug", "SegmentationClassAug"
"""The list of VOC's training images and those that SBD has masks of (Hariharan et al. 2011), and the folder of their
masks, by the names that the field has for them."""
ADE_CLASSES = 150
VOC_CLASSES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
CITY_NUMBERS = {
    "road": 7, "sidewalk": 8, "building": 11, "wall": 12, "fence": 13, "pole": 17, "traffic light": 19,
    "traffic sign": 20, "vegetation": 21, "terrain": 22, "sky": 23, "person": 24, "rider": 25, "car": 26, "truck": 27,
    "bus": 28, "train": 31, "motorcycle": 32, "bicycle": 33,
}  # fmt: skip
"""Classes that Cityscapes evaluates, in the order of its train ids, with their numbers in `labelIds` files."""
CITY_LAST = 33
"""The largest number of its files; those up to it that are none of the classes do not count."""

Layout = Literal["voc", "ade20k", "cityscapes"]


class MaskImages(TargetSource):
    """Images with masks, in the layouts of Pascal VOC, ADE20K and Cityscapes."""

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """Those of the benchmark `segmentation`, which has them under the same names."""

        name: str = "raysl.benchmarks.dense.masks:MaskImages"
        path: Location
        layout: Layout = "voc"
        train_set: str | None = None
        test_set: str | None = None
        masks: str | None = None

    @override
    def split(self, name: str) -> "MaskSplit":
        config, is_train = self.config, name == "train"
        chosen = config.train_set if is_train else config.test_set
        return mask_split(config.layout, Folder(config.path), is_train, chosen, config.masks).part(config.limit)


@dataclass(frozen=True)
class MaskSplit(PairedSplit):
    """Images and their masks.

    Args:
        classes: names, by the numbers that `target` gives.
        numbers: number of each class in the files of masks.
        ignored: numbers that are not counted, beside 255.
    """

    classes: tuple[str, ...]
    numbers: tuple[int, ...]
    ignored: tuple[int, ...] = ()

    @override
    def target(self, number: int) -> Tensor:
        """Read the classes of an image's pixels, uint8 [H, W], IGNORE where they are not counted."""
        # class of each number in the files; numbers that stay UNKNOWN are refused
        table = np.full(256, UNKNOWN, np.uint8)
        table[[*self.ignored, IGNORE]] = IGNORE
        table[list(self.numbers)] = np.arange(len(self.classes))
        stored = self.targets.decoded(number, indices)
        classes = table[stored]
        if (classes == UNKNOWN).any():
            known = sorted({*self.numbers, *self.ignored})
            raise ConfigError(
                f"{self.targets.uri_of(number)} has a pixel of number {stored[classes == UNKNOWN][0]}; the numbers are "
                f"{known[0]} to {known[-1]}, and 255 is ignored: is it of another layout?"
            )
        return torch.from_numpy(classes)


def indices(data: bytes) -> np.ndarray:
    """Read the number of each pixel, uint8 [H, W]; for palettes, the index of the colour."""
    with open_image(data) as file:
        if file.mode not in ("P", "L"):
            raise CorruptImage(f"an image of the mode {file.mode}, and masks have one number of 8 bits a pixel")
        return np.array(file)


def mask_split(
    layout: Layout, folder: Folder, is_train: bool, chosen: str | None = None, masks: str | None = None
) -> MaskSplit:
    """List the training or the test images of a dataset.

    Args:
        folder: root with `JPEGImages` and so on in it, with `images` and `annotations`, or with `leftImg8bit` and
            `gtFine`.
        is_train: whether it is the training set, where `chosen` does not say.
        chosen: set of images. Default: `train` and `val`, of ADE20K `training` and `validation`.
        masks: folder of the masks inside. Default: `SegmentationClass`, of the set `trainaug` `SegmentationClassAug`,
            `annotations/{set}`, or `gtFine`.
    """
    if layout == "cityscapes":
        return _cityscapes(folder, chosen or ("train" if is_train else "val"), masks or "gtFine")
    if layout == "voc":
        return _voc(folder, chosen or ("train" if is_train else "val"), masks)
    return _ade(folder, chosen or ("training" if is_train else "validation"), masks)


def _voc(folder: Folder, chosen: str, masks: str | None) -> MaskSplit:
    listed = f"{LISTS}/{chosen}.txt"
    masks = masks or (MASKS_OF_AUGMENTED if chosen == AUGMENTED else "SegmentationClass")
    if chosen == AUGMENTED and not folder.exists(listed) and folder.exists(f"{LISTS}/aug.txt"):
        # aug.txt lists the images of SBD alone, without those of VOC's training set
        listed = f"{LISTS}/aug.txt"
        names = [*lines_of(folder, f"{LISTS}/train.txt"), *lines_of(folder, listed)]
    else:
        names = lines_of(folder, listed)
    return MaskSplit(
        Files.of(folder.uri_of("JPEGImages"), [f"{name}.jpg" for name in names], listed),
        Files.of(folder.uri_of(masks), [f"{name}.png" for name in names], listed),
        VOC_CLASSES,
        numbers=tuple(range(len(VOC_CLASSES))),
    )


def _ade(folder: Folder, chosen: str, masks: str | None) -> MaskSplit:
    images, annotations = f"images/{chosen}", masks or f"annotations/{chosen}"
    require(folder, images)
    names = [name for name in folder.child(images).names() if name.endswith(".jpg")]
    if not names:
        raise ConfigError(f"{folder.uri_of(images)} has no .jpg files")
    return MaskSplit(
        Files.of(folder.uri_of(images), names, images),
        Files.of(folder.uri_of(annotations), [f"{name.removesuffix('.jpg')}.png" for name in names], images),
        _ade_classes(folder),
        numbers=tuple(range(1, ADE_CLASSES + 1)),
        ignored=(0,),
    )


def _ade_classes(folder: Folder) -> tuple[str, ...]:
    """Read the names in `objectInfo150.txt`, the first of each line's synonyms; numbers where the file is missing."""
    rows = [
        line.split("\t") for line in folder.read_if_there("objectInfo150.txt").decode("utf-8", "replace").splitlines()
    ]
    named = {row[0]: row[-1].split(",")[0].strip() for row in rows if len(row) > 1}
    return tuple(named.get(str(number), f"class {number}") for number in range(1, ADE_CLASSES + 1))


def _cityscapes(folder: Folder, chosen: str, masks: str) -> MaskSplit:
    """List the images of a set in the folders of their cities, with the numbers of their pixels.

    Args:
        masks: folder of the masks, whose name is part of the names of the files too: `gtFine` or `gtCoarse`.
    """
    images, annotations = f"leftImg8bit/{chosen}", f"{masks}/{chosen}"
    require(folder, images)
    ending = "_leftImg8bit.png"
    names = [
        f"{city}/{name}"
        for city in list_folders(folder.uri_of(images))
        for name in folder.child(f"{images}/{city}").names()
        if name.endswith(ending)
    ]
    if not names:
        raise ConfigError(f"{folder.uri_of(images)} has no folder of a city with files *{ending}")
    labels = [f"{name.removesuffix(ending)}_{masks}_labelIds.png" for name in names]
    return MaskSplit(
        Files.of(folder.uri_of(images), names, images),
        Files.of(folder.uri_of(annotations), labels, images),
        tuple(CITY_NUMBERS),
        numbers=tuple(CITY_NUMBERS.values()),
        ignored=tuple(number for number in range(CITY_LAST + 1) if number not in CITY_NUMBERS.values()),
    )
