"""The tables of docs/gpu.md have every method, and no wait and no copy from pageable memory."""

from tests.fake_gpu.table import BEGIN, END, PAGE, VIEWS
from tests.methods.properties import METHODS


def test_the_page_has_a_row_for_each_method_without_waits() -> None:
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines() if line]
    cells = {row[0]: row[1:] for row in rows}
    assert [name for name in METHODS if name not in cells] == [], "python -m tests.fake_gpu.table writes it"
    assert {name: cells[name][-2:] for name in METHODS} == {name: ["0", "0"] for name in METHODS}
    assert set(VIEWS.values()) <= cells.keys()
