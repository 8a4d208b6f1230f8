"""Tables in pages of `docs/`, between two marks, that a command of the tests writes."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path


def between(text: str, begin: str, end: str) -> str:
    """What stands between two marks.

    Raises:
        ValueError: if the text lacks one.
    """
    return _parts(text, begin, end)[1]


def replaced(text: str, begin: str, end: str, content: str) -> str:
    """The text with other content between two marks.

    Raises:
        ValueError: if it lacks one.
    """
    before, _, after = _parts(text, begin, end)
    return f"{before}{begin}{content}{end}{after}"


def rows_of(table: str) -> dict[str, str]:
    """Lines of tables by the first of their cells."""
    return {line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("|")}


def write_rows(
    page: Path, marks: tuple[str, str], names: Iterable[str], chosen: Sequence[str], row: Callable[[str], str]
) -> None:
    """Write the rows of the table between two marks of a page; its head stays.

    Args:
        page: file of Markdown.
        marks: where the table begins and ends.
        names: first cells of the rows, in their order.
        chosen: the ones whose rows are made; the others keep theirs. Empty: all.
        row: gives the line of a name.
    """
    names = list(names)
    made = {name: row(name) for name in names if not chosen or name in chosen}
    text = page.read_text(encoding="utf-8")  # only now: it may have changed in the minutes that the rows took
    table = between(text, *marks)
    head = table.strip().splitlines()[:2]
    rows = rows_of(table) | made
    lines = [*head, *(rows[name] for name in names if name in rows)]
    page.write_text(replaced(text, *marks, "\n" + "\n".join(lines) + "\n\n"), encoding="utf-8")
    print(page)


def _parts(text: str, begin: str, end: str) -> tuple[str, str, str]:
    before, first, rest = text.partition(begin)
    content, second, after = rest.partition(end)
    if not first or not second:
        raise ValueError(f"the page has no {begin} ... {end}")
    return before, content, after
