"""The folder of an ingest: whether it may be filled, and what for."""

import json
import os

from raysl.config.dump import plain, write_inline
from raysl.config.schema import DataConfig
from raysl.data.ingest.ingested import MANIFEST_FILE, PLAN_FILE, Json
from raysl.errors import ConfigError
from raysl.storage.folder import PART, Folder

CORRUPT_FILE = "corrupt.jsonl"

_FILES = (PLAN_FILE, MANIFEST_FILE, CORRUPT_FILE)
_LISTS = ("check.jsonl", "check.json")  # of `raysl ingest --check`, which may have been given the same folder
_LISTED = ("path", "train", "test")  # settings of sources that name folders with all that is in them
_SHOWN = 5


def claim(folder: Folder, plan: Json, data: DataConfig) -> None:
    """Write down what the folder is for, or check that it is for the same.

    Args:
        folder: to fill.
        plan: what decides what its files hold.
        data: settings of the source.

    Raises:
        ConfigError: if it is the source's own folder or lies in it, holds other files, or was begun for another plan.
    """
    _refuse_source(folder.uri, data)
    before = folder.read_if_there(PLAN_FILE)
    others = [name for name in folder.names() if not _is_own(name, is_begun=bool(before))]
    if others:
        some = ", ".join(others[:_SHOWN]) + (", ..." if len(others) > _SHOWN else "")
        raise ConfigError(f"{folder.uri} holds files of another origin: {some}; give --out an empty folder")
    if not before:
        folder.make()
        folder.write(PLAN_FILE, text_of(plan))
        return
    old, new = _leaves(json.loads(before)), _leaves(plan)
    changed = [key for key in old | new if old.get(key, _UNSET) != new.get(key, _UNSET)]
    if changed:
        lines = "\n  ".join(f"{key}: {_shown(old, key)} -> {_shown(new, key)}" for key in changed)
        raise ConfigError(
            f"{folder.uri} is of images or settings that differ:\n  {lines}\n"
            "give another --out, or go back to those settings to go on with it"
        )


def _is_own(name: str, is_begun: bool) -> bool:
    """Whether what is called so may lie in a folder that an ingest fills."""
    if name.startswith(".") or name.endswith(PART) or name in _LISTS:
        return True
    return is_begun and (name in _FILES or name.startswith(("train-", "test-")) or not name.endswith(".parquet"))


def _refuse_source(out: str, data: DataConfig) -> None:
    """Files that are written where the images are listed would be listed with them."""
    place = _place(out)
    for key, value in _leaves(plain(data)).items():
        if not isinstance(value, str) or not ("://" in value or value.startswith("/")):
            continue
        is_inside = key.rpartition(".")[2] in _LISTED and place.startswith(f"{_place(value)}/")
        if place == _place(value) or is_inside:
            what = "lies in the source" if is_inside else "is the source itself"
            raise ConfigError(f"--out {out} {what}, data.{key}={value}; give a folder outside")


def _place(uri: str) -> str:
    """An address without what changes nothing of the place: links, the query, a slash at the end."""
    path = uri.partition("?")[0].removeprefix("file://") if "://" in uri else uri
    return path.rstrip("/") if "://" in path else os.path.realpath(path)


_UNSET = object()


def _leaves(tree: Json, prefix: str = "") -> Json:
    found: Json = {}
    for key, value in tree.items():
        found |= _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def _shown(leaves: Json, key: str) -> str:
    return write_inline(leaves[key]) if key in leaves else "unset"


def text_of(tree: Json) -> bytes:
    """A tree as the JSON files of an ingest have it."""
    return (json.dumps(tree, indent=1) + "\n").encode()
