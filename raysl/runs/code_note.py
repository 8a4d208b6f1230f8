"""The files of users that a run works with: noted in its folder by name and digest, and compared at every start.

A run goes on with a changed file, for its user may have mended it: one line says so.
"""

import json
from collections.abc import Mapping

from raysl.checkpoint.checkpoint_folder import NewestCheckpoint
from raysl.storage.folder import Folder
from raysl.storage.records import read_record

CODE_FILE = "code.json"


def read_code(folder: Folder) -> dict[str, str]:
    """Return the digests of users' files at the last start of a run, by their names in its settings."""
    noted: dict[str, str] = read_record(folder.read_if_there(CODE_FILE) or b"{}", folder.uri_of(CODE_FILE))
    return noted


def moved_files(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return the present name of each file that has another name than before and the same content.

    >>> moved_files({"vicreg.py": "3fa9", "data.py": "51c0"}, {"mine/vicreg.py": "3fa9", "data.py": "51c0"})
    {'vicreg.py': 'mine/vicreg.py'}
    """
    names = {digest: name for name, digest in now.items()}
    return {name: names[digest] for name, digest in before.items() if name not in now and digest in names}


def claim_code(folder: Folder, now: Mapping[str, str], checkpoint: NewestCheckpoint | None) -> str | None:
    """Note the digests of a run's files; return a line about those that have changed since its last start, or None.

    Args:
        checkpoint: the newest one of the run, if that is known.
    """
    before = read_code(folder)
    changed = [name for name in now if before.get(name, now[name]) != now[name]]
    if now != before:
        folder.write(CODE_FILE, json.dumps(now, indent=1).encode())
    if not changed or checkpoint is None or checkpoint.name is None:
        return None
    hashes = ", ".join(f"{name} (SHA-256 {before[name][:8]} -> {now[name][:8]})" for name in changed)
    return f"goes on with changed code at step {checkpoint.step}: {hashes}"
