"""COCO: which of 80 categories an image contains."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from typing_extensions import override

from raysl.config.ranges import Location
from raysl.data.source import ConfigError, DataConfig, Source, Split
from raysl.data.sources.image_files import FilesSplit, listed_split
from raysl.data.sources.listing import composed
from raysl.storage.folder import Folder
from raysl.storage.records import Damaged, fits, read_record
from raysl.storage.whole import read_whole

YEARS = ("2017", "2014")
FIELDS: dict[str, dict[str, Any]] = {
    "images": {"id": int | str, "file_name": str},
    "annotations": {"image_id": int | str, "category_id": int},
    "categories": {"id": int, "name": str},
}
"""Lists of an annotation file, with the types of what their entries must have."""


class COCO(Source):
    """COCO, multi-label: 1 if an image has an object of the category, -1 if it has only crowds of it, else 0.

    Labels come from `annotations/instances_{set}.json`; categories and images, including those without objects, are
    ordered by their ids. Source: Lin et al., Microsoft COCO, ECCV 2014.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """Where the dataset lies, and which of its sets to use."""

        name: str = "coco"
        path: Location | None = None
        """Folder or URI with `annotations`, and the images in folders such as `train2017` or `images/train2017`."""
        train_set: str | None = None
        """Set of the training images. Default: train2017, else train2014."""
        test_set: str | None = None
        """Set of the held-out images. Default: val2017, else val2014."""

    @override
    def split(self, name: str) -> Split | None:
        if name == "train":
            return _split(self._folder, self._train_set, self._train, self._categories)
        chosen = self.config.test_set or self._newest("val")
        if chosen is None:
            return None
        content = _content(self._folder, chosen)
        other = sorted(set(_categories(content)) ^ set(self._categories))
        if other:
            raise ConfigError(f"the categories of {chosen!r} and {self._train_set!r} differ, first in {other[0]}")
        return _split(self._folder, chosen, content, self._categories)

    @cached_property
    def _folder(self) -> Folder:
        if self.config.path is None:
            raise ConfigError("coco needs data.path=, the folder with annotations and train2017 in it")
        return Folder(self.config.path)

    @cached_property
    def _train_set(self) -> str:
        chosen = self.config.train_set or self._newest("train")
        if chosen is None:
            raise ConfigError(
                f"no instances_train2017.json or instances_train2014.json in {self._folder.uri_of('annotations')}; "
                "give data.path= the folder with annotations and train2017 in it, or data.train_set="
            )
        return str(chosen)

    def _newest(self, part: str) -> str | None:
        sets = (f"{part}{year}" for year in YEARS)
        return next((name for name in sets if self._folder.exists(f"annotations/instances_{name}.json")), None)

    @cached_property
    def _train(self) -> dict[str, Any]:
        return _content(self._folder, self._train_set)

    @cached_property
    def _categories(self) -> list[tuple[int, str]]:
        return _categories(self._train)


def _content(folder: Folder, chosen: str) -> dict[str, Any]:
    name = f"annotations/instances_{chosen}.json"
    if not folder.exists(name):
        raise ConfigError(f"no {folder.uri_of(name)}; give data.train_set= and data.test_set= sets that exist")
    where = folder.uri_of(name)
    try:
        content: dict[str, Any] = read_record(read_whole(where), where, dict.fromkeys(FIELDS, list[dict[str, Any]]))
    except Damaged as error:
        raise ConfigError(
            f"{where} is not a COCO annotation file, an object of images, annotations and categories: {error}"
        ) from error
    for key, kinds in FIELDS.items():
        for entry in content[key]:
            for field, kind in kinds.items():
                if field not in entry:
                    raise ConfigError(f"{where}: the entry {entry} of {key!r} has no {field!r}; add it")
                if not fits(entry[field], kind):
                    raise ConfigError(f"{where}: {field!r} of the entry {entry} of {key!r} is of another type")
    for key in ("images", "categories"):
        for identity, num in Counter(entry["id"] for entry in content[key]).most_common(1):
            if num > 1:
                raise ConfigError(f"{where}: {num:,} of {key!r} have the id {identity!r}; give each an id of its own")
    return content


def _categories(content: dict[str, Any]) -> list[tuple[int, str]]:
    return sorted((category["id"], composed(category["name"])) for category in content["categories"])


def _split(folder: Folder, chosen: str, content: dict[str, Any], categories: Sequence[tuple[int, str]]) -> FilesSplit:
    listed_in = f"instances_{chosen}.json"
    try:
        images = sorted(content["images"], key=lambda image: int(image["id"]))
    except ValueError as error:
        raise ConfigError(f"{listed_in}: the id of an image is no number: {error}") from error
    if not images:
        raise ConfigError(f"{folder.uri_of(f'annotations/{listed_in}')} lists no images")
    files = [image["file_name"] for image in images]
    uri = folder.uri_of(f"images/{chosen}" if folder.exists(f"images/{chosen}") else chosen)
    row = {image["id"]: number for number, image in enumerate(images)}
    column = {identity: number for number, (identity, _) in enumerate(categories)}
    labels = np.zeros((len(images), len(categories)), np.int8)
    for is_single in (False, True):  # last, so that a single object overrides a crowd
        for note in content["annotations"]:
            if bool(note.get("iscrowd")) == is_single:
                continue
            if note["image_id"] not in row or note["category_id"] not in column:
                raise ConfigError(
                    f"{listed_in}: the annotation {note.get('id')} names the image {note['image_id']} and the category "
                    f"{note['category_id']}, of which the file lists at most one"
                )
            labels[row[note["image_id"]], column[note["category_id"]]] = 1 if is_single else -1
    return listed_split(uri, files, labels, tuple(name for _, name in categories), listed_in)
