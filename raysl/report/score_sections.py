"""The numbers of a run's page: what leads, and every score."""

import math
from collections import Counter
from collections.abc import Sequence
from html import escape

from raysl.report.contents import Score
from raysl.report.figures import COLUMNS, VARIABLES, score_bars
from raysl.report.html import table
from raysl.report.legend import legend
from raysl.report.summary import large, number

MAX_CARDS = 4
MAX_BARS = 8

COLUMN_TITLES = {"trained": "pre-trained", "untrained": "untrained", "pixels": "raw pixels"}


def results_section(scores: Sequence[Score], notes: Sequence[str]) -> str:
    """Cards, bars and a table of the first numbers: trained against untrained and raw pixels.

    Headlines come first, those that raw pixels nearly solve behind them, then all others, each in the order given.
    """
    left_out = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    shown = sorted(scores, key=lambda score: (not score.is_headline, score.is_saturated))[:MAX_BARS]
    if not shown:
        return f'<section id="results"><h2>Results</h2>{left_out}</section>' if left_out else ""
    headings = _headings(shown)
    cards = "".join(map(_card, shown[:MAX_CARDS], headings))
    numbers = _score_table(shown, [escape(heading) for heading in headings])
    return (
        f'<section id="results"><h2>Results</h2><div class="cards">{cards}</div>'
        f'<div class="pair">{_bars(shown, headings)}'
        f"<div>{numbers}{_saturation_note(scores)}{left_out}</div></div></section>"
    )


def _headings(scores: Sequence[Score]) -> list[str]:
    """What people call each score, with its benchmark where two are called alike."""
    counts = Counter(score.heading for score in scores)
    return [score.heading if counts[score.heading] == 1 else f"{score.heading} ({score.benchmark})" for score in scores]


def _bars(scores: Sequence[Score], headings: Sequence[str]) -> str:
    """A drawing for each unit, under one legend."""
    filled = [(name, colour) for name, colour in COLUMNS if any(getattr(score, name) is not None for score in scores)]
    marks = legend([(VARIABLES[colour], "o", COLUMN_TITLES[name]) for name, colour in filled])
    drawings = []
    for place, unit in enumerate(dict.fromkeys(score.unit for score in scores)):
        rows = [row for row, score in enumerate(scores) if score.unit == unit]
        drawings.append(score_bars([scores[row] for row in rows], [headings[row] for row in rows], f"scores{place}"))
    return f"<figure>{marks}{''.join(drawings)}</figure>"


def _card(score: Score, heading: str) -> str:
    """One number in large type, with the gain over the untrained network and, smaller, over raw pixels."""
    unit = f" {escape(score.unit)}" if score.unit else ""
    spread = "" if score.deviation is None else f" ± {large(score.deviation, score.unit)}"
    gains = "".join(_gain(score, name) for name in ("untrained", "pixels"))
    return (
        f'<div class="card"><h3>{escape(heading)}</h3>'
        f'<div class="big">{large(score.trained, score.unit)}<small>{unit}{spread}</small></div>{gains}</div>'
    )


def _gain(score: Score, column: str) -> str:
    """What pre-training brought over one of its two rivals."""
    rival = getattr(score, column)
    if rival is None or not math.isfinite(score.trained - rival):
        return ""
    change = score.trained - rival
    is_better = change <= 0 if score.is_lower_better else change >= 0
    sign = "−" if change < 0 else "+"
    size = large(abs(change), score.unit) + (f" {escape(score.unit)}" if score.unit not in ("", "%") else "")
    tone = "better" if is_better else "worse"
    return f'<div class="gain {column} {tone}">{sign}{size} vs {COLUMN_TITLES[column]}</div>'


def _saturation_note(scores: Sequence[Score]) -> str:
    """A warning where raw pixels already solve what leads the page."""
    saturated = [score for score in scores if score.is_saturated]
    if not saturated:
        return ""
    reached = ", ".join(f"{large(score.pixels)} % ({escape(score.heading)})" for score in saturated)
    others = [score for score in scores if score.is_headline and score.unit == "%" and not score.is_saturated]
    advice = f" Go by: {'; '.join(escape(score.heading) for score in others)}." if others else ""
    return (
        f'<p class="note">Raw pixels alone reach {reached} on these images, which can hardly tell a good backbone '
        f"from a poor one.{advice}</p>"
    )


def benchmarks_section(scores: Sequence[Score]) -> str:
    """Every score."""
    if not scores:
        return ""
    names = [
        f"{escape(heading)}<div><code>{escape(f'{score.benchmark}/{score.metric}')}</code></div>"
        for score, heading in zip(scores, _headings(scores), strict=True)
    ]
    return f'<section id="benchmarks"><h2>Benchmarks</h2>{_score_table(scores, names, with_notes=True)}</section>'


def _score_table(scores: Sequence[Score], names: Sequence[str], with_notes: bool = False) -> str:
    """Scores as rows under names that are HTML; columns that none of them fills are left out."""
    columns = [name for name in COLUMN_TITLES if any(getattr(score, name) is not None for score in scores)]
    has_spread = any(score.deviation is not None for score in scores)
    has_notes = with_notes and any(score.note for score in scores)
    has_units = any(score.unit for score in scores)
    titles = ["pre-trained"] + ["±"] * has_spread + [COLUMN_TITLES[name] for name in columns[1:]]
    head = "<th></th>" + "<th>unit</th>" * has_units
    head += "".join(f'<th class="number">{title}</th>' for title in titles) + "<th>note</th>" * has_notes
    rows = []
    for score, name in zip(scores, names, strict=True):
        cells = f'<td class="name">{name}</td>' + f"<td>{escape(score.unit)}</td>" * has_units
        cells += f'<td class="number main">{number(score.trained, score.unit)}</td>'
        cells += f'<td class="number">{number(score.deviation, score.unit)}</td>' * has_spread
        rivals = [number(getattr(score, column), score.unit) for column in columns[1:]]
        cells += "".join(f'<td class="number">{rival}</td>' for rival in rivals)
        rows.append(cells + f'<td class="remark">{escape(score.note)}</td>' * has_notes)
    return table(head, rows)
