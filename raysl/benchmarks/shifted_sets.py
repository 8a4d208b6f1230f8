"""Test sets with a distribution shift from ImageNet, in their authors' layouts, with their right classes."""

import hashlib
import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import override

from raysl.data.decode.decode import CorruptImage, decode
from raysl.data.source import ConfigError, Missing, Rows, Split
from raysl.data.sources.image_files import FilesSplit
from raysl.data.sources.listing import File, composed, is_image, list_files
from raysl.data.split import Encoded, Int64s
from raysl.storage.folder import Folder

BORDER = 2
"""Pixels of red around the images of ObjectNet, which are to be cut off (Barbu et al. 2019, readme of the dataset)."""


@dataclass(frozen=True)
class ShiftedSet:
    """A test set of a classifier.

    Args:
        rows: int64 [M], those that count.
        right: int64 [M, R], the classes of each any of which is right; -1 fills up.
        allowed: int64, classes that may be predicted, rising; None where all may.
    """

    images: Split
    rows: Int64s
    right: Int64s
    allowed: Int64s | None = None


def by_folder(uri: str, classes: Sequence[str], is_masked: bool) -> ShiftedSet:
    """Read images from folders named by class, or by number as in ImageNet-V2.

    Args:
        uri: folder or URI with those folders in it, at any depth.
        classes: class names of the training images; WordNet ids for ImageNet.
        is_masked: whether only classes may be predicted that have a folder (ImageNet-A and -R, Hendrycks et al.).
    """
    files = _images_below(uri)
    if not files:
        raise ConfigError(f"no images below {uri!r}; give the folder of the set, with a folder for each class")
    folders = [_folder_of(file.path) for file in files]
    label_of = _places(sorted(set(folders)), classes, uri)
    labels = np.array([label_of[folder] for folder in folders], np.int64)
    split = _split(uri, files, labels, classes)
    return ShiftedSet(split, np.arange(len(files)), labels[:, None], np.unique(labels) if is_masked else None)


def objectnet(uri: str, classes: Sequence[str]) -> ShiftedSet:
    """ObjectNet (Barbu et al. 2019): `images/<object>/*.png` and `mappings/`, without the red border.

    Of an object that is several of ImageNet's classes each is right. Objects that are none are left out, and classes
    that no object is may not be predicted.
    """
    folder = Folder(uri)
    classes_of = _object_classes(folder, len(classes))
    files = [file for file in _images_below(uri) if _folder_of(file.path) in classes_of]
    if not files:
        raise ConfigError(f"no images below {uri!r} in folders of objects that mappings/ lists; give objectnet-1.0/")
    answers = [classes_of[_folder_of(file.path)] for file in files]
    first = np.array([answer[0] for answer in answers], np.int64)
    right = filled(answers)
    split = _split(uri, files, first, classes, _WithoutBorder)
    return ShiftedSet(split, np.arange(len(files)), right, np.unique(right[right >= 0]))


def real_labels(uri: str, num_classes: int) -> list[list[int]]:
    """Read ReaL (Beyer et al. 2020, arXiv 2006.07159): `real.json`, a list of classes for each validation image, in
    order.
    """
    labels = _json(uri)
    if not isinstance(labels, list) or not all(isinstance(answers, list) for answers in labels):
        raise ConfigError(f"{uri!r} is not a list of lists of classes; give real.json as its authors publish it")
    for number, answers in enumerate(labels):
        if bad := [label for label in answers if not isinstance(label, int) or not 0 <= label < num_classes]:
            raise ConfigError(
                f"{uri!r}, image {number + 1}: {bad[0]!r} is not one of the {num_classes:,} training classes; "
                "ReaL goes with all of ImageNet-1k"
            )
    return labels


def reassessed(test: Split, labels: Sequence[Sequence[int]]) -> ShiftedSet:
    """Return ImageNet's validation images with ReaL's labels, without images that have none.

    Args:
        test: images called `ILSVRC2012_val_00000001.JPEG` and so on.
        labels: labels of each image, by its number from 1.
    """
    names = test.names_of(np.arange(test.num_samples))
    answers = [labels[_number(name, len(labels)) - 1] for name in names]
    rows = np.array([row for row, answer in enumerate(answers) if answer], np.int64)
    if not len(rows):
        raise ConfigError(f"none of {len(names):,} test images has a label in ReaL; measure without imagenet_real")
    return ShiftedSet(test, rows, filled([answers[row] for row in rows]))


def filled(answers: Sequence[Sequence[int]]) -> Int64s:
    """Pad lists of classes to one array, int64 [M, R], with -1."""
    out = np.full((len(answers), max(map(len, answers))), -1, np.int64)
    for row, answer in enumerate(answers):
        out[row, : len(answer)] = answer
    return out


def _images_below(uri: str) -> list[File]:
    return sorted((file for file in list_files(uri).files if is_image(file.path)), key=lambda file: file.path)


def _split(
    uri: str, files: Sequence[File], labels: Int64s, classes: Sequence[str], kind: type[FilesSplit] = FilesSplit
) -> FilesSplit:
    sizes = np.array([-1 if file.size is None else file.size for file in files], np.int64)
    return kind(uri, [file.path for file in files], labels, tuple(classes), sizes)


def _places(folders: Sequence[str], classes: Sequence[str], uri: str) -> Mapping[str, int]:
    """Return the class of each folder, by its name or else by its number."""
    label_of = {composed(name): label for label, name in enumerate(classes)}
    if all(composed(folder) in label_of for folder in folders):
        return {folder: label_of[composed(folder)] for folder in folders}
    if all(folder.isascii() and folder.isdigit() and int(folder) < len(classes) for folder in folders):
        return {folder: int(folder) for folder in folders}
    unknown = [folder for folder in folders if composed(folder) not in label_of]
    raise ConfigError(
        f"{len(unknown):,} of {len(folders):,} folders below {uri!r} are not named as a class of the training images, "
        f"first {unknown[0]!r}; those are called such as {classes[0]!r}"
    )


def _object_classes(folder: Folder, num_classes: int) -> dict[str, list[int]]:
    """Return classes of ImageNet by folder of ObjectNet, from the four files of its `mappings/`."""
    objects, names_of, numbers = (
        _json(folder.uri_of(f"mappings/{name}.json"))
        for name in ("folder_to_objectnet_label", "objectnet_to_imagenet_1k", "pytorch_to_imagenet_2012_id")
    )
    lines = _read(folder.uri_of("mappings/imagenet_to_label_2012_v2")).decode().splitlines()
    where = folder.uri_of("mappings")
    try:
        # `numbers` gives the line of each class in `lines`, whose names the mapping of objects uses
        label_of_line = {int(line): int(label) for label, line in numbers.items()}
        label_of_name = {line.strip(): label_of_line[number] for number, line in enumerate(lines)}
        folder_of = {name: folder for folder, name in objects.items()}
        labels_of_folder = {
            folder_of[name]: [label_of_name[alias.strip()] for alias in names.split(";")]
            for name, names in names_of.items()
        }
    except (KeyError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"the files in {where!r} do not fit each other ({error!r}); fetch ObjectNet anew") from error
    most = max((label for labels in labels_of_folder.values() for label in labels), default=-1)
    if most >= num_classes:
        raise ConfigError(
            f"{where!r} names class {most} and {num_classes:,} are trained on; ObjectNet goes with all of ImageNet-1k"
        )
    return labels_of_folder


def _number(name: str, num: int) -> int:
    """Return the number at the end of an image's name."""
    stem = posixpath.basename(name.replace("\\", "/")).partition(".")[0]
    match = re.fullmatch(r"ILSVRC2012_val_(\d{8})", stem)
    if match is None or not 1 <= int(match[1]) <= num:
        raise ConfigError(
            f"imagenet_real has labels of {num:,} images called ILSVRC2012_val_00000001.JPEG and so on, and a test "
            f"image is called {name!r}; measure it on ImageNet's validation images"
        )
    return int(match[1])


def _folder_of(path: str) -> str:
    return posixpath.basename(posixpath.dirname(path))


def _json(uri: str) -> Any:
    try:
        return json.loads(_read(uri))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{uri!r} is not JSON ({error}); fetch it anew") from error


def _read(uri: str) -> bytes:
    base, _, name = uri.rpartition("/")
    return Folder(base).read(name)


class _WithoutBorder(FilesSplit):
    """Files of images that lose the pixels at their edges."""

    def __init__(self, *files: Any) -> None:
        super().__init__(*files)
        self.fingerprint = hashlib.sha256(f"{self.fingerprint} {BORDER}".encode()).hexdigest()[:16]

    @override
    def read(self, index: Int64s) -> Rows:
        rows = super().read(index)
        return Rows([self._cut(image) for image in rows.images], rows.labels, rows.names)

    def _cut(self, image: Encoded) -> Encoded:
        try:
            pixels = decode(image, background=self.background)
        except CorruptImage as error:
            return Missing(str(error))
        if min(pixels.shape[1:]) <= 2 * BORDER:
            return Missing(f"an image of {pixels.shape[1]} x {pixels.shape[2]} pixels, no more than its border")
        inner = pixels[:, BORDER:-BORDER, BORDER:-BORDER]
        return np.ascontiguousarray(inner.permute(1, 2, 0).numpy())
