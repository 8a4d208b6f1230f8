from collections.abc import Callable
from pathlib import Path

import pytest

from raysl.components import ALIASES

PARTS = Path(__file__).with_name("parts.py")

TINY = f"""\
# A tiny run.
method: {{name: "{PARTS}:Contrast"}}
backbone: {{name: "{PARTS}:Net", width: 8}}
data: {{name: "{PARTS}:Pictures"}}
optim: {{name: "{PARTS}:Adam"}}
"""

Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a YAML file and gives its path."""

    def write(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def tiny(write: Write) -> str:
    """Path of a small complete configuration; its components also have the aliases contrast, teacher, ... ."""
    return write("tiny.yaml", TINY)


@pytest.fixture(autouse=True)
def aliases(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "method": {"contrast": f"{PARTS}:Contrast", "teacher": f"{PARTS}:Teacher"},
        "backbone": {"net": f"{PARTS}:Net"},
        "source": {"pictures": f"{PARTS}:Pictures"},
        "optimizer": {"adam": f"{PARTS}:Adam"},
        "benchmark": {"neighbours": f"{PARTS}:Neighbours"},
    }
    for slot, names in known.items():
        monkeypatch.setitem(ALIASES, slot, names)
