"""A folder of images, with sub-folders as classes or flat."""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from pyarrow import fs
from typing_extensions import override

from raysl.config.places import ARRAYS, EXTENSIONS
from raysl.config.ranges import Location
from raysl.data.source import LABELS, ConfigError, DataConfig, Source, Split
from raysl.data.sources.frames import with_frames
from raysl.data.sources.image_files import FilesSplit
from raysl.data.sources.listing import (
    UNREADABLE,
    File,
    composed,
    is_image,
    is_image_or_array,
    join_some,
    list_files,
    list_folders,
    printable,
)
from raysl.data.sources.part_names import (
    group_by_part,
    held_out_notes,
    held_out_part,
    parse_part_name,
    training_part,
    trainval_notes,
)
from raysl.hashing import digest
from raysl.storage.addresses import join, stat_uri


class ImageFolder(Source):
    """Images below a folder: `train/` and `val/` (or `test/`) inside it, or one folder for training alone.

    Folders called `Training`, `valid`, `validation`, `split=test`, `test_images` and the like count as these.

    Sub-folders are classes, in alphabetical order; those of the training images number the held-out ones too. Images
    without a sub-folder have no labels. Files and folders whose names begin with a dot are left out, and so are what
    systems leave behind, such as `@eaDir`, `__MACOSX` and `$RECYCLE.BIN`. Images are sorted by class, then folder, then
    name, as torchvision's `ImageFolder` does. Each frame of a DICOM file is an image, and each slice
    of a NIfTI file or of an array of slices.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """Where the images lie."""

        name: str = "image_folder"
        path: Location | None = None
        """Folder or URI with `train` and `val` or `test` sub-folders, or with the training images themselves."""
        train: Location | None = None
        """Folder or URI of the training images, instead of the one in `path`."""
        test: Location | None = None
        """Folder or URI of the held-out images, instead of the one in `path`."""
        classes: tuple[str, ...] = ()
        """Sub-folders that are used, the others are left out; default: all."""

    @override
    def split(self, name: str) -> Split | None:
        if name == "train":
            return self._train
        folder = self.config.test or self._inside(held_out_part(self._names))
        if folder is None:
            return None
        files = _FolderSplit(folder, *self._images(folder), self._train.classes)
        return with_frames(files, self.config.channels)

    @cached_property
    def _train(self) -> Split:
        named, held_out = self.config.train or self._inside(training_part(self._names)), []
        if named is None:
            if self.config.path is None:
                raise ConfigError("image_folder needs data.path= or data.train=, the folder of the images")
            held_out = [name for part in ("val", "test") for name in self._names.get(part, [])]
        folder = named or self.config.path
        files, problems = self._images(folder, held_out)
        notes = _training_notes(folder, files, "data.train=" if named else "data.path=", held_out)
        notes += (self._unused_notes() if named else ()) + problems
        if self.config.train is None and self.config.test is None and self.config.path is not None:
            notes += tuple(trainval_notes(self._names, self.config.path))
        return with_frames(_FolderSplit(folder, files, notes), self.config.channels)

    def _images(self, uri: str, without: Sequence[str] = ()) -> tuple[list[File], tuple[str, ...]]:
        files, notes = _images(uri, isinstance(self.config.channels, int), without)
        return (_of_classes(files, self.config.classes, uri) if self.config.classes else files), notes

    def _unused_notes(self) -> tuple[str, ...]:
        """Return a note if `path` has other folders beside those that are splits by name."""
        if self.config.train is not None or self.config.path is None:
            return ()
        unused = [name for name in list_folders(self.config.path) if parse_part_name(name) is None]
        if not unused:
            return ()
        training = self._names[training_part(self._names) or ""][0]
        return (
            f"{len(unused):,} folders in {self.config.path!r} are not used: {join_some(unused)}; by its name, "
            f"{printable(training)!r} is the training images; if it is a class like them, give "
            f"data.train={self.config.path}",
        )

    @cached_property
    def _names(self) -> dict[str, list[str]]:
        """Names of the folders of each part that `path` has."""
        if self.config.path is not None:
            _check_folder(self.config.path)
        return group_by_part([] if self.config.path is None else list_folders(self.config.path))

    def _inside(self, part: str | None) -> str | None:
        """Return the folder of a part in `path`; None without one."""
        names = [] if part is None else self._names[part]
        if len(names) > 1:
            setting = "data.train=" if part in ("train", "trainval") else "data.test="
            both = " and ".join(repr(printable(name)) for name in names)
            raise ConfigError(f"{both} in {self.config.path!r} are both {part} by name; give {setting}")
        return join(self.config.path, names[0]) if names else None


def _of_classes(files: Sequence[File], classes: Sequence[str], uri: str) -> list[File]:
    """Return the files in the sub-folders with these names, each of which has to have some."""
    wanted = {composed(name) for name in classes}
    chosen = [file for file in files if "/" in file.path and _class_of(file) in wanted]
    if absent := sorted(wanted - {_class_of(file) for file in chosen}):
        raise ConfigError(
            f"{len(absent):,} of the {len(wanted):,} folders that data.classes= names have no images in {uri!r}: "
            f"{join_some(absent)}"
        )
    return chosen


def _class_of(file: File) -> str:
    return composed(printable(file.path.split("/", 1)[0]))


def _check_folder(uri: str) -> None:
    if stat_uri(uri)[1].type != fs.FileType.Directory:
        raise ConfigError(f"no folder {uri!r}; give data.path= a folder of images")


def _images(uri: str, has_arrays: bool, without: Sequence[str]) -> tuple[list[File], tuple[str, ...]]:
    """List all images below a folder, sorted, and notes on their problems, a line each."""
    _check_folder(uri)
    listing = list_files(uri)
    outside = tuple(f"{name}/" for name in without)
    files = [file for file in listing.files if not file.path.startswith(outside)]
    is_wanted = is_image_or_array if has_arrays else is_image
    images = sorted((file for file in files if is_wanted(file.path)), key=_torchvision_order)
    if not images:
        endings = (*EXTENSIONS, *(f".{ending}" for ending in ARRAYS if has_arrays))
        rule = f"it is searched for {', '.join(endings)} files, sub-folders included"
        if not has_arrays and any(is_image_or_array(file.path) for file in files):
            rule += "; .npy and .npz files are images where data.channels= is their number of channels"
        where = f" outside {' and '.join(outside)}" if outside else ""
        raise ConfigError(f"no images in {uri!r}{where}; {rule}")
    notes = listing.notes(uri, images, is_wanted)
    unreadable = sorted(file.path for file in files if file.path.lower().endswith(UNREADABLE))
    if unreadable:
        notes += (
            f"{len(unreadable):,} files in {uri!r} are left out because raysl does not read their format: "
            f"{join_some(unreadable)}; convert them to JPEG or PNG",
        )
    return images, notes


def _training_notes(uri: str, files: Sequence[File], setting: str, held_out: Sequence[str] = ()) -> tuple[str, ...]:
    """Return notes on training images whose folders have unexpected names, a line each."""
    folders = [folder for file in files if (folder := file.path.rpartition("/")[0])]
    notes = held_out_notes(folders, uri, "images")
    if len(folders) == len(files) and len({folder.partition("/")[0] for folder in folders}) == 1:
        common = printable(posixpath.commonpath(folders))
        notes.append(
            f"all {len(files):,} images are one class, {common.partition('/')[0]!r}; "
            f"did you mean {setting}{join(uri, common)}?"
        )
    if held_out:
        notes.append(
            f"{join_some(held_out)} in {uri!r} is held out because of its name; if it is a class, give data.train= the "
            "folder that contains the classes"
        )
    return tuple(notes)


def _torchvision_order(file: File) -> tuple[str, str, str]:
    folder, _, base = file.path.rpartition("/")
    return folder.partition("/")[0], folder, base


class _FolderSplit(FilesSplit):
    def __init__(
        self, uri: str, files: Sequence[File], notes: tuple[str, ...], classes: tuple[str, ...] | None = None
    ) -> None:
        folders = [_class_of(file) if "/" in file.path else None for file in files]
        names = sorted({folder for folder in folders if folder is not None})
        known = tuple(names) if classes is None else classes
        unknown = sorted(set(names) - set(known))
        if known and unknown:
            some = join_some(unknown, 5)
            raise ConfigError(
                f"{uri!r} has classes without training images: {some}; give folders the same names in both"
            )
        label_of = {name: label for label, name in enumerate(known)}
        labels = np.array([label_of.get(folder, -1) if folder else -1 for folder in folders], np.int64)
        paths, mtimes = (file.path for file in files), (file.mtime_ns for file in files)
        super().__init__(uri, paths, labels, known, notes=notes, mtimes=mtimes)
        content = "\n".join(f"{file.path} {file.size}" for file in files)
        self.fingerprint = digest(content)

    @override
    def content(self) -> Mapping[str, str]:
        # The fingerprint covers the folders, but not the classes that number them.
        return {LABELS: digest(self.labels.tobytes())}
