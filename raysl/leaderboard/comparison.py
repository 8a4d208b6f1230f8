"""Compare checkpoints: their numbers side by side, and the settings that differ."""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from raysl.config.dump import leaves, write_inline
from raysl.config.schema import DataConfig, RunConfig, TrainConfig, is_may_change
from raysl.report.contents import DEFAULTS, RunReport, Score
from raysl.report.report_json import plain
from raysl.report.run_page import redacted
from raysl.report.summary import number
from raysl.report.tables import RIVALS, Cell, Table, as_csv, with_unit
from raysl.storage.addresses import cut

FORMAT_VERSION = 1
COMPARED = ("benchmarks",)
"""Settings that a run may change between two starts, and that are compared because they explain numbers."""
TITLES = {"benchmark": "benchmark", "metric": "metric", "title": "heading", "unit": "unit", "protocol": "protocol"}
"""First columns of the CSV, and the field of a score that each holds."""
PARTS = ("", ": low", ": high", ": deviation")
"""Suffixes of a checkpoint's columns in the CSV."""
FACTS = ("checkpoint", "step", "method", "backbone", "dataset")
"""Fields of each checkpoint's report that the JSON holds."""


@dataclass(frozen=True)
class Row:
    """One number, for all checkpoints.

    Args:
        scores: score of each checkpoint, or None if it was not measured.
        rivals: numbers of `untrained` and `pixels`, if all scores that have one show the same text.
    """

    scores: Sequence[Score | None]
    rivals: Mapping[str, float]

    @property
    def first_score(self) -> Score:
        """The first score that was measured; all others have the same names, unit and direction."""
        return next(score for score in self.scores if score is not None)

    @property
    def best(self) -> list[int]:
        """Indices of the best checkpoints: several if they show the same text, none if fewer than two have a number.

        A number without a unit has a best value only if it is a headline: for others, such as an exponent, neither
        more nor less is better.
        """
        if not self.first_score.unit and not self.first_score.is_headline:
            return []
        shown = {
            index: number(score.trained, score.unit)
            for index, score in enumerate(self.scores)
            if score is not None and math.isfinite(score.trained)
        }
        if len(shown) < 2:
            return []
        sign = -1 if self.first_score.is_lower_better else 1
        first = max(shown, key=lambda index: sign * self.scores[index].trained)  # type: ignore[union-attr]
        return [index for index, text in shown.items() if text == shown[first]]

    @property
    def cells(self) -> list[Cell]:
        """The numbers as cells of a table, empty if they were not measured."""
        best = self.best
        return [
            Cell(unit=self.first_score.unit)
            if score is None
            else Cell(score.trained, score.unit, score.deviation, score.interval, index in best)
            for index, score in enumerate(self.scores)
        ]


@dataclass(frozen=True)
class Comparison:
    """Checkpoints and their numbers.

    Args:
        names: names of the checkpoints, all different.
        rows: numbers of the checkpoints, grouped by benchmark; numbers of different protocols are in different rows.
        settings: settings that differ, by dotted key: the value of each checkpoint as YAML, or None.
    """

    reports: Sequence[RunReport]
    names: Sequence[str]
    rows: Sequence[Row]
    settings: Mapping[str, Sequence[str | None]]

    @property
    def runs(self) -> dict[str, list[int]]:
        """Indices of each run's checkpoints by ascending step, for runs with checkpoints of several steps."""
        folders: dict[str, list[int]] = {}
        for index, report in enumerate(self.reports):
            if report.step and report.checkpoint:
                folders.setdefault(cut(report.checkpoint)[0], []).append(index)
        several = [indices for indices in folders.values() if len({self.reports[index].step for index in indices}) > 1]
        names = unique([self.reports[indices[0]].name for indices in several])
        return {
            name: sorted(indices, key=lambda index: self.reports[index].step)
            for name, indices in zip(names, several, strict=True)
        }

    def table(self, rows: Sequence[Row], label: Callable[[Score], str], title: str = "") -> Table:
        """Return rows as a table, with a column for each checkpoint, then untrained networks and raw pixels.

        Args:
            label: function that returns the label of a row.
            title: heading of the column of labels.
        """
        rivals = [name for name in RIVALS if any(name in row.rivals for row in rows)]
        groups: dict[str, list[list[str | Cell]]] = {}
        for row in rows:
            beside = [Cell(row.rivals.get(name), row.first_score.unit) for name in rivals]
            groups.setdefault(row.first_score.benchmark, []).append([label(row.first_score), *row.cells, *beside])
        return Table([title, *self.names, *(RIVALS[name] for name in rivals)], groups)

    def latex(self) -> str:
        """Return a LaTeX `tabular` for booktabs: the best of each row in bold, intervals in small type."""
        return self.table(self.rows, with_unit).latex()

    def csv(self) -> str:
        """Return a CSV with a line for each number: value, interval and deviation of each checkpoint."""
        lines = []
        for row in self.rows:
            line = {name: getattr(row.first_score, field) for name, field in TITLES.items()}
            for name, cell in zip(self.names, row.cells, strict=True):
                line |= cell.columns(name)
            lines.append(line | {name: row.rivals.get(name) for name in RIVALS})
        columns = [*TITLES, *(f"{name}{part}" for name in self.names for part in PARTS), *RIVALS]
        return as_csv(columns, [[line[column] for column in columns] for line in lines])

    def json(self) -> str:
        """Return the comparison as JSON; NaN and infinities are null."""
        checkpoints = [
            {"name": name, **{field: getattr(report, field) for field in FACTS}}
            for name, report in zip(self.names, self.reports, strict=True)
        ]
        rows = [
            {
                **{field: getattr(row.first_score, field) for field in ("benchmark", "metric", "heading", "unit")},
                "is_lower_better": row.first_score.is_lower_better,
                "values": [cell.value for cell in row.cells],
                "intervals": [cell.interval for cell in row.cells],
                "deviations": [cell.deviation for cell in row.cells],
                "best": [self.names[index] for index in row.best],
                **{name: row.rivals.get(name) for name in RIVALS},
            }
            for row in self.rows
        ]
        content = {"format": FORMAT_VERSION, "checkpoints": checkpoints, "rows": rows, "settings": self.settings}
        return json.dumps(plain(content), indent=2, allow_nan=False) + "\n"


def compare(reports: Sequence[RunReport]) -> Comparison:
    """Compare the reports of checkpoints, in the given order."""
    if not reports:
        raise ValueError("there is no report to compare")
    reports = [redacted(report) for report in reports]
    settings = _settings([report.config for report in reports]) | _other_images(reports)
    return Comparison(reports, _names(reports), _rows(reports), settings)


def _other_images(reports: Sequence[RunReport]) -> dict[str, list[str | None]]:
    """Return a line for the table of settings if the measured images differ, else nothing."""
    digests = [report.measured_on or None for report in reports]
    return {"digest of the measured images": digests} if len({digest for digest in digests if digest}) > 1 else {}


def _names(reports: Sequence[RunReport]) -> list[str]:
    counts = Counter(report.name for report in reports)
    return unique(
        [
            f"{report.name} @ {report.step:,}" if counts[report.name] > 1 and report.step else report.name
            for report in reports
        ]
    )


def unique(names: Sequence[str]) -> list[str]:
    """Return names that are all different: a repeated name gets a number.

    >>> unique(["a", "b", "a"])
    ['a', 'b', 'a (2)']
    """
    renamed: list[str] = []
    for name in names:
        count, candidate = 1, name
        while candidate in renamed:
            count += 1
            candidate = f"{name} ({count})"
        renamed.append(candidate)
    return renamed


def _rows(reports: Sequence[RunReport]) -> list[Row]:
    """Return the rows, grouped by benchmark, in the order of their first appearance.

    Scores of the same protocol share a row, also if one was measured by its run's settings and one was not. If a
    number has several protocols, the titles of its rows name them.
    """
    by_key = [{_key(score): score for score in reversed(report.scores)} for report in reports]
    keys = list(dict.fromkeys(_key(score) for report in reports for score in report.scores))
    benchmarks = list(dict.fromkeys(key[0] for key in keys))
    keys.sort(key=lambda key: benchmarks.index(key[0]))
    num_protocols = Counter((benchmark, metric) for benchmark, metric, _ in {key[:3] for key in keys})
    return [
        _row([_titled(scores[key], num_protocols[key[:2]] > 1) if key in scores else None for scores in by_key])
        for key in keys
    ]


def _key(score: Score) -> tuple[str, str, str, str, str]:
    """Return benchmark, metric, protocol, title and unit of a score."""
    return score.benchmark.partition("@")[0], score.metric, score.protocol, score.title, score.unit


def _titled(score: Score, has_protocol: bool) -> Score:
    """Return a score with the plain name of its benchmark, and with its protocol in its title if `has_protocol`."""
    score = replace(score, benchmark=score.benchmark.partition("@")[0])
    return replace(score, title=f"{score.heading} ({score.protocol or DEFAULTS})") if has_protocol else score


def _row(scores: Sequence[Score | None]) -> Row:
    rivals = {}
    for name in RIVALS:
        numbers = [(getattr(score, name), score.unit) for score in scores if score is not None]
        values = [(value, unit) for value, unit in numbers if value is not None]
        if len({number(value, unit) for value, unit in values}) == 1:
            rivals[name] = values[0][0]
    return Row(scores, rivals)


def _settings(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[str | None]]:
    # settings that a run may change between two starts do not explain its numbers
    ignored = {"callbacks"} | {field.name for field in fields(RunConfig) if is_may_change(field.metadata)}
    ignored -= set(COMPARED)
    for node, schema in (("train", TrainConfig), ("data", DataConfig)):
        ignored |= {f"{node}.{field.name}" for field in fields(schema) if is_may_change(field.metadata)}
    flat = [{".".join(map(str, key)): write_inline(value) for key, value in leaves(config)} for config in configs]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    lines = {key: [settings.get(key) for settings in flat] for key in keys}
    return {
        key: values
        for key, values in lines.items()
        if len(set(values)) > 1 and not any(key == name or key.startswith(f"{name}.") for name in ignored)
    }
