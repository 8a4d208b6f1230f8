"""Short notes between the driver, the controller and the workers of a run, kept by the head of the Ray cluster."""

import json
from typing import Any

from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_initialized,
    _internal_kv_list,
    _internal_kv_put,
)

_NAMESPACE = b"raysl"


class Board:
    """Notes by name, which any process of a cluster writes and reads.

    Args:
        key: key of the run; other runs on the same cluster have other ones.
    """

    def __init__(self, key: str) -> None:
        self.key = key

    def write(self, name: str, value: Any) -> None:
        """Replace a note by a value of JSON."""
        _internal_kv_put(f"{self.key}/{name}", json.dumps(value).encode(), namespace=_NAMESPACE)

    def read(self, name: str) -> Any:
        """Return a note, or None if there is none."""
        content = _internal_kv_get(f"{self.key}/{name}", namespace=_NAMESPACE)
        return None if content is None else json.loads(content)

    def remove(self, name: str) -> None:
        """Remove a note, if it is there."""
        _internal_kv_del(f"{self.key}/{name}", namespace=_NAMESPACE)

    def names(self, prefix: str) -> list[str]:
        """Return the names of notes that begin with a prefix, in order."""
        start = len(f"{self.key}/")
        keys = _internal_kv_list(f"{self.key}/{prefix}", namespace=_NAMESPACE)
        return sorted(key.decode()[start:] for key in keys)

    @property
    def is_there(self) -> bool:
        """Whether this process is connected to a cluster."""
        return bool(_internal_kv_initialized())

    def clear(self) -> None:
        """Remove all notes."""
        _internal_kv_del(f"{self.key}/", del_by_prefix=True, namespace=_NAMESPACE)
