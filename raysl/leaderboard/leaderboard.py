"""The leaderboard of a sweep, with a row for each choice of settings, the best first."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysl.leaderboard.choice import Choice, choices, comparable, pareto, ranked
from raysl.leaderboard.entry import Entry, SweepFacts
from raysl.leaderboard.flat import brief, csv_text, flat_rows, latex, readable_cells, text_table
from raysl.leaderboard.leaderboard_json import json_text, parse
from raysl.redact import redact, redact_tree, redact_uri
from raysl.report.html import plain_table
from raysl.report.tables import link
from raysl.storage.folder import Folder, absolute, cut, join

if TYPE_CHECKING:
    import pandas as pd

NOTEBOOK_ROWS = 10
"""Rows that a notebook shows."""
LEAST_POINTS, MOST_POINTS, ALL_POINTS = 20, 300, 300_000
"""Least and most points of a curve that are kept, and about the most points of all runs together."""
PAGE, JSON, CSV, TEX = "leaderboard.html", "leaderboard.json", "leaderboard.csv", "leaderboard.tex"


@dataclass(frozen=True, repr=False)
class Leaderboard:
    """The runs of a sweep, in one row for all seeds of the same settings. Its texts hold no credentials.

    The curves of its runs are thinned, so that a thousand runs fit into a file of a few megabytes. All points of a
    run are in the run's own folder (`raysl.load_history`).

    Args:
        facts: facts about the sweep; its first objective orders the rows.
        title: title of a section; empty for the whole leaderboard.
        first: index of a section's first row among the rows of all sections.
    """

    entries: Sequence[Entry]
    facts: SweepFacts
    title: str = ""
    first: int = 0

    def __post_init__(self) -> None:
        # credentials are removed here, before any text is made, so that no writer can show them
        ordered = sorted(self.entries, key=lambda entry: entry.index)
        num = sum(len(entry.course) for entry in ordered)
        limit = max(LEAST_POINTS, min(MOST_POINTS, ALL_POINTS // max(1, num)))
        object.__setattr__(self, "entries", tuple(_without_credentials(entry, limit) for entry in ordered))
        command, space = redact(self.facts.command), redact(self.facts.space)
        facts = replace(self.facts, path=redact_uri(self.facts.path), command=command, space=space)
        object.__setattr__(self, "facts", facts)

    @cached_property
    def sections(self) -> list["Leaderboard"]:
        """Leaderboards of rows that can be compared: rows of the same images and the same protocol of the first
        objective. The largest comes first; if all rows can be compared, the only section is this leaderboard."""
        parts = comparable(self.entries, self.facts.objectives[0].metric)
        if len(parts) < 2:
            return [self]
        sections: list[Leaderboard] = []
        for title, entries in parts.items():
            first = sum(len(section.choices) for section in sections)
            sections.append(replace(self, entries=entries, title=title, first=first))
        return sections

    @cached_property
    def choices(self) -> list[Choice]:
        """All rows, section by section: in each the best first, and last the rows without the first objective."""
        if len(self.sections) > 1:
            return [row for section in self.sections for row in section.choices]
        return ranked(choices(self.entries), self.facts.objectives[0])

    @cached_property
    def units(self) -> dict[str, str]:
        """Units of the measured numbers of all runs."""
        return {name: unit for run in self.entries for name, unit in run.units.items()}

    @cached_property
    def front(self) -> list[Choice]:
        """Pareto front of each section, ordered by the first objective."""
        return [row for section in self.sections for row in pareto(section.choices, self.facts.objectives)]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows as flat dictionaries with the same keys, see `raysl.leaderboard.flat.flat_rows`."""
        sections = [(section.title, section.choices) for section in self.sections]
        return flat_rows(sections, self.facts.objectives, self.front)

    @property
    def pareto(self) -> list[dict[str, Any]]:
        """The `rows` of the Pareto front."""
        front = {id(row) for row in self.front}
        return [flat for row, flat in zip(self.choices, self.rows, strict=True) if id(row) in front]

    @property
    def best(self) -> Entry | None:
        """The best run of the first row; None where only failed runs have the first objective."""
        first = self.facts.objectives[0]
        if not self.choices or self.choices[0].is_failed or self.choices[0].value(first.metric) is None:
            return None
        return self.choices[0].best(first)

    @property
    def path(self) -> str:
        """URI of the page; all other files are in the same folder."""
        return join(self.facts.path, PAGE) if self.facts.path else PAGE

    @property
    def frame(self) -> "pd.DataFrame":
        """`rows` as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def anchor(self, name: str) -> str:
        """Return the HTML id of a part of the page; in a section it ends in the section's number."""
        return f"{name}-{self.first}" if self.title else name

    def headed(self, heading: str) -> str:
        """Return the heading of a part of the page as HTML, with the title of the section if there are several."""
        return f"{heading}: {escape(self.title)}" if self.title else heading

    def table(self) -> str:
        """Return the rows as aligned text, with deviations beside their numbers and without paths."""
        return text_table(self.choices, self.rows)

    def csv(self) -> str:
        """Return the rows as CSV."""
        return csv_text(self.rows)

    def latex(self) -> str:
        """Return the rows as a `tabular` of booktabs."""
        return latex([(section.title, section.choices) for section in self.sections], self.facts.objectives)

    def json(self) -> str:
        """Return the text of `leaderboard.json`, which `load` reads back."""
        return json_text(self.entries, self.facts, self.rows)

    def _repr_html_(self) -> str:
        """The first rows for a notebook, with a link to the page."""
        num, target = len(self.rows), link(relative_path(self.path))
        page = f'<a href="{escape(target)}">{escape(PAGE)}</a>' if target else escape(PAGE)
        title = f"<p><b>{escape(self.facts.name)}</b>: {num} row{'s' * (num != 1)}, {page}</p>"
        if not num:
            return title
        names, *rows = readable_cells(self.choices[:NOTEBOOK_ROWS], self._first_rows())
        more = f"<p>and {num - NOTEBOOK_ROWS} more</p>" if num > NOTEBOOK_ROWS else ""
        return f"{title}{plain_table(names, rows)}{more}"

    def __repr__(self) -> str:
        """The first rows for a Python shell; `table` has all rows and all numbers."""
        if not self.rows:
            return self.table()
        num = len(self.rows) - NOTEBOOK_ROWS
        more = f"\nand {num} more" if num > 0 else ""
        return f"{text_table(self.choices[:NOTEBOOK_ROWS], self._first_rows())}{more}"

    def _first_rows(self) -> list[dict[str, Any]]:
        return brief(self.choices, self.rows[:NOTEBOOK_ROWS], self.facts.objectives)

    @staticmethod
    def load(uri: str) -> "Leaderboard":
        """Read the leaderboard from a `leaderboard.json`.

        Args:
            uri: address of the file or of the sweep's folder.

        Raises:
            ConfigError: if the file does not exist or holds no leaderboard.
        """
        folder, name = cut(absolute(uri)) if absolute(uri).partition("?")[0].endswith(".json") else (uri, JSON)
        return Leaderboard(*parse(Folder(folder).read(name), join(folder, name)))


def relative_path(path: str) -> str:
    """Return a local path relative to the working directory if it lies below it, for links in a notebook."""
    return str(Path(path).relative_to(Path.cwd())) if Path(path).is_relative_to(Path.cwd()) else path


def _without_credentials(entry: Entry, limit: int) -> Entry:
    """Return an entry without credentials, and with at most `limit` points of each curve."""
    return replace(
        entry,
        course={name: thinned(line, limit) for name, line in entry.course.items()},
        config=redact_uri(entry.config),
        settings=redact_tree(entry.settings),
        reason=redact(entry.reason),
        path=redact_uri(entry.path),
        checkpoint=None if entry.checkpoint is None else redact_uri(entry.checkpoint),
    )


def thinned(line: Sequence[tuple[float, float]], limit: int) -> list[tuple[float, float]]:
    """Return at most `limit` points of a line, evenly chosen with both ends."""
    if len(line) <= limit:
        return list(line)
    return [line[index * (len(line) - 1) // (limit - 1)] for index in range(limit)]
