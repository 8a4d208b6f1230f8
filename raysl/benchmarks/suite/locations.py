"""What lies at the places that a benchmark's settings name: changed files make another result."""

import dataclasses
import hashlib
from typing import Any, get_args, get_type_hints

from pyarrow import fs

from raysl.addresses import info_of, telling
from raysl.config.ranges import bare, is_location


def content_of(config: Any) -> dict[str, str]:
    """A digest of each file or folder that a setting of type `Location` names, by the name of the setting.

    Names, sizes and times of change of all files are looked at, and none of them is read. What is not there has none:
    the benchmark says so itself.
    """
    hints = get_type_hints(type(config), include_extras=True)
    found: dict[str, str] = {}
    for field in dataclasses.fields(config):
        annotation = hints[field.name]
        if is_location(annotation) or any(map(is_location, get_args(bare(annotation)))):
            digests = [_digest(place) for place in _texts(getattr(config, field.name))]
            found |= {field.name: " ".join(digests)} if any(digests) else {}
    return found


def _texts(value: Any) -> list[str]:
    """The places in a setting: one, several, or several by name."""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
    return [place for place in values if isinstance(place, str)]


def _digest(uri: str) -> str:
    system, info = info_of(uri)
    if info.type == fs.FileType.NotFound:
        return ""
    with telling("read", uri):
        is_folder = info.type == fs.FileType.Directory
        files = system.get_file_info(fs.FileSelector(info.path, recursive=True)) if is_folder else [info]
    lines = sorted(f"{file.path.removeprefix(info.path)} {file.size} {file.mtime_ns}" for file in files if file.is_file)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
