"""Whether a folder that `raysl ingest` fills is whole."""

import json
from collections.abc import Mapping

from pyarrow import fs

from raysl.config.schema import ConfigError
from raysl.storage import read_file, telling

PLAN_FILE = "ingest.json"
MANIFEST_FILE = "manifest.json"


def check_finished(system: fs.FileSystem, sizes: Mapping[str, int]) -> None:
    """Refuse folders that an ingest began to fill and did not end, or that lack files since.

    Args:
        system: where they are.
        sizes: bytes of all files below some folder, by path.

    Raises:
        ConfigError: naming the folder, and what it lacks.
    """
    for plan in (path for path in sizes if path.rpartition("/")[2] == PLAN_FILE):
        folder = plan.rpartition("/")[0]
        lacks = _lacking(system, folder, sizes)
        if lacks is not None:
            raise ConfigError(
                f"{folder} is an unfinished ingest: {lacks} is missing or not whole; run the same `raysl ingest` again"
            )


def _lacking(system: fs.FileSystem, folder: str, sizes: Mapping[str, int]) -> str | None:
    manifest = f"{folder}/{MANIFEST_FILE}"
    if manifest not in sizes:
        return MANIFEST_FILE
    with telling("read", manifest):
        splits = json.loads(read_file(system, manifest))["splits"].values()
    files = ((file["name"], file["bytes"]) for split in splits for file in split["files"])
    return next((name for name, num_bytes in files if sizes.get(f"{folder}/{name}") != num_bytes), None)
