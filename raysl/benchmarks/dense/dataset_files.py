"""Files of a dataset with masks or boxes: listed on the driver, then read and decoded one by one."""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self, TypeVar

import numpy as np
from torch import Tensor
from typing_extensions import override

from raysl.data.decode.decode import CorruptImage, decode
from raysl.data.source import Source
from raysl.data.sources.image_files import read_if_there
from raysl.data.sources.listing import list_folder_files
from raysl.data.sources.sample import even_index
from raysl.data.split import Int64s, Missing, Rows, Split
from raysl.errors import ConfigError
from raysl.storage.folder import Folder, open_uri
from raysl.storage.whole import read_whole

T = TypeVar("T")


@dataclass(frozen=True)
class Files:
    """Files in a fixed order.

    Args:
        folders: address of the folder of each file, local or remote.
        names: names of the files; those in a folder inside have its name in front, as `a/1.jpg`.
        sizes: bytes of each file, int64 [N]; -1 where the storage does not tell.
    """

    folders: tuple[str, ...]
    names: tuple[str, ...]
    sizes: Int64s = field(repr=False)

    @classmethod
    def of(cls, uri: str, names: Sequence[str], listed_in: str) -> "Files":
        """Find the files of one folder that a list names."""
        # list each folder once: asking for every file takes far longer on a remote storage
        present = {
            f"{inner}{name}": file
            for inner in sorted({name[: name.rfind("/") + 1] for name in names})
            if Folder(uri).exists(inner)
            for name, file in list_folder_files(f"{uri.rstrip('/')}/{inner}" if inner else uri).items()
        }
        if absent := [name for name in names if name not in present]:
            raise ConfigError(
                f"{len(absent):,} of the {len(names):,} files that {listed_in} lists are not in {uri!r}, first "
                f"{absent[0]!r}; is the download whole?"
            )
        sizes = [present[name].size for name in names]
        return cls(
            (uri,) * len(names), tuple(names), np.array([-1 if size is None else size for size in sizes], np.int64)
        )

    def __len__(self) -> int:
        return len(self.names)

    def take(self, numbers: Int64s) -> "Files":
        """Return the files with some numbers."""
        folders, names = (tuple(values[number] for number in numbers.tolist()) for values in (self.folders, self.names))
        return Files(folders, names, self.sizes[numbers])

    def __add__(self, other: "Files") -> "Files":
        """Return these files and then others."""
        sizes = np.concatenate([self.sizes, other.sizes])
        return Files(self.folders + other.folders, self.names + other.names, sizes)

    def digest(self) -> bytes:
        """Return a digest of the names and sizes."""
        return hashlib.sha256("\n".join(self.names).encode() + self.sizes.tobytes()).digest()

    def read(self, number: int) -> bytes:
        """Read a file."""
        system, root = open_uri(self.folders[number])
        data = read_if_there(system, f"{root}/{self.names[number]}")
        if isinstance(data, Missing):
            raise ConfigError(f"{self.uri_of(number)}: {data.reason}; fetch the dataset anew")
        assert isinstance(data, bytes)
        return data

    def image(self, number: int) -> Tensor:
        """Read an image, uint8 [3, H, W].

        Raises:
            ConfigError: if it is gone or broken: in a set that scores are compared on, none may be replaced.
        """
        return self.decoded(number, decode)

    def decoded(self, number: int, decoder: Callable[[bytes], T]) -> T:
        """Read and decode a file."""
        try:
            return decoder(self.read(number))
        except CorruptImage as error:
            raise ConfigError(f"{self.uri_of(number)}: {error}; fetch the dataset anew") from error

    def uri_of(self, number: int) -> str:
        """Return the address of a file."""
        return Folder(self.folders[number]).uri_of(self.names[number])


class TargetSplit(Split):
    """Images of files, each with a target that a subclass reads."""

    is_random_access = True
    images: Files

    def __len__(self) -> int:
        return len(self.images)

    @cached_property
    def unit_sizes(self) -> Int64s:  # type: ignore[override]
        """One read unit: any image can be read by itself."""
        return np.array([len(self)])

    def image(self, number: int) -> Tensor:
        """Read an image, uint8 [3, H, W]."""
        return self.images.image(number)

    @override
    def read(self, index: Int64s) -> Rows:
        names = [self.images.names[number] for number in index.tolist()]
        return Rows([self.images.read(number) for number in index.tolist()], np.full(len(index), -1), names)


class TargetSource(Source):
    """A dataset of images with targets, of which `data.limit` takes an even share."""

    @override
    def optional(self, name: str) -> TargetSplit:
        return self.split(name)  # the other settings that choose images are for classes

    @override
    @abstractmethod
    def split(self, name: str) -> TargetSplit:
        """Return the split `train` or `test`, which each of these datasets has."""


@dataclass(frozen=True)
class PairedSplit(TargetSplit):
    """Images, and in the same order files that have a number for each pixel of them."""

    images: Files
    targets: Files

    @cached_property
    def fingerprint(self) -> str:  # type: ignore[override]
        """Digest of the images and their targets."""
        return hashlib.sha256(self.images.digest() + self.targets.digest()).hexdigest()[:16]

    def part(self, limit: int | None) -> Self:
        """Return an even share of at most `limit` images."""
        numbers = even_index(len(self), limit or len(self))
        return replace(self, images=self.images.take(numbers), targets=self.targets.take(numbers))

    @abstractmethod
    def target(self, number: int) -> Tensor:
        """Read the target of an image [H, W]."""

    def sample(self, number: int) -> tuple[Tensor, Tensor]:
        """Read an image uint8 [3, H, W] and its target [H, W], see `target`."""
        image, target = self.image(number), self.target(number)
        if image.shape[1:] != target.shape:
            raise ConfigError(
                f"{self.targets.uri_of(number)} has {list(target.shape)} pixels, and its image "
                f"{list(image.shape[1:])}; fetch the dataset anew"
            )
        return image, target


def require(folder: Folder, name: str) -> None:
    """Refuse a dataset without this file or folder."""
    if not folder.exists(name):
        raise ConfigError(f"no {folder.uri_of(name)}; is the download whole, and the path that of this layout?")


def lines_of(folder: Folder, name: str) -> list[str]:
    """Read the first word of each non-empty line of a list: names of images."""
    return [row[0] for row in rows_of(folder, name)]


def rows_of(folder: Folder, name: str) -> list[list[str]]:
    """Read the words of each non-empty line of a list."""
    require(folder, name)
    try:
        lines = read_whole(folder.uri_of(name)).decode().splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{folder.uri_of(name)} is not UTF-8 text; fetch it anew") from error
    rows = [line.split() for line in lines if line.strip()]
    if not rows:
        raise ConfigError(f"{folder.uri_of(name)} lists no images")
    return rows
