"""Digests of the files that a benchmark's settings name: changed files make another result."""

import hashlib
from collections.abc import Mapping
from typing import Any

from pyarrow import fs

from raysl.config.component import list_locations, location_fields
from raysl.data.sources.versions import version_at
from raysl.storage.addresses import stat_uri, storage_errors


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
