"""Which images were found broken, so that a run can tell."""

from collections.abc import Iterable


class CorruptLog:
    """Corrupt images that a process has met, each once."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.untold: list[str] = []

    def add(self, images: Iterable[str]) -> None:
        """Note images, "name: reason" each."""
        for image in images:
            if image not in self.seen:
                self.seen.add(image)
                self.untold.append(image)

    def take_untold(self) -> list[str]:
        """Those that were noted since this was called last."""
        untold, self.untold = self.untold, []
        return untold
