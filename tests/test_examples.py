"""The `>>>` examples in docstrings are true."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [path for path in sorted((ROOT / "raysl").rglob("*.py")) if ">>> " in path.read_text()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_examples_in_docstrings_are_true(path: Path) -> None:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    tests = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name))
    # The finder skips what it does not take for a function or a class: no example may be left out.
    assert sum(len(test.examples) for test in tests) == path.read_text().count(">>> ")
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    messages: list[str] = []
    for test in tests:
        runner.run(test, out=messages.append)
    assert not messages, "".join(messages)
