"""The table that a sweep ends with: a row a run, the best first."""

import csv
import io
from dataclasses import dataclass
from typing import Any

from raysl.nn.collapse import COLLAPSE

COSTS = ("step_s", "memory_gb", *COLLAPSE)
"""What a leaderboard tells of each run beside its measurements, where it is known."""


@dataclass(frozen=True)
class Leaderboard:
    """Trials, the best first.

    Args:
        rows: an object a run: rank, trial, status, draws (trials with these settings), epoch, the metric, that of the
            untrained network where it was measured, the configuration and the settings that vary, other measurements,
            median seconds a step, most memory in GB, the last `raysl.nn.collapse`, path.
        path: of `leaderboard.csv`, which holds the same.
    """

    rows: list[dict[str, Any]]
    path: str

    def table(self) -> str:
        """The rows as aligned text, without the paths."""
        names = [name for name in columns(self.rows) if name != "path"]
        cells = [names, *([shown(row.get(name)) for name in names] for row in self.rows)]
        widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
        )


def once(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row a run, of the trial that came furthest; `draws` counts the trials that had it."""
    by_run: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_run.setdefault(row["trial"], []).append(row)
    return [
        {**max(equal, key=lambda row: (row["status"] == "finished", row["epoch"] or 0)), "draws": len(equal)}
        for equal in by_run.values()
    ]


def ranked(rows: list[dict[str, Any]], metric: str, mode: str) -> list[dict[str, Any]]:
    """The best row first by a metric of which "max" or "min" is better; rows without it come last."""
    sign = -1.0 if mode == "max" else 1.0

    def key(row: dict[str, Any]) -> tuple[bool, float]:
        value = row[metric]
        return value is None, 0.0 if value is None else sign * value

    return [{**row, "rank": rank} for rank, row in enumerate(sorted(rows, key=key), 1)]


def as_csv(rows: list[dict[str, Any]]) -> str:
    """The rows as a table that loads elsewhere."""
    names = columns(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def columns(rows: list[dict[str, Any]]) -> list[str]:
    """Names of what some row has, the numbers that only some have before what all end with."""
    names = list(dict.fromkeys(name for row in rows for name in row if name not in (*COSTS, "path")))
    return [*names, *(name for name in (*COSTS, "path") if any(name in row for row in rows))]


def shown(value: Any) -> str:
    """A cell of a table for people."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)
