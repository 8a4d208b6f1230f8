"""Several checkpoints side by side: one table as a page, as JSON, as CSV and as LaTeX."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import groupby
from typing import Any

from raysl.config.dump import leaves, write_inline
from raysl.config.schema import DataConfig, RunConfig, TrainConfig, is_may_change
from raysl.report.contents import RunReport, Score
from raysl.report.page import redacted
from raysl.report.stored import plain
from raysl.report.summary import bounds, number
from raysl.report.tables import RIVALS, as_csv, latex_table, latex_text, with_unit
from raysl.storage.addresses import cut
from raysl.storage.folder import Folder, outlast

FORMAT_VERSION = 1
COMPARED = ("benchmarks",)
"""Settings that a run may change, and that still tell why two numbers differ."""


@dataclass(frozen=True)
class Row:
    """One number of all checkpoints.

    Args:
        scores: of each checkpoint; None where it was not measured.
        rivals: `untrained` and `pixels`, where all that have them show the same.
    """

    scores: Sequence[Score | None]
    rivals: Mapping[str, float]

    @property
    def any(self) -> Score:
        """One of the scores, for what they have in common."""
        return next(score for score in self.scores if score is not None)

    @property
    def best(self) -> list[int]:
        """Places of the best checkpoints: several where they show the same; none of fewer than two numbers.

        Numbers without a unit have a best one where they are headlines: of others, as of an exponent, neither more nor
        less is the better.
        """
        if not self.any.unit and not self.any.is_headline:
            return []
        shown = {
            place: number(score.trained, score.unit)
            for place, score in enumerate(self.scores)
            if score is not None and math.isfinite(score.trained)
        }
        if len(shown) < 2:
            return []
        sign = -1 if self.any.is_lower_better else 1
        first = max(shown, key=lambda place: sign * self.scores[place].trained)  # type: ignore[union-attr]
        return [place for place, text in shown.items() if text == shown[first]]


@dataclass(frozen=True)
class Comparison:
    """Checkpoints and their numbers.

    Args:
        reports: of the checkpoints, without credentials.
        names: of each, no two alike.
        rows: their numbers, those of a benchmark together; two of one name and other titles are not compared.
        settings: what differs: dotted key -> the value of each as YAML, None where it has none.
    """

    reports: Sequence[RunReport]
    names: Sequence[str]
    rows: Sequence[Row]
    settings: Mapping[str, Sequence[str | None]]

    @property
    def runs(self) -> dict[str, list[int]]:
        """Runs of which there are checkpoints of several known steps: their places by ascending step, by name."""
        folders: dict[str, list[int]] = {}
        for place, report in enumerate(self.reports):
            if report.step and report.checkpoint:
                folders.setdefault(cut(report.checkpoint)[0], []).append(place)
        several = [own for own in folders.values() if len({self.reports[place].step for place in own}) > 1]
        names = unique([self.reports[own[0]].name for own in several])
        return {
            name: sorted(own, key=lambda place: self.reports[place].step)
            for name, own in zip(names, several, strict=True)
        }


def compare(reports: Sequence[RunReport]) -> Comparison:
    """The comparison of some reports, in their order.

    Raises:
        ValueError: if there is none.
    """
    if not reports:
        raise ValueError("there is no report to compare")
    reports = [redacted(report) for report in reports]
    settings = _settings([report.config for report in reports]) | _other_images(reports)
    return Comparison(reports, _names(reports), _rows(reports), settings)


def _other_images(reports: Sequence[RunReport]) -> dict[str, list[str | None]]:
    """A line beside the settings where the images that were measured on have changed from one report to the next."""
    digests = [report.measured_on or None for report in reports]
    return {"images, as they were measured on": digests} if len({digest for digest in digests if digest}) > 1 else {}


def _names(reports: Sequence[RunReport]) -> list[str]:
    counts = Counter(report.name for report in reports)
    return unique(
        [
            f"{report.name} @ {report.step:,}" if counts[report.name] > 1 and report.step else report.name
            for report in reports
        ]
    )


def unique(names: Sequence[str]) -> list[str]:
    """Names, with a number where one was there before."""
    found: list[str] = []
    for name in names:
        turn, own = 1, name
        while own in found:
            turn += 1
            own = f"{name} ({turn})"
        found.append(own)
    return found


def _rows(reports: Sequence[RunReport]) -> list[Row]:
    """Rows by benchmark, in the order in which they first come."""
    by_key = [{(own.benchmark, own.metric, own.heading, own.unit): own for own in report.scores} for report in reports]
    keys = list(dict.fromkeys(key for own in by_key for key in own))
    benchmarks = list(dict.fromkeys(key[0] for key in keys))
    keys.sort(key=lambda key: benchmarks.index(key[0]))
    return [_row([own.get(key) for own in by_key]) for key in keys]


def _row(scores: Sequence[Score | None]) -> Row:
    rivals = {}
    for name in RIVALS:
        found = [(getattr(score, name), score.unit) for score in scores if score is not None]
        values = [(value, unit) for value, unit in found if value is not None]
        if len({number(value, unit) for value, unit in values}) == 1:
            rivals[name] = values[0][0]
    return Row(scores, rivals)


def _settings(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[str | None]]:
    """Settings that are not the same in all runs, but for those that may differ without another result."""
    free = {"callbacks"} | {field.name for field in fields(RunConfig) if is_may_change(field.metadata)}
    free -= set(COMPARED)
    for node, schema in (("train", TrainConfig), ("data", DataConfig)):
        free |= {f"{node}.{field.name}" for field in fields(schema) if is_may_change(field.metadata)}
    flat = [{".".join(map(str, key)): write_inline(value) for key, value in leaves(config)} for config in configs]
    keys = dict.fromkeys(key for own in flat for key in own)
    lines = {key: [own.get(key) for own in flat] for key in keys}
    return {
        key: values
        for key, values in lines.items()
        if len(set(values)) > 1 and not any(key == name or key.startswith(f"{name}.") for name in free)
    }


def write_comparison(reports: Sequence[RunReport], folder: Folder) -> str:
    """Write `comparison.html`, `.json`, `.csv` and `.tex` into a folder, which is made if need be.

    Returns:
        The URI of the page.

    Raises:
        ValueError: if there is no report.
    """
    from raysl.leaderboard.page.comparison import comparison_page

    found = compare(reports)
    texts = {
        "comparison.json": comparison_json(found),
        "comparison.csv": comparison_csv(found),
        "comparison.tex": comparison_latex(found),
        "comparison.html": comparison_page(found),
    }
    outlast(folder.make)
    for name, text in texts.items():
        outlast(partial(folder.write, name, text.encode("utf-8", errors="replace")))
    return folder.uri_of("comparison.html")


def comparison_json(found: Comparison) -> str:
    """The table for machines; NaN and infinities are null."""
    checkpoints = [
        {
            "name": name,
            **{field: getattr(report, field) for field in ("checkpoint", "step", "method", "backbone", "dataset")},
        }
        for name, report in zip(found.names, found.reports, strict=True)
    ]
    rows = [
        {
            **{field: getattr(row.any, field) for field in ("benchmark", "metric", "heading", "unit")},
            "is_lower_better": row.any.is_lower_better,
            "values": [None if own is None else own.trained for own in row.scores],
            "intervals": [None if own is None else own.interval for own in row.scores],
            "deviations": [None if own is None else own.deviation for own in row.scores],
            "best": [found.names[place] for place in row.best],
            **{name: row.rivals.get(name) for name in RIVALS},
        }
        for row in found.rows
    ]
    content = {"format": FORMAT_VERSION, "checkpoints": checkpoints, "rows": rows, "settings": found.settings}
    return json.dumps(plain(content), indent=2, allow_nan=False) + "\n"


def comparison_csv(found: Comparison) -> str:
    """A line a number: of each checkpoint its value, both ends of its interval, and its deviation."""
    header = ["benchmark", "metric", "title", "unit"]
    for name in found.names:
        header += [name, f"{name}: low", f"{name}: high", f"{name}: deviation"]
    rows = []
    for row in found.rows:
        cells: list[str | float | None] = [row.any.benchmark, row.any.metric, row.any.heading, row.any.unit]
        for own in row.scores:
            cells += [None] * 4 if own is None else [own.trained, *(own.interval or (None, None)), own.deviation]
        rows.append([*cells, *(row.rivals.get(name) for name in RIVALS)])
    return as_csv([*header, *RIVALS], rows)


def comparison_latex(found: Comparison) -> str:
    """A `tabular` of booktabs: the best of each row in bold, intervals small beside their numbers."""
    rivals = [name for name in RIVALS if any(name in row.rivals for row in found.rows)]
    head = ["", *map(latex_text, found.names), *(RIVALS[name] for name in rivals)]
    rows = []
    for row in found.rows:
        cells = [latex_text(with_unit(row.any))]
        cells += [_latex_cell(own, place in row.best) for place, own in enumerate(row.scores)]
        cells += [number(row.rivals.get(name), row.any.unit) for name in rivals]
        rows.append((row.any.benchmark, cells))
    groups = [[cells for _, cells in group] for _, group in groupby(rows, key=lambda pair: pair[0])]
    return latex_table(head, groups)


def _latex_cell(score: Score | None, is_best: bool) -> str:
    if score is None:
        return ""
    value = number(score.trained, score.unit)
    value = f"\\textbf{{{value}}}" if is_best else value
    spread = bounds(score.interval, score.unit)
    if not spread and score.deviation is not None:
        spread = f"$\\pm$ {number(score.deviation, score.unit)}"
    return f"{value} {{\\scriptsize {spread}}}" if spread else value
