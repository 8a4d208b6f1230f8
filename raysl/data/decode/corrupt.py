"""What a broken image is, and which ones were found, so that a run can tell."""

from collections.abc import Iterable


class CorruptImage(ValueError):
    """Bytes that are no image, or a broken one."""


class CorruptLog:
    """Corrupt images that a process has met, each once."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.untold: list[str] = []

    def add(self, images: Iterable[str]) -> list[str]:
        """Note images, "name: reason" each; those that are new."""
        new = [image for image in dict.fromkeys(images) if image not in self.seen]
        self.seen.update(new)
        self.untold += new
        return new

    def take_untold(self) -> list[str]:
        """Those that were noted since this was called last."""
        untold, self.untold = self.untold, []
        return untold
