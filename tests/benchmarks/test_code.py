"""What a result's digest of the code follows, and what it does not."""

import sys
from pathlib import Path

import pytest

from raysl.benchmarks.knn import KNN
from raysl.benchmarks.suite.code import _collect, code_of
from raysl.components import resolve


def digest(folder: Path, text: str, number: list[int]) -> str:
    """Of a benchmark in a file."""
    number[0] += 1
    path = folder / f"mine{number[0]}.py"
    path.write_text(text)
    return code_of(resolve("benchmark", f"{path}:Mine"))


def test_comments_docstrings_and_layout_do_not_count_and_what_is_computed_does(tmp_path: Path) -> None:
    number = [0]
    first = digest(tmp_path, 'class Mine:\n    """One."""\n    x = 1\n', number)
    assert digest(tmp_path, '# said\nclass Mine:\n    """Two."""\n\n    x = (1)\n', number) == first
    assert digest(tmp_path, 'class Mine:\n    """One."""\n    x = 2\n', number) != first
    assert len(first) == 12


def test_what_a_benchmark_imports_counts_and_what_only_carries_numbers_does_not() -> None:
    found: dict[str, str] = {}
    _collect(sys.modules[KNN.__module__], found)
    assert "raysl.benchmarks.neighbours" in found
    assert not [name for name in found if name.startswith(("raysl.benchmarks.features", "raysl.benchmarks.suite"))]


def test_a_class_without_a_source_has_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    made = type("Made", (), {"__module__": "builtins"})
    assert code_of(made) == ""
