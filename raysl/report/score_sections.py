"""The numbers of a run's page: the leading ones, every score, and what their intervals mean."""

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby

from raysl.report.charts import column_legend, score_bars, whiskers_note
from raysl.report.contents import Score, by_benchmark
from raysl.report.html import figure, fold, grouped_table, quiet, section, table
from raysl.report.summary import bounds, large, number
from raysl.report.tables import COLUMN_TITLES, RIVALS
from raysl.report.verdict import RULE, Gain, gain, notes, verdicts

MIN_CARDS, MAX_SHOWN = 4, 8
"""Cards that are filled up with numbers that are no headlines, and the most numbers that open the page."""
MAX_NAMED = 4
"""Numbers that a warning names."""
MAX_NOTES = 3
"""More notes on what could not be measured are folded."""
MAX_OPEN = 30
"""Longer tables are folded."""


def results_section(scores: Sequence[Score], notes: Sequence[str]) -> str:
    """Return cards, verdicts, bars and a table of the leading numbers: trained, untrained and raw pixels.

    Headlines come first, accuracies before other numbers and what raw pixels or an untrained network nearly solve
    behind both; then all others likewise.
    """
    left_out = _left_out(notes)
    shown = _leading(scores)
    if not shown:
        return section("results", "Results", left_out) if left_out else ""
    headings = headings_of(shown)
    num_cards = max(MIN_CARDS, sum(score.is_headline for score in shown))
    cards = "".join(map(_card, shown[:num_cards], headings))
    numbers = score_table(shown, [escape(heading) for heading in headings])
    numbers = f"<div>{numbers}{spread_note(shown)}{_saturation_note(scores)}{left_out}</div>"
    pair = f'<div class="pair">{_bars(shown, headings)}{numbers}</div>'
    return section("results", "Results", f'<div class="cards">{cards}</div>{_verdicts(scores)}{pair}')


def _left_out(notes: Sequence[str]) -> str:
    """Return a box for each note, or one that unfolds where they are many."""
    if len(notes) <= MAX_NOTES:
        return "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    lines = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return fold(f"{len(notes)} notes on what was not measured", f"<ul>{lines}</ul>", ' class="note"')


def _leading(scores: Sequence[Score]) -> list[Score]:
    """Return the numbers that open the page; without room for all headlines, the first of each benchmark."""
    ordered = sorted(scores, key=lambda score: (not score.is_headline, score.tells_little, score.unit != "%"))
    if sum(score.is_headline for score in scores) > MAX_SHOWN:
        first = {id(group[0]) for group in by_benchmark(ordered).values()}
        ordered.sort(key=lambda score: (not score.is_headline, id(score) not in first))
    return ordered[:MAX_SHOWN]


def _bars(scores: Sequence[Score], headings: Sequence[str]) -> str:
    """Return a drawing for each unit, under one legend; numbers without a unit share no axis."""
    drawings = []
    for unit in dict.fromkeys(score.unit for score in scores if score.unit):
        rows = [row for row, score in enumerate(scores) if score.unit == unit]
        drawings.append(score_bars([scores[row] for row in rows], [headings[row] for row in rows]))
    if not drawings:
        return ""
    return figure("", column_legend(scores) + "".join(drawings), whiskers_note(scores))


def _verdicts(scores: Sequence[Score]) -> str:
    """Return a sentence on each benchmark with its notes, and the rule of the colours."""
    items = []
    for name, sentence in verdicts(scores).items():
        headings = [score.heading for score in scores if score.benchmark == name]
        known = "; ".join(note for note in notes(scores, name) if not any(note in text for text in headings))
        beside = f' <span class="quiet">{escape(known)}</span>' if known else ""
        subject, _, rest = sentence.partition(": ")
        items.append(f"<li><b>{escape(subject)}</b>: {escape(rest)}{beside}</li>")
    gains = [difference for score in scores for rival in RIVALS if (difference := gain(score, rival)) is not None]
    rule = quiet(RULE) if any(difference.interval is not None for difference in gains) else ""
    return f'<ul class="verdicts">{"".join(items)}</ul>{rule}' if items else ""


def _card(score: Score, heading: str) -> str:
    """Return one number in large type, with the gains over the untrained network and over raw pixels."""
    unit = f" {escape(score.unit)}" if score.unit else ""
    spread = "" if score.deviation is None else f" ± {large(score.deviation, score.unit)}"
    interval = ""
    if score.interval is not None:
        low, high = (large(end, score.unit) for end in score.interval)
        interval = f'<div class="interval">95 %: {low} to {high}</div>'
    gains = "".join(gain_line(rival, gain(score, rival)) for rival in RIVALS)
    return (
        f'<div class="card"><h3>{escape(heading)}</h3>'
        f'<div class="big">{large(score.trained, score.unit)}<small>{unit}{spread}</small></div>{interval}{gains}</div>'
    )


def gain_line(rival: str, difference: Gain | None) -> str:
    """Return the difference between a number and a rival as a line of a card; empty where it is not known."""
    if difference is None:
        return ""
    unit = f" {escape(difference.unit)}" if difference.unit not in ("", "%") else ""
    change = f"{'−' if difference.change < 0 else '+'}{large(abs(difference.change), difference.unit)}{unit}"
    return f'<div class="gain {rival} {difference.tone}">{change} vs {COLUMN_TITLES[rival]}</div>'


def _saturation_note(scores: Sequence[Score]) -> str:
    """Return a warning where raw pixels already solve the leading benchmarks."""
    saturated = [score for score in scores if score.is_saturated]
    if not saturated:
        return ""
    reached = ", ".join(f"{large(score.pixels)} % ({escape(score.heading)})" for score in saturated[:MAX_NAMED])
    if len(saturated) > MAX_NAMED:
        reached += f" and as much of {len(saturated) - MAX_NAMED} further numbers"
    others = [score for score in scores if score.is_headline and score.unit == "%" and not score.is_saturated]
    advice = f" Go by: {'; '.join(escape(score.heading) for score in others[:MAX_NAMED])}." if others else ""
    return (
        f'<p class="note">Raw pixels alone reach {reached} on these images, which can hardly tell a good backbone '
        f"from a poor one.{advice}</p>"
    )


def benchmarks_section(scores: Sequence[Score], anchors: Mapping[str, str]) -> str:
    """Return every score, by benchmark, whose names link to their drawings; a long table is folded."""
    if not scores:
        return ""
    groups = by_benchmark(scores)
    scores = [score for group in groups.values() for score in group]
    names = [
        f"{escape(heading)}<div><code>{escape(f'{score.benchmark}/{score.metric}')}</code></div>"
        for score, heading in zip(scores, headings_of(scores), strict=True)
    ]
    numbers = score_table(scores, names, with_notes=True, anchors=anchors if len(groups) > 1 else None)
    numbers += spread_note(scores)
    if len(scores) > MAX_OPEN:
        numbers = fold(f"All {len(scores)} numbers of {len(groups)} benchmark{'s' * (len(groups) > 1)}", numbers)
    return section("benchmarks", "Benchmarks", numbers)


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
        trained = number(score.trained, score.unit)
        if score.deviation is not None:
            trained += f' <span class="spread">± {number(score.deviation, score.unit)}</span>'
        if score.interval is not None:
            trained += f'<div class="spread">{bounds(score.interval, score.unit)}</div>'
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
