"""The page is what the rows say."""

from tests.chaos.harness import Row, readable
from tests.chaos.table import KEPT, PAGE, page, read_rows


def test_the_page_is_made_of_the_rows_that_are_kept() -> None:
    assert PAGE.read_text() == page(read_rows(KEPT)), "python -m tests.chaos.table writes it"


def test_every_row_kept_has_the_same_bits_and_left_nothing() -> None:
    assert [row.fault for row in read_rows(KEPT) if row.same_bits is False or row.left] == []


def test_a_row_shows_each_line_once() -> None:
    row = Row("a | fault", ["told `a`", "again | b"], 8.4, 2, True, [], "test_disks.py", 3)
    assert "| a | fault | `told ´a´`<br>`again / b` | 8 | 2 | yes | nothing |" in page([row])


def test_lines_lose_what_belongs_to_one_machine() -> None:
    lines = [
        "s3://b/runs/one?endpoint_override=h:1&region=x: gone",
        "process 7 on vm (since 2026-01-01 10:00 UTC) has it",
    ]
    assert readable([*lines, lines[1]], "s3://b/runs?endpoint_override=h:1&region=x") == [
        "runs/one: gone",
        "process N on HOST (since ...) has it",
    ]
