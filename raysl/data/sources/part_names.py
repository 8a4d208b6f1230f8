"""Training and held-out parts of a dataset by the names of files and folders, the same for all sources."""

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from raysl.data.sources.listing import join_some
from raysl.errors import ConfigError

T = TypeVar("T")

RULE = "train, training, val, valid, validation, test or testing"
_PART_BY_WORD = {
    "train": "train",
    "training": "train",
    "trainval": "trainval",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "tests": "test",
    "testing": "test",
}
_KINDS = r"(?:sets?|data|images?|imgs?|splits?|parts?|files?|shards?)?"
_PART = re.compile(rf"({'|'.join(_PART_BY_WORD)}){_KINDS}\d*")
_HELD_OUT = re.compile(rf"(?:val|valid|validation|tests?|testing|eval|evaluation|heldout|holdout){_KINDS}\d*")
_NEUTRAL = re.compile(rf"(?:of|data|images?|{_KINDS}\d*|parquet|pq|tar|snappy|gz|gzip|zstd|zst|lz4|brotli)")


def parse_part_name(name: str) -> str | None:
    """Return the part that a name means, None for other names.

    >>> [parse_part_name(name) for name in ("validation", "split=test", "train_images", "val2017", "cats")]
    ['val', 'test', 'train', 'val', None]
    """
    squeezed = re.sub(r"[\W_]+", "", name.rpartition("=")[2].lower())
    match = _PART.fullmatch(squeezed)
    return None if match is None else _PART_BY_WORD[match[1]]


def find_part(path: str) -> str | None:
    """Return the part of a shard: the word at which its name, else that of a folder above it, begins or ends.

    >>> [find_part(path) for path in ("train-00000-of-00012.parquet", "imagenet-val-0001.tar", "split=test/0.parquet")]
    ['train', 'val', 'test']
    """
    for name in reversed(path.split("/")):
        telling = [word for word in _split_words(name) if not _NEUTRAL.fullmatch(word)]
        for word in (telling[0], telling[-1]) if telling else ():
            if match := _PART.fullmatch(word):
                return _PART_BY_WORD[match[1]]
    return None


def training_part(parts: Container[str | None]) -> str | None:
    """Return the part that is trained on, of those that a dataset has; None if no name says so."""
    return next((part for part in ("train", "trainval") if part in parts), None)


def held_out_part(parts: Container[str | None]) -> str | None:
    """Return the part that is held out, of those that a dataset has: val before test, but trainval contains val.

    >>> held_out_part({"train", "trainval", "val", "test"}), held_out_part({"trainval", "val", "test"})
    ('val', 'test')
    """
    held_out = ("test",) if training_part(parts) == "trainval" else ("val", "test")
    return next((part for part in held_out if part in parts), None)


def trainval_notes(parts: Container[str | None], where: str, ending: str = "") -> list[str]:
    """Return a note if a dataset has trainval beside train or val, which it contains.

    Args:
        ending: end of the names of the settings that choose the parts.
    """
    if "trainval" not in parts:
        return []
    if training_part(parts) == "train":
        return [f"trainval in {where!r} is not used, as there is train; data.train{ending}= trains on it"]
    if "val" not in parts:
        return []
    return [f"val in {where!r} is not held out, as trainval contains it by its name; data.test{ending}= holds it out"]


def group_by_part(names: Iterable[str]) -> dict[str, list[str]]:
    """Group names of folders by the part that they mean; other names are left out."""
    parts: dict[str, list[str]] = {}
    for name in names:
        if (part := parse_part_name(name)) is not None:
            parts.setdefault(part, []).append(name)
    return parts


class PartFiles(NamedTuple, Generic[T]):
    """Shards of the training and held-out parts, and notes about those that are not used, a line each."""

    train: list[T]
    test: list[T]
    notes: tuple[str, ...]


def choose_files(files: Iterable[tuple[str, T]], where: str, is_test_given: bool) -> PartFiles[T]:
    """Choose shards for training, of the part train, else trainval, else of no part, and shards that are held out.

    Args:
        is_test_given: whether the settings name the held-out shards, so that none of these are.
    """
    parts: dict[str | None, list[tuple[str, T]]] = {}
    for path, file in files:
        parts.setdefault(find_part(path), []).append((path, file))
    chosen, held_out = training_part(parts), held_out_part(parts)
    train = parts.get(chosen, [])
    test = [] if held_out is None else parts[held_out]
    notes = [] if is_test_given else trainval_notes(parts, where)
    if chosen is not None and None in parts:
        notes.append(
            f"{len(parts[None]):,} files in {where!r} are not used because their names neither begin nor end with one "
            f"of {RULE}: {join_some([path for path, _ in parts[None]])}"
        )
    notes += held_out_notes((path for path, _ in train), where)
    return PartFiles([file for _, file in train], [file for _, file in test], tuple(notes))


def choose_part(
    config: Any, name: str, kind: str, list_files: Callable[[str], Iterable[tuple[str, T]]]
) -> tuple[str, list[T], tuple[str, ...]] | None:
    """Return address, shards and notes of a split, by `train`, `test` and `path` of a source; None if there is none.

    Args:
        kind: description of a good path, for messages.
        list_files: lists the shards at an address, each with its path.
    """
    is_train = name == "train"
    if (uri := getattr(config, name)) is not None:
        listed = list(list_files(uri))
        notes = held_out_notes((path for path, _ in listed), uri) if is_train else []
        return uri, [file for _, file in listed], tuple(notes)
    if config.path is None:
        if is_train:
            raise ConfigError(f"{config.name} needs data.path= or data.train=, {kind}")
        return None
    parts = choose_files(list_files(config.path), config.path, config.test is not None)
    if is_train and not parts.train:
        raise ConfigError(f"{config.path!r} holds only val and test files; give data.train=")
    if is_train:
        return config.path, parts.train, parts.notes
    return (config.path, parts.test, ()) if parts.test else None


def held_out_notes(paths: Iterable[str], where: str, kind: str = "files") -> list[str]:
    """Return a note if training images have names like held-out ones.

    Args:
        paths: paths in a folder, of each shard, or of the folder of each image.
    """
    counts = Counter(iter(paths))  # a mapping counts by its keys
    alike = [path for path in counts if any(map(_is_held_out, path.split("/")))]
    if not alike:
        return []
    return [
        f"{sum(counts[path] for path in alike):,} of the {counts.total():,} training {kind} in {where!r} have names "
        f"like held-out ones: {join_some(alike)}; if they are, rename their folder to val or test, or give data.train= "
        "and data.test="
    ]


def _is_held_out(name: str) -> bool:
    name_words = _split_words(name)
    return name_words == ["dev"] or any(_HELD_OUT.fullmatch(word) for word in name_words)  # but not libpng-dev


def _split_words(path: str) -> list[str]:
    """Split a path into words: `imagesVal_0001.tar` into images, val, 0001 and tar."""
    return re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", path).lower())
