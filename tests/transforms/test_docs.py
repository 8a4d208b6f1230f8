"""The table of transforms tells of all of them, and of tests that exist."""

import re
from pathlib import Path

import pytest

from raysl import transforms
from raysl.transforms import Crop, Transform
from raysl.transforms.mix import Mix

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs" / "transforms.md").read_text()


@pytest.mark.parametrize(
    ("file", "name"), sorted(set(re.findall(r"`(?:tests/transforms/)?(test_\w+\.py)::(\w+)`", TABLE)))
)
def test_a_test_that_is_named_exists(file: str, name: str) -> None:
    assert f"def {name}(" in (ROOT / "tests" / "transforms" / file).read_text()


def test_every_public_transform_has_a_row() -> None:
    public = [getattr(transforms, name) for name in transforms.__all__]
    classes = [kind for kind in public if isinstance(kind, type) and issubclass(kind, Transform | Crop | Mix)]
    assert len(classes) > 20
    missing = [kind.__name__ for kind in classes if f"| `{kind.__name__}` |" not in TABLE]
    assert set(missing) <= {"Transform", "Crop"}
