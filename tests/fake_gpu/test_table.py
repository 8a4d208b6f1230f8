"""The tables of docs/gpu.md have every method, no wait, no copy from pageable memory, and breaks only where allowed."""

from raysl.components import resolve
from tests.fake_gpu import breaks
from tests.fake_gpu.table import BEGIN, END, PAGE, VIEWS
from tests.methods.properties import METHODS


def cells_of(begin: str, end: str) -> dict[str, list[str]]:
    """The cells of the page's tables between two marks, by the first of their row."""
    table = PAGE.read_text().partition(begin)[2].partition(end)[0]
    rows = [[cell.strip() for cell in line.removeprefix("|").split("|")] for line in table.splitlines() if line]
    return {row[0]: row[1:-1] for row in rows}


def test_the_page_has_a_row_for_each_method_without_waits() -> None:
    cells = cells_of(BEGIN, END)
    assert [name for name in METHODS if name not in cells] == [], "python -m tests.fake_gpu.table writes it"
    assert {name: cells[name][-2:] for name in METHODS} == {name: ["0", "0"] for name in METHODS}
    assert set(VIEWS.values()) <= cells.keys()


def test_a_compiled_step_has_no_break_in_the_methods_that_may_be_compiled() -> None:
    cells = cells_of(breaks.BEGIN, breaks.END)
    assert [name for name in METHODS if name not in cells] == [], "python -m tests.fake_gpu.breaks writes it"
    broken = {name for name in METHODS if cells[name][0] != "0"}
    assert broken == {name for name in METHODS if resolve("method", name).compiles == "no"}
