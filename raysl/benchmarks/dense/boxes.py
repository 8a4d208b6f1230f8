"""Images with boxes of objects: the layouts of Pascal VOC (xml) and COCO (json).

Everingham et al., The Pascal Visual Object Classes Challenge, IJCV 2010; Lin et al., Microsoft COCO, ECCV 2014.
"""

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np
from typing_extensions import override

from raysl.benchmarks.dense.dataset_files import Files, TargetSource, TargetSplit, lines_of, require
from raysl.benchmarks.dense.masks import VOC_CLASSES
from raysl.config.ranges import Location
from raysl.data.source import DataConfig
from raysl.data.sources.sample import even_index
from raysl.errors import ConfigError
from raysl.storage.folder import Folder
from raysl.storage.reads import REMOTE_READS
from raysl.storage.whole import read_whole

CLASSES = VOC_CLASSES[1:]
SIDES = ("xmin", "ymin", "xmax", "ymax")
SETS = {"voc": ("trainval", "test"), "coco": ("train2017", "val2017")}
"""Usual training and test images of a layout."""


@dataclass(frozen=True)
class Objects:
    """The objects in one image.

    Args:
        boxes: float32 [M, 4], left, top, right and bottom edge in pixels: a box of one pixel is one wide.
        labels: int64 [M], places among the classes.
        is_apart: bool [M], of VOC's difficult objects, which count neither as found nor as missed, and COCO's crowds.
        areas: float32 [M] in pixels, as COCO states them.
        segments: COCO's polygons or run lengths, one of each object; empty where there are none.
    """

    boxes: np.ndarray
    labels: np.ndarray
    is_apart: np.ndarray
    areas: np.ndarray
    segments: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, keep: np.ndarray) -> "Objects":
        """Select objects by a bool [M]."""
        segments = tuple(segment for segment, is_kept in zip(self.segments, keep, strict=False) if is_kept)
        return Objects(self.boxes[keep], self.labels[keep], self.is_apart[keep], self.areas[keep], segments)


class BoxImages(TargetSource):
    """Images with boxes, in the layouts of Pascal VOC and COCO; training images are those with an object."""

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """Those of the benchmark `detection`, which has them under the same names."""

        name: str = "raysl.benchmarks.dense.boxes:BoxImages"
        path: Location
        more: Location | None = None
        layout: Literal["voc", "coco"] = "voc"
        train_set: str | None = None
        test_set: str | None = None
        masks: bool = False

    @override
    def split(self, name: str) -> "BoxSplit":
        config, (train_set, test_set) = self.config, SETS[self.config.layout]
        if name == "test":
            split = self._boxes(config.test_set or test_set).part(config.limit)
        else:
            split = self._boxes(config.train_set or train_set)
            if config.more is not None:
                split = split.with_more(voc_boxes(Folder(config.more), SETS["voc"][0]))
            split = split.trainable(with_apart=config.layout == "voc").part(config.limit)
        return _BoxesOfSource(split.images, split.objects, split.classes, config, name)

    def _boxes(self, chosen: str) -> "BoxSplit":
        """Read a whole set of images."""
        folder = Folder(self.config.path)
        if self.config.layout == "voc":
            return voc_boxes(folder, chosen)
        return coco_boxes(folder, chosen, self.config.masks)


@dataclass(frozen=True)
class BoxSplit(TargetSplit):
    """Images and the objects in them.

    Args:
        objects: lists, one for each image, in the same order.
    """

    images: Files
    objects: tuple[Objects, ...] = field(repr=False)
    classes: tuple[str, ...]

    @cached_property
    def fingerprint(self) -> str:  # type: ignore[override]
        """Digest of the images and boxes."""
        digest = hashlib.sha256(self.images.digest())
        for objects in self.objects:
            digest.update(objects.boxes.tobytes() + objects.labels.tobytes() + objects.is_apart.tobytes())
        return digest.hexdigest()[:16]

    def trainable(self, with_apart: bool) -> "BoxSplit":
        """Return the images with at least one object with a non-empty box, with those objects only.

        Args:
            with_apart: whether those that stand apart are among them: VOC's difficult objects are trained on, as in
                Detectron2, and COCO's crowds, which have no box of one object, are not.
        """
        trainable: list[Objects] = []
        numbers: list[int] = []
        for number, objects in enumerate(self.objects):
            sides = objects.boxes[:, 2:] - objects.boxes[:, :2]
            usable = objects.take((sides > 0).all(axis=1) & (with_apart | ~objects.is_apart))
            if len(usable):
                trainable.append(usable)
                numbers.append(number)
        if not trainable:
            raise ConfigError("no training image has an object; is the dataset whole?")
        return BoxSplit(self.images.take(np.array(numbers)), tuple(trainable), self.classes)

    def part(self, limit: int | None) -> "BoxSplit":
        """Return an even share of at most `limit` images."""
        numbers = even_index(len(self), limit or len(self))
        objects = tuple(self.objects[number] for number in numbers)
        return BoxSplit(self.images.take(numbers), objects, self.classes)

    def with_more(self, other: "BoxSplit") -> "BoxSplit":
        """Return these images and those of another year with the same classes."""
        return BoxSplit(self.images + other.images, self.objects + other.objects, self.classes)


@dataclass(frozen=True)
class _BoxesOfSource(BoxSplit):
    """A split that is pickled as its settings and read again by other processes: COCO's polygons take gigabytes."""

    config: BoxImages.Config
    name: str

    def __reduce__(self) -> Any:
        return _read_boxes, (self.config, self.name)


def _read_boxes(config: BoxImages.Config, name: str) -> BoxSplit:
    return BoxImages(config).split(name)


def voc_boxes(folder: Folder, chosen: str) -> BoxSplit:
    """Read a set of one year of Pascal VOC.

    Args:
        folder: root of the year, with `JPEGImages`, `Annotations` and `ImageSets/Main` in it.
    """
    listed = f"ImageSets/Main/{chosen}.txt"
    names = lines_of(folder, listed)
    images = Files.of(folder.uri_of("JPEGImages"), [f"{name}.jpg" for name in names], listed)
    notes = Files.of(folder.uri_of("Annotations"), [f"{name}.xml" for name in names], listed)
    # a set has thousands of small files, and a remote storage takes long to answer each
    with ThreadPoolExecutor(REMOTE_READS) as pool:
        objects = list(pool.map(lambda number: _voc_objects(notes, number), range(len(notes))))
    return BoxSplit(images, tuple(objects), CLASSES)


def _voc_objects(notes: Files, number: int) -> Objects:
    """Read an xml file, where pixels are counted from 1 and boxes include their last pixel."""
    try:
        elements = ElementTree.fromstring(notes.read(number)).findall("object")
        sides = [[float(_text(element, f"bndbox/{side}")) for side in SIDES] for element in elements]
        labels = [_class_of(_text(element, "name")) for element in elements]
        difficult = [element.findtext("difficult", "0").strip() == "1" for element in elements]
    except (ElementTree.ParseError, ValueError) as error:
        raise ConfigError(f"{notes.uri_of(number)} is not an annotation of VOC: {error}; fetch it anew") from error
    # first edges move by 1 to count from 0; last ones stay, since they include a pixel
    boxes = np.array(sides, np.float32).reshape(-1, 4) - np.array([1, 1, 0, 0], np.float32)
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return Objects(boxes, np.array(labels, np.int64), np.array(difficult, bool), areas)


def _class_of(name: str) -> int:
    if name not in CLASSES:
        raise ValueError(f"{name!r} is none of its {len(CLASSES)} classes")
    return CLASSES.index(name)


def _text(element: ElementTree.Element, path: str) -> str:
    text = element.findtext(path)
    if text is None:
        raise ValueError(f"an object has no {path}")
    return text.strip()


def coco_boxes(folder: Folder, chosen: str, with_segments: bool) -> BoxSplit:
    """Read a set of COCO, with images and classes in the order of their ids.

    Args:
        folder: root with `annotations` and the folders of the images, as `train2017`, or those in `images`.
        chosen: name of the set, as `train2017`.
    """
    name = f"annotations/instances_{chosen}.json"
    require(folder, name)
    try:
        content = json.loads(read_whole(folder.uri_of(name)))
        entries = sorted(content["images"], key=lambda image: int(image["id"]))
        categories = sorted((int(category["id"]), str(category["name"])) for category in content["categories"])
        objects = _coco_objects(content["annotations"], entries, [number for number, _ in categories], with_segments)
        names = [str(image["file_name"]) for image in entries]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"{folder.uri_of(name)} is not a COCO annotation file: {type(error).__name__} {error}; fetch it anew"
        ) from error
    if not names:
        raise ConfigError(f"{folder.uri_of(name)} lists no images")
    uri = folder.uri_of(f"images/{chosen}" if folder.exists(f"images/{chosen}") else chosen)
    return BoxSplit(Files.of(uri, names, name), objects, tuple(category for _, category in categories))


def _coco_objects(
    notes: Sequence[dict[str, Any]], images: Sequence[dict[str, Any]], ids: Sequence[int], with_segments: bool
) -> tuple[Objects, ...]:
    label = {identity: number for number, identity in enumerate(ids)}
    by_image: dict[int, list[dict[str, Any]]] = {image["id"]: [] for image in images}
    for note in notes:
        by_image[note["image_id"]].append(note)
    return tuple(_of_notes(by_image[image["id"]], label, with_segments) for image in images)


def _of_notes(notes: Sequence[dict[str, Any]], label: dict[int, int], with_segments: bool) -> Objects:
    boxes = np.array([note["bbox"] for note in notes], np.float32).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    areas = [note.get("area", note["bbox"][2] * note["bbox"][3]) for note in notes]
    return Objects(
        boxes,
        np.array([label[note["category_id"]] for note in notes], np.int64),
        np.array([bool(note.get("iscrowd", 0)) for note in notes], bool),
        np.array(areas, np.float32),
        tuple(note["segmentation"] for note in notes) if with_segments else (),
    )
