"""A folder of images, with sub-folders as classes or flat."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from pyarrow import fs

from raysl.config.locations import Location
from raysl.config.schema import ConfigError, DataConfig
from raysl.data.source import Source, Split
from raysl.data.sources.files import FilesSplit
from raysl.storage import absolute, info_of, join, telling

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
HELD_OUT = ("val", "test")


class ImageFolder(Source):
    """Images below a folder: `train/` and `val/` (or `test/`) inside it, or one folder for training alone.

    Sub-folders are classes, in alphabetical order; those of the training images number the held-out ones too. A folder
    whose images lie flat in it has no labels. Files and folders whose names begin with a dot are left out. Images are
    sorted by class, then folder, then name, as torchvision's `ImageFolder` does.
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

        def __post_init__(self) -> None:
            super().__post_init__()
            for name in ("path", "train", "test"):  # workers run in other directories
                if getattr(self, name) is not None:
                    object.__setattr__(self, name, absolute(getattr(self, name)))

    def split(self, name: str) -> Split | None:
        """See `Source.split`."""
        if name == "train":
            return self._train
        folder = self.config.test or self._inside(HELD_OUT)
        return None if folder is None else _FolderSplit(folder, _listed(folder), self._train.classes)

    @cached_property
    def _train(self) -> "_FolderSplit":
        folder = self.config.train or self._inside(("train",))
        if folder is not None:
            return _FolderSplit(folder, _listed(folder))
        if self.config.path is None:
            raise ConfigError("image_folder needs data.path= or data.train=, the folder of the images")
        return _FolderSplit(self.config.path, _listed(self.config.path, without=HELD_OUT))

    def _inside(self, names: Sequence[str]) -> str | None:
        """The first folder of these names in `path` that is there."""
        if self.config.path is None:
            return None
        folders = (join(self.config.path, name) for name in names)
        return next((folder for folder in folders if info_of(folder)[1].type == fs.FileType.Directory), None)


def _listed(uri: str, without: Sequence[str] = ()) -> list[tuple[str, int]]:
    """Paths below a folder, and sizes, of its images, sorted; those in the folders `without` are left out."""
    system, info = info_of(uri)
    if info.type != fs.FileType.Directory:
        raise ConfigError(f"no folder {uri!r}; give data.path= a folder of images")
    with telling("read", uri):
        entries = system.get_file_info(fs.FileSelector(info.path, recursive=True))
    inner = [(entry.path[len(info.path) :].strip("/"), entry) for entry in entries]
    held_out = tuple(f"{name}/" for name in without)
    files = sorted(
        (
            (path, entry.size)
            for path, entry in inner
            if entry.type == fs.FileType.File
            and path.lower().endswith(EXTENSIONS)
            and not any(part.startswith(".") for part in path.split("/"))
            and not path.startswith(held_out)
        ),
        key=_torchvision_order,
    )
    if not files:
        rule = f"it is searched for {', '.join(EXTENSIONS)} files, sub-folders included"
        outside = f" outside {' and '.join(held_out)}" if held_out else ""
        raise ConfigError(f"no images in {uri!r}{outside}; {rule}")
    return files


def _torchvision_order(file: tuple[str, int]) -> tuple[str, str, str]:
    folder, _, base = file[0].rpartition("/")
    return folder.partition("/")[0], folder, base


class _FolderSplit(FilesSplit):
    def __init__(self, uri: str, files: Sequence[tuple[str, int]], classes: tuple[str, ...] | None = None) -> None:
        folders = [path.split("/", 1)[0] if "/" in path else None for path, _ in files]
        found = sorted({folder for folder in folders if folder is not None})
        known = tuple(found) if classes is None else classes
        unknown = sorted(set(found) - set(known))
        if known and unknown:
            some = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
            raise ConfigError(f"{uri!r} has classes that no training image is of: {some}; name folders alike in both")
        place = {name: label for label, name in enumerate(known)}
        labels = np.array([place.get(folder, -1) if folder else -1 for folder in folders], np.int64)
        super().__init__(uri, (path for path, _ in files), labels, known)
        listing = "\n".join(f"{name} {size}" for name, size in files)
        self.fingerprint = hashlib.sha256(listing.encode()).hexdigest()[:16]
