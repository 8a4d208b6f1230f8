"""The runs that a run was forked from: `lineage.json` in its folder."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from raysl.storage.folder import Folder
from raysl.storage.records import Damaged, from_record

LINEAGE_FILE = "lineage.json"


@dataclass(frozen=True)
class Parent:
    """A checkpoint of a run from which another run was forked.

    Args:
        epoch: number of epochs done in it.
        path: URI of the run's folder, without credentials.
    """

    run: str
    step: int
    epoch: float
    path: str

    def __str__(self) -> str:
        return f"{self.run} at step {self.step} (epoch {self.epoch:g})"


def read_parents(folder: Folder) -> list[Parent]:
    """Return the ancestors of the run in a folder, its parent first; none if it began by itself."""
    content, where = folder.read_if_there(LINEAGE_FILE), folder.uri_of(LINEAGE_FILE)
    try:
        parents = json.loads(content or b"[]")
        if not isinstance(parents, list):
            raise Damaged(f"{where} is damaged: it is no list")
        return [from_record(Parent, parent, where) for parent in parents]
    except (ValueError, RecursionError) as error:
        what = error if isinstance(error, Damaged) else f"{where} is damaged: {error}"
        raise Damaged(f"{what}; delete the run, and fork again") from error


def write_parents(folder: Folder, parents: Sequence[Parent]) -> None:
    """Write the ancestors of a run, its parent first."""
    folder.write(LINEAGE_FILE, json.dumps([asdict(parent) for parent in parents], indent=1).encode())
