"""The tables of pages on GPUs have every method, no wait, no copy from pageable memory, breaks only where allowed."""

from pathlib import Path

from raysl.components import resolve
from tests.fake_gpu import breaks
from tests.fake_gpu.table import MARKS, OF_VIEWS, PAGE, VIEWS
from tests.fake_gpu.test_methods import SOLVE
from tests.marked import between, rows_of
from tests.methods.properties import METHODS


def cells_of(page: Path, marks: tuple[str, str]) -> dict[str, list[str]]:
    """The cells of a page's table between two marks, by the first of their row."""
    rows = rows_of(between(page.read_text(encoding="utf-8"), *marks))
    return {name: [cell.strip() for cell in row.split("|")[2:-1]] for name, row in rows.items()}


def test_the_page_has_a_row_for_each_method_without_waits() -> None:
    cells = cells_of(PAGE, MARKS)
    assert [name for name in METHODS if name not in cells] == [], "python -m tests.fake_gpu.table writes it"
    waits = {name: cells[name][-2:] for name in METHODS if cells[name][-2:] != ["0", "0"]}
    assert waits.keys() == SOLVE
    assert set(VIEWS.values()) <= cells_of(PAGE, OF_VIEWS).keys()


def test_a_compiled_step_has_no_break_in_the_methods_that_may_be_compiled() -> None:
    cells = cells_of(breaks.PAGE, breaks.MARKS)
    assert [name for name in METHODS if name not in cells] == [], "python -m tests.fake_gpu.breaks writes it"
    broken = {name for name in METHODS if cells[name][0] != "0"}
    assert broken == {name for name in METHODS if resolve("method", name).compiles == "no"}
