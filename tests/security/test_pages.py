"""What a file of results, a name or an address may do to who looks at it: a spreadsheet, a browser, a terminal."""

import csv
import io

import pytest

from raysl.data.sources.listing import printable
from raysl.errors import ConfigError
from raysl.redact import redact
from raysl.report.tables import as_csv, link

FORMULAS = ["=1+1", "+1+1", "-2+3", "@SUM(A1)", "\t=1", '=HYPERLINK("http://x")']


def test_a_text_that_begins_a_formula_is_quoted() -> None:
    rows = list(csv.reader(io.StringIO(as_csv(["a", "=b"], [[text, 1.5] for text in FORMULAS]))))
    assert rows[0] == ["a", "'=b"]
    assert [row[0] for row in rows[1:]] == [f"'{text}" for text in FORMULAS]


def test_a_carriage_return_does_not_break_a_line() -> None:
    assert as_csv(["a"], [["x\r=1"]]) == "a\nx\\r=1\n"


def test_numbers_and_plain_texts_stay() -> None:
    cells = [-0.5, "-0.5", "+3", "1e-3", "-inf", None, "a=b", "simclr"]
    (row,) = csv.reader(io.StringIO(as_csv([], [cells]).lstrip("\n")))
    assert row == ["-0.5", "-0.5", "+3", "1e-3", "-inf", "", "a=b", "simclr"]


@pytest.mark.parametrize(
    "target", ["javascript:alert(1)", "JavaScript:alert(1)", " java\tscript:alert(1)", "data:text/html,x", "vbscript:x"]
)
def test_an_address_that_a_browser_would_run_gives_no_link(target: str) -> None:
    assert link(target) == ""
    assert link(f"{target}/report.html") == ""


@pytest.mark.parametrize(
    "target", ["runs/a/report.html", "/a/b:c/report.html", "s3://b/x", "https://host/x", "./javascript:x", "a?b=c:d"]
)
def test_other_addresses_give_one(target: str) -> None:
    assert link(target) == target


@pytest.mark.parametrize("letters", ["\x1b[2J", "\x9b2J", "\x07", "\r", "\x7f", "\u202e"])
def test_commands_to_a_terminal_are_shown_not_sent(letters: str) -> None:
    for text in (redact(f"a{letters}b"), printable(f"a{letters}b"), str(ConfigError(f"no file 'a{letters}b'"))):
        assert letters[0] not in text
        assert "\\x" in text or "\\u" in text or "\\r" in text


def test_lines_tabs_and_letters_of_all_languages_stay() -> None:
    text = "a\tb\n  c: ä 漢 👍"
    assert redact(text) == text
