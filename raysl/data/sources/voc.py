"""Pascal VOC: which of 20 classes an image contains."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from typing_extensions import override

from raysl.config.ranges import Location
from raysl.data.source import ConfigError, DataConfig, Source, Split
from raysl.data.sources.image_files import listed_split
from raysl.data.sources.tables import read_lines
from raysl.storage.folder import Folder

LISTS = "ImageSets/Main"
MEANING = {"1": 1, "-1": 0, "0": -1}  # 0 marks present but difficult objects


class VOC(Source):
    """Pascal VOC 2007 or 2012, multi-label: 1 present, 0 absent, -1 difficult and to be ignored.

    Labels come from the lists `ImageSets/Main/{class}_{set}.txt`; classes are in alphabetical order. Source: Everingham
    et al., The Pascal Visual Object Classes Challenge, IJCV 2010.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """Where the year's folder lies, and which of its sets to use."""

        name: str = "voc"
        path: Location | None = None
        """Folder or URI of one year, such as `VOCdevkit/VOC2007`, with `JPEGImages` and `ImageSets`."""
        train_set: str | None = None
        """Set of the training images. Default: trainval if there is a test set (2007), else train (2012)."""
        test_set: str | None = None
        """Set of the held-out images. Default: test, else val."""
        validation_set: str | None = None
        """Further training images, behind those of `train_set`; benchmarks choose their settings on them where they
        can."""

    @override
    def split(self, name: str) -> Split | None:
        train_set, test_set = self._sets
        chosen = train_set if name == "train" else test_set
        if chosen is None:
            return None
        files, labels = self._table(chosen)
        validation = self.config.validation_set
        if name == "test":
            self._refuse_common(files, test_set, train_set, "data.train_set= and data.test_set=")
            if validation is not None:
                self._refuse_common(files, test_set, validation, "data.test_set= and data.validation_set=")
        num_validation = 0
        if name == "train" and validation is not None:
            self._refuse_common(files, train_set, validation, "data.train_set= and data.validation_set=")
            more, its_labels = self._table(validation)
            files, labels, num_validation = files + more, np.concatenate([labels, its_labels]), len(more)
        uri = self._folder.uri_of("JPEGImages")
        split = listed_split(uri, files, labels, self._classes, f"the set {chosen!r}")
        split.num_validation = num_validation
        return split

    def _refuse_common(self, files: Sequence[str], chosen: str | None, other: str, settings: str) -> None:
        both = set(files) & set(self._table(other)[0])
        if both:
            raise ConfigError(
                f"{len(both):,} images of the set {chosen!r} are in {other!r} too; give {settings} that share none"
            )

    @cached_property
    def _folder(self) -> Folder:
        if self.config.path is None:
            raise ConfigError("voc needs data.path=, the folder of one year, such as VOCdevkit/VOC2007")
        folder = Folder(self.config.path)
        if not folder.exists(LISTS):
            raise ConfigError(
                f"no {LISTS} in {folder.uri!r}; give data.path= the folder of one year, such as VOCdevkit/VOC2007"
            )
        return folder

    @cached_property
    def _lists(self) -> dict[str, list[str]]:
        """Classes by the name of the set that lists them."""
        lists: dict[str, list[str]] = {}
        for name in self._folder.child(LISTS).names():
            label, _, chosen = name.removesuffix(".txt").rpartition("_")
            if label and name.endswith(".txt"):
                lists.setdefault(chosen, []).append(label)
        return lists

    @cached_property
    def _sets(self) -> tuple[str, str | None]:
        held_out = next((chosen for chosen in ("test", "val") if chosen in self._lists), None)
        test_set = self.config.test_set or held_out
        # trainval contains val, so where val is held out, only train has none of its images
        return self.config.train_set or ("train" if test_set == "val" else "trainval"), test_set

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        return tuple(self._listed(self._sets[0]))

    def _listed(self, chosen: str) -> Sequence[str]:
        if chosen not in self._lists:
            known = ", ".join(sorted(self._lists)) or "none"
            raise ConfigError(f"no {{class}}_{chosen}.txt in {self._folder.uri_of(LISTS)}; its sets: {known}")
        return self._lists[chosen]

    def _table(self, chosen: str) -> tuple[list[str], np.ndarray]:
        """Files of a set, and their labels int8 [N, K]."""
        if tuple(self._listed(chosen)) != self._classes:
            odd = sorted(set(self._listed(chosen)) ^ set(self._classes))
            raise ConfigError(f"the set {chosen!r} lists other classes than {self._sets[0]!r}: {', '.join(odd[:5])}")
        columns = [self._column(f"{LISTS}/{label}_{chosen}.txt") for label in self._classes]
        for label, column in zip(self._classes, columns, strict=True):
            if column.keys() != columns[0].keys():
                raise ConfigError(f"{label}_{chosen}.txt and {self._classes[0]}_{chosen}.txt list different images")
        files = list(columns[0])
        labels = np.array([[column[file] for column in columns] for file in files], np.int8)
        return [f"{file}.jpg" for file in files], labels

    def _column(self, path: str) -> dict[str, int]:
        labels: dict[str, int] = {}
        for number, line in read_lines(self._folder.uri_of(path), "fetch it again"):
            entries = line.split()
            where = f"{self._folder.uri_of(path)}, line {number}"
            if len(entries) != 2 or entries[1] not in MEANING:
                raise ConfigError(f"{where}: {line!r} is not an image name and -1, 0 or 1")
            if entries[0] in labels:
                raise ConfigError(f"{where}: the image {entries[0]!r} is listed twice; keep one of both lines")
            labels[entries[0]] = MEANING[entries[1]]
        if not labels:
            raise ConfigError(f"{self._folder.uri_of(path)} lists no images")
        return labels
