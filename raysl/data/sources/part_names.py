"""Which part of a dataset files and folders hold, by their names: alike for all sources."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from raysl.data.sources.listing import listed

T = TypeVar("T")

PARTS = ("train", "val", "test")
HELD_OUT = ("val", "test")  # the first that there is
RULE = "train, training, val, valid, validation, test or testing"
_WORD_OF = {
    "train": "train",
    "training": "train",
    "trainval": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "tests": "test",
    "testing": "test",
}
_KINDS = r"(?:sets?|data|images?|imgs?|splits?|parts?|files?|shards?)?"
_PART = re.compile(rf"({'|'.join(_WORD_OF)}){_KINDS}\d*")
_HELD_OUT = re.compile(rf"(?:val|valid|validation|tests?|testing|eval|evaluation|heldout|holdout){_KINDS}\d*")
_NEUTRAL = re.compile(rf"(?:of|data|images?|{_KINDS}\d*|parquet|tar|snappy|gz|gzip|zstd|zst|lz4|brotli)")


def part_named(name: str) -> str | None:
    """The part whose name this is: `Val`, `validation`, `split=test`, `train_images`, `val2017`; else None."""
    squeezed = re.sub(r"[\W_]+", "", name.rpartition("=")[2].lower())
    found = _PART.fullmatch(squeezed)
    return None if found is None else _WORD_OF[found[1]]


def part_of(path: str) -> str | None:
    """The part that a file of many images is of: as its name, or else that of a folder it is in, begins or ends.

    `train-00000-of-00012.parquet`, `b_test.parquet`, `imagenet-val-0001.tar`, `split=test/0.parquet`.
    """
    for name in reversed(path.split("/")):
        words = [word for word in _words(name) if not _NEUTRAL.fullmatch(word)]
        for word in (words[0], words[-1]) if words else ():
            if found := _PART.fullmatch(word):
                return _WORD_OF[found[1]]
    return None


def by_part(names: Iterable[str]) -> dict[str, list[str]]:
    """Names of folders by the part that they are; those of none are left out."""
    found: dict[str, list[str]] = {part: [] for part in PARTS}
    for name in names:
        if (part := part_named(name)) is not None:
            found[part].append(name)
    return found


@dataclass(frozen=True)
class Chosen(Generic[T]):
    """Files of many images by what they are for.

    Args:
        train, test: of which parts; either may be empty.
        notes: what else is there, a line each.
    """

    train: list[T]
    test: list[T]
    notes: tuple[str, ...]


def chosen(files: Iterable[tuple[str, T]], where: str) -> Chosen[T]:
    """Training files are those of the part train, else those of no part; held-out ones those of val, else of test.

    Args:
        files: with their paths in a folder.
        where: this folder, for the notes.
    """
    parts: dict[str | None, list[tuple[str, T]]] = {part: [] for part in (*PARTS, None)}
    for path, file in files:
        parts[part_of(path)].append((path, file))
    test = next((parts[part] for part in HELD_OUT if parts[part]), [])
    train = parts["train"] or parts[None]
    notes: list[str] = []
    if parts["train"] and parts[None]:
        notes.append(
            f"{len(parts[None]):,} files in {where!r} are not used, as their names neither begin nor end with one of "
            f"{RULE}: {listed([path for path, _ in parts[None]])}"
        )
    notes += held_out_notes((path for path, _ in train), where)
    return Chosen([file for _, file in train], [file for _, file in test], tuple(notes))


def held_out_notes(paths: Iterable[str], where: str, kind: str = "files") -> list[str]:
    """A line where what is trained on is called like held-out images.

    Args:
        paths: in a folder, of files, or of the folders of images, one for each of these.
        where: the folder.
        kind: what the paths are of.
    """
    counts = Counter(paths)
    alike = [path for path in counts if any(map(_is_held_out, path.split("/")))]
    if not alike:
        return []
    return [
        f"{sum(counts[path] for path in alike):,} of the {counts.total():,} training {kind} in {where!r} have names "
        f"like those of held-out ones: {listed(alike)}; if they are, call what they are in val or test, or give "
        "data.train= and data.test="
    ]


def _is_held_out(name: str) -> bool:
    words = _words(name)
    return words == ["dev"] or any(_HELD_OUT.fullmatch(word) for word in words)  # libpng-dev is something else


def _words(path: str) -> list[str]:
    """`imagesVal_0001.tar` is images, val, 0001 and tar."""
    return re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", path).lower())
