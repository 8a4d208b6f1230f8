"""Tables of the page on VISSL: whole configurations, line by line."""

from pathlib import Path

from raysl.config.dump import write_inline
from raysl.translation.translated import Line, Translation
from raysl.translation.vissl import convert_config
from tests.marked import replaced

FOLDER = Path(__file__).parent
DOCS = FOLDER.parents[1] / "docs"
PAGES = {
    "vissl-configurations.md": ("simclr", "moco", "swav", "linear"),
}
"""Fixtures by page."""


def table(name: str) -> str:
    """The table of a fixture: a row for each of its keys, those without a setting together in the last rows."""
    done = convert_config([str(FOLDER / f"{name}.yaml")])
    rows = [row(line) for line in done.lines if line.is_given and line.kind in ("same", "differs")]
    rows += [row(line) for line in done.lines if not line.is_given]
    rows += [row(line) for line in done.lines if line.kind == "missing"]
    unset = ", ".join(f"`{line.key}`" for line in done.lines if line.kind == "not needed")
    rows.append(f"| {unset} | | nothing to set | |")
    head = "| VISSL | value | raysl | what to know |\n|---|---|---|---|\n"
    return head + "".join(f"{line}\n" for line in rows) + left_at_defaults(done)


def row(line: Line) -> str:
    value = write_inline(line.value)
    shown = f"`{value}`" if len(value) <= 60 else ""
    default = "" if line.is_given else ", by default"
    settings = f"`{line.words}`" if line.settings else "no counterpart" if line.kind == "missing" else "-"
    cells = [f"`{line.key}`", f"{shown}{default}".removeprefix(", "), settings, line.note]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def left_at_defaults(done: Translation) -> str:
    return (
        "\nLeft at raysl's default, since the file says nothing of it: "
        + ", ".join(f"`{setting}`" for setting in done.defaults())
        + ".\n"
    )


def marks(name: str) -> tuple[str, str]:
    return (
        f"<!-- {name}: written by `python -m tests.translation` -->\n",
        f"<!-- end of {name} -->",
    )


def filled(page: str) -> str:
    """A page with its tables."""
    text = (DOCS / page).read_text()
    for name in PAGES[page]:
        text = replaced(text, *marks(name), f"\n{table(name)}\n")
    return text
