import weakref

import numpy as np
import pytest

from raysl.data import given
from raysl.data.given import split_images
from raysl.data.split import by_unit


def test_rows_are_grouped_by_the_unit_they_lie_in() -> None:
    sizes = np.array([3, 1, 5, 2, 4])
    unit_of = np.repeat(np.arange(5), sizes)
    index = np.random.default_rng(0).permutation(np.repeat(np.arange(15), 2))
    index = index[unit_of[index] != 3]
    found = [(unit, places.tolist()) for unit, places in by_unit(np.cumsum(sizes) - sizes, index)]
    assert found == [
        (unit, [place for place, row in enumerate(index) if unit_of[row] == unit]) for unit in (0, 1, 2, 4)
    ]
    assert not list(by_unit(np.array([0, 3]), np.empty(0, np.int64)))


def test_images_in_memory_are_hashed_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Content(bytearray):
        """Bytes that a weak reference can point to."""

    parts: list[weakref.ref[Content]] = []

    def identify(image: bytes) -> Content:
        assert sum(part() is not None for part in parts) <= 1
        content = Content(image)
        parts.append(weakref.ref(content))
        return content

    images = split_images([b"first", b"second", b"third", b"fourth"])
    expected = images.content()
    monkeypatch.setattr(given, "_identify", identify)
    assert images.content() == expected
    assert len(parts) == 4
