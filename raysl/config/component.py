"""What settings of all kinds have: names of components, and the mark of what may change."""

from dataclasses import dataclass

MAY_CHANGE: dict[str, bool] = {"may_change": True}
"""Metadata of a field that may differ when a run is started again under its name."""


@dataclass(frozen=True, kw_only=True)
class ComponentConfig:
    """A node whose `name` picks the class that reads it."""

    name: str
    """Alias, `package.module:Class`, or `path/to/file.py:Class`."""
