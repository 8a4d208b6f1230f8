"""A board of notes without a cluster."""

import json
from typing import Any

from raysl.cluster.board import Board


class Notes(Board):
    """Keeps notes as JSON, as a cluster does.

    Args:
        notes: by name.
    """

    def __init__(self, **notes: Any) -> None:
        super().__init__("a run")
        self.notes = {name: json.dumps(value) for name, value in notes.items()}

    def write(self, name: str, value: Any) -> None:
        self.notes[name] = json.dumps(value)

    def read(self, name: str) -> Any:
        return json.loads(self.notes.get(name, "null"))

    def names(self, prefix: str) -> list[str]:
        return sorted(name for name in self.notes if name.startswith(prefix))

    @property
    def is_there(self) -> bool:
        return True

    def clear(self) -> None:
        self.notes.clear()
