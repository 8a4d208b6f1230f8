"""The page on transforms has a row for each of them, and the table beside this file a test for each row."""

import re
from pathlib import Path

import pytest

from raysl import transforms
from raysl.transforms import Crop, Transform
from raysl.transforms.mix import Mix
from tests.transforms.table import TRANSFORMS

DOCS = Path(__file__).parents[2] / "docs"
NAMED = sorted({test for tests in TRANSFORMS.values() for test in tests})


@pytest.mark.parametrize("test", NAMED)
def test_a_test_in_the_table_exists(test: str) -> None:
    file, _, name = test.partition("::")
    assert f"def {name}(" in (Path(__file__).parent / file).read_text()


def test_every_public_transform_has_a_row() -> None:
    public = [getattr(transforms, name) for name in transforms.__all__]
    classes = [kind for kind in public if isinstance(kind, type) and issubclass(kind, Transform | Crop | Mix)]
    assert len(classes) > 20
    assert {kind.__name__ for kind in classes} - set(TRANSFORMS) <= {"Transform", "Crop"}


def test_every_row_has_a_test() -> None:
    text = (DOCS / "transforms.md").read_text().partition("## Coming from")[0]
    assert set(re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE)) == set(TRANSFORMS)
    assert all(TRANSFORMS.values())
