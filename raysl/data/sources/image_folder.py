"""A folder of images, with sub-folders as classes or flat."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pyarrow import fs

from raysl.config.schema import ConfigError, DataConfig
from raysl.data.source import Rows, Source, Split, runs
from raysl.hashing import Int64s
from raysl.storage import open_uri

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")


class ImageFolder(Source):
    """Images below a folder: `train/` and `val/` (or `test/`) inside it, or one folder for training alone.

    Sub-folders are classes, in alphabetical order. A folder whose images lie flat in it has no labels.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """Where the images lie."""

        name: str = "image_folder"
        path: str | None = None
        """Folder or URI with `train` and `val` or `test` sub-folders, or with the training images themselves."""
        train: str | None = None
        """Folder or URI of the training images, instead of the one in `path`."""
        test: str | None = None
        """Folder or URI of the held-out images, instead of the one in `path`."""

    def split(self, name: str) -> Split | None:
        """See `Source.split`."""
        given = getattr(self.config, name)
        if given is not None:
            return _split_at(given)
        if self.config.path is None:
            if name == "train":
                raise ConfigError("image_folder needs data.path= or data.train=, the folder of the images")
            return None
        system, path = open_uri(self.config.path)
        names = {"train": ("train",), "test": ("val", "test")}[name]
        for candidate in names:
            if system.get_file_info(f"{path}/{candidate}").type == fs.FileType.Directory:
                return _split_at(f"{self.config.path.rstrip('/')}/{candidate}")
        return _split_at(self.config.path) if name == "train" else None


def _split_at(uri: str) -> "_FolderSplit":
    system, root = open_uri(uri)
    info = system.get_file_info(root)
    if info.type != fs.FileType.Directory:
        raise ConfigError(f"no folder {uri!r}; give data.path= a folder of images")
    files = sorted(
        (entry.path, entry.size)
        for entry in system.get_file_info(fs.FileSelector(root, recursive=True))
        if entry.type == fs.FileType.File and entry.path.lower().endswith(EXTENSIONS)
    )
    if not files:
        raise ConfigError(f"no images in {uri!r}; it is searched for {', '.join(EXTENSIONS)} files, sub-folders included")
    return _FolderSplit(uri, root, files)


class _FolderSplit(Split):
    is_random_access = True

    def __init__(self, uri: str, root: str, files: Sequence[tuple[str, int]]) -> None:
        self.uri = uri
        self.paths = [path for path, _ in files]
        inner = [path[len(root) :].strip("/") for path in self.paths]
        folders = [path.split("/", 1)[0] if "/" in path else None for path in inner]
        self.classes = tuple(sorted({folder for folder in folders if folder is not None}))
        place = {name: label for label, name in enumerate(self.classes)}
        self.labels = np.array([-1 if folder is None else place[folder] for folder in folders], np.int64)
        self.unit_sizes = runs(len(self.paths))
        listing = "\n".join(f"{name} {size}" for name, (_, size) in zip(inner, files, strict=True))
        self.fingerprint = hashlib.sha256(listing.encode()).hexdigest()[:16]

    def read(self, index: Int64s) -> Rows:
        system, _ = open_uri(self.uri)
        names = [self.paths[row] for row in index.tolist()]
        images: list[bytes | np.ndarray] = []
        for path in names:
            with system.open_input_stream(path) as stream:
                images.append(stream.read())
        return Rows(images, self.labels[index], names)
