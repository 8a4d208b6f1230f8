"""What every group of settings that names a component has."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ComponentConfig:
    """A node whose `name` picks the class that reads it."""

    name: str
    """Alias, `package.module:Class`, or `path/to/file.py:Class`."""
