"""The table of the scores, with their intervals, and what those mean."""

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby

from raysl.report.contents import Score
from raysl.report.html import grouped_table, quiet
from raysl.report.summary import bounds, number

COLUMN_TITLES = {"trained": "pre-trained", "untrained": "untrained", "pixels": "raw pixels"}


def headings_of(scores: Sequence[Score]) -> list[str]:
    """Return what people call each score, with its benchmark where two have the same heading."""
    counts = Counter(score.heading for score in scores)
    return [score.heading if counts[score.heading] == 1 else f"{score.heading} ({score.benchmark})" for score in scores]


def score_table(
    scores: Sequence[Score],
    names: Sequence[str],
    with_notes: bool = False,
    anchors: Mapping[str, str] | None = None,
    is_narrow: bool = False,
) -> str:
    """Return scores as rows under names that are HTML; empty columns are left out.

    Args:
        with_notes: whether their notes are a column.
        anchors: ids on the page by benchmark; where they are given, each benchmark's rows stand under its name, which
            is a link to its id if it has one.
        is_narrow: whether intervals and deviations stand below the numbers, not in columns.
    """
    columns = [name for name in COLUMN_TITLES if any(getattr(score, name) is not None for score in scores)]
    shown = {
        "unit": any(score.unit != "%" for score in scores),
        "±": not is_narrow and any(score.deviation is not None for score in scores),
        "95 %": not is_narrow and any(score.interval is not None for score in scores),
        "note": with_notes and any(score.note for score in scores),
    }
    spreads = [title for title in ("±", "95 %") if shown[title]]
    numbers = ["pre-trained", *spreads, *(COLUMN_TITLES[name] for name in columns[1:])]
    head = "<th></th><th>unit</th>" if shown["unit"] else "<th>in %</th>"
    head += "".join(f'<th class="number">{title}</th>' for title in numbers) + "<th>note</th>" * shown["note"]
    rows = [_row(score, name, columns[1:], shown, is_narrow) for score, name in zip(scores, names, strict=True)]
    if anchors is None:
        return grouped_table(head, [rows])
    width = 1 + len(numbers) + shown["unit"] + shown["note"]
    groups = []
    for benchmark, group in groupby(zip(scores, rows, strict=True), key=lambda pair: pair[0].benchmark):
        title = escape(benchmark)
        if benchmark in anchors:
            title = f'<a href="#{anchors[benchmark]}">{title}</a>'
        title = f'<th class="group" scope="rowgroup" colspan="{width}">{title}</th>'
        groups.append([title, *(row for _, row in group)])
    return grouped_table(head, groups)


def _row(score: Score, name: str, rivals: Sequence[str], shown: dict[str, bool], is_narrow: bool) -> str:
    """Return the cells of a score; a note that is part of its heading is left out."""
    spreads = {"±": number(score.deviation, score.unit), "95 %": bounds(score.interval, score.unit)}
    cells = [f'<td class="name">{name}</td>' + f"<td>{escape(score.unit)}</td>" * shown["unit"]]
    below = f'<div class="spread">{spread_of(score)}</div>' if is_narrow and spread_of(score) else ""
    cells.append(f'<td class="number main">{number(score.trained, score.unit)}{below}</td>')
    cells += [f'<td class="number spread">{text}</td>' for title, text in spreads.items() if shown[title]]
    cells += [f'<td class="number">{number(getattr(score, rival), score.unit)}</td>' for rival in rivals]
    note = "" if score.note in score.heading else score.note
    return "".join(cells) + f'<td class="remark">{escape(note)}</td>' * shown["note"]


def spread_of(score: Score) -> str:
    """Return the interval of a score, or else its deviation; empty without either."""
    if score.interval is None and score.deviation is not None:
        return f"± {number(score.deviation, score.unit)}"
    return bounds(score.interval, score.unit)


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
