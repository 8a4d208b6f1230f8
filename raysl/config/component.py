"""What settings of all kinds have: names of components, and the mark of what may change."""

from dataclasses import dataclass

from raysl.config.locations import make_absolute

MAY_CHANGE: dict[str, bool] = {"may_change": True}
"""Metadata of a field that may differ when a run is started again under its name."""


@dataclass(frozen=True, kw_only=True)
class ComponentConfig:
    """A node whose `name` picks the class that reads it."""

    name: str
    """Alias, `package.module:Class`, or `path/to/file.py:Class`."""

    def __post_init__(self) -> None:
        """Make paths absolute: workers and tasks run in other directories, and a second start may."""
        make_absolute(self, self.is_place)

    def is_place(self, field: str, text: str) -> bool:
        """Whether what stands in a field of type `Location` is a path or a URI; a subclass may take words there."""
        return True
