"""The table of the scores, with their intervals, and what those mean."""

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby

from raysl.report.contents import Score
from raysl.report.html import grouped_table, quiet, table
from raysl.report.summary import number
from raysl.report.tables import RIVALS, Cell

COLUMN_TITLES = {"trained": "pre-trained", **RIVALS}


def headings_of(scores: Sequence[Score]) -> list[str]:
    """Return what people call each score, with its benchmark where two have the same heading."""
    counts = Counter(score.heading for score in scores)
    return [score.heading if counts[score.heading] == 1 else f"{score.heading} ({score.benchmark})" for score in scores]


def score_table(
    scores: Sequence[Score],
    names: Sequence[str],
    with_notes: bool = False,
    anchors: Mapping[str, str] | None = None,
) -> str:
    """Return scores as rows under names that are HTML; empty columns are left out.

    Args:
        with_notes: whether their notes are a column; one that is part of a heading is left out.
        anchors: ids on the page by benchmark; where they are given, each benchmark's rows stand under its name, which
            is a link to its id if it has one.
    """
    rivals = [name for name in RIVALS if any(getattr(score, name) is not None for score in scores)]
    has_units = any(score.unit != "%" for score in scores)
    has_notes = with_notes and any(score.note for score in scores)
    titles = [COLUMN_TITLES[name] for name in ("trained", *rivals)]
    head = "<th></th><th>unit</th>" if has_units else "<th>in %</th>"
    head += "".join(f'<th class="number">{title}</th>' for title in titles) + "<th>note</th>" * has_notes
    rows = []
    for score, name in zip(scores, names, strict=True):
        trained = Cell(score.trained, score.unit, score.deviation, score.interval).html()
        note = "" if score.note in score.heading else escape(score.note)
        cells = [f'<td class="name">{name}</td>', f"<td>{escape(score.unit)}</td>" * has_units]
        cells.append(f'<td class="number main">{trained}</td>')
        cells += [f'<td class="number">{number(getattr(score, rival), score.unit)}</td>' for rival in rivals]
        rows.append("".join(cells) + f'<td class="remark">{note}</td>' * has_notes)
    if anchors is None:
        return table(head, rows)
    width = 1 + len(titles) + has_units + has_notes
    groups = []
    for benchmark, group in groupby(zip(scores, rows, strict=True), key=lambda pair: pair[0].benchmark):
        title = escape(benchmark)
        if benchmark in anchors:
            title = f'<a href="#{anchors[benchmark]}">{title}</a>'
        title = f'<th class="group" scope="rowgroup" colspan="{width}">{title}</th>'
        groups.append([title, *(row for _, row in group)])
    return grouped_table(head, groups)


def spread_note(scores: Sequence[Score]) -> str:
    """Return what the intervals and deviations of some scores cover, and what they do not."""
    lines = []
    if any(score.interval is not None for score in scores):
        lines.append(
            "95 %: the interval that holds the number of the pre-trained backbone on other such test images in 95 of "
            "100 cases: Wilson's of a share of images that are right or wrong, else by a bootstrap over the test "
            "images or queries (1,000 samples). It does not cover another training, another seed, or images of another "
            "kind."
        )
    if any(score.deviation is not None for score in scores):
        lines.append("±: standard deviation over repeated draws or trainings of the benchmark itself.")
    return quiet(" ".join(lines))
