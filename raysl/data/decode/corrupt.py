"""Corrupt images that a run has met. Imports no torch: the names go through processes that decode nothing."""

from collections.abc import Iterable, Mapping


class Replaced(str):
    """A corrupt image, "name: reason".

    Args:
        text: name and reason.
        other: row of the image that takes its place.

    >>> image = Replaced("7.jpg: truncated", row=7, other=8)
    >>> image, image.row, image.other
    ('7.jpg: truncated', 7, 8)
    """

    row: int
    other: int

    def __new__(cls, text: str, row: int, other: int) -> "Replaced":
        image = super().__new__(cls, text)
        image.row, image.other = row, other
        return image

    def __getnewargs__(self) -> tuple[str, int, int]:  # type: ignore[override]
        return str(self), self.row, self.other


Known = Mapping[int, Replaced]
"""Corrupt images that are known, by their rows."""


class CorruptLog:
    """Collects the corrupt images that a process meets, each once.

    `known` has them by their rows, with those that other processes and earlier starts have met.
    """

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.unreported: list[str] = []
        self.known: dict[int, Replaced] = {}

    def learn(self, images: Iterable[str]) -> None:
        """Make images known that others have met, as far as these say which rows they are."""
        self.known |= {image.row: image for image in images if isinstance(image, Replaced)}

    def add(self, images: Iterable[str]) -> list[str]:
        """Record images, "name: reason" each, and return those that are new."""
        new = [image for image in dict.fromkeys(images) if image not in self.seen]
        self.seen.update(new)
        self.unreported += new
        self.learn(new)
        return new

    def take_unreported(self) -> list[str]:
        """Return the images recorded since the last call."""
        unreported, self.unreported = self.unreported, []
        return unreported
