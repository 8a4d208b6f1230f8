"""Digests of the code behind a number and of the files that its settings name: others make another result."""

import hashlib
import inspect
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pyarrow import fs

import raysl
from raysl.config.component import list_locations, location_fields
from raysl.data.sources.versions import version_at
from raysl.process.environment import version_of
from raysl.storage.addresses import stat_uri, storage_errors

LIBRARIES = ("torch", "torchvision", "numpy", "scikit-learn", "faiss-gpu", "faiss-cpu")
"""Libraries whose versions count: they decode images and compute features and scores."""


def code_of(*classes: type[object]) -> str:
    """Return twelve hexadecimal digits of the code that computes a benchmark's numbers.

    All of raysl counts, with the versions of `LIBRARIES` and the files of classes that are not raysl's, but not what
    these import. Empty where such a class has no source, as in a notebook.

    Args:
        classes: the benchmark, the backbone and the readers of the images.
    """
    others = [cls for cls in classes if not cls.__module__.startswith("raysl.")]
    try:  # the source of a user's module, and not its path, so that a moved file keeps its results
        sources = [inspect.getsource(inspect.getmodule(cls)) for cls in others]  # type: ignore[arg-type]
    except (OSError, TypeError):
        return ""
    names = " ".join(cls.__qualname__ for cls in others)
    return hashlib.sha256("\0".join([_package(), names, *sources]).encode()).hexdigest()[:12]


@cache
def _package() -> str:
    """Return the digest of raysl's sources and of the versions of libraries."""
    digest = hashlib.sha256(" ".join(version_of(name) or "-" for name in LIBRARIES).encode())
    folder = Path(raysl.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"\0{file.relative_to(folder).as_posix()}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def content_of(config: Any) -> dict[str, str]:
    """Return a digest of each file or folder that a setting of type `Location` names, by the name of the setting.

    Names, sizes and versions (times of change, or ETags) of all files count, and no file is read. What is
    not there has none: the benchmark says so itself.
    """
    return digests_of({name: getattr(config, name) for name in location_fields(config)})


def digests_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the same for settings with locations, by their names."""
    digests_by_name: dict[str, str] = {}
    for name, value in settings.items():
        digests = [_digest(uri) for uri in list_locations(value)]
        digests_by_name |= {name: " ".join(digests)} if any(digests) else {}
    return digests_by_name


def _digest(uri: str) -> str:
    system, info = stat_uri(uri)
    if info.type == fs.FileType.NotFound:
        return ""
    with storage_errors("read", uri):
        is_folder = info.type == fs.FileType.Directory
        files = system.get_file_info(fs.FileSelector(info.path, recursive=True)) if is_folder else [info]
        lines = sorted(
            f"{file.path.removeprefix(info.path)} {file.size} {version_at(system, file)}"
            for file in files
            if file.is_file
        )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
