"""The numbers of a run's page: what leads, and every score."""

import math
from collections.abc import Sequence
from html import escape

from raysl.report.contents import Score
from raysl.report.figures import COLUMNS, VARIABLES, score_bars
from raysl.report.html import table
from raysl.report.legend import legend
from raysl.report.summary import number

HEADLINES = ("knn", "low_shot")
"""Benchmarks whose numbers open the page; both are accuracies in percent."""
MAX_CARDS = 4
MAX_BARS = 8

TITLES = {"knn": "kNN", "low_shot": "Low-shot", "svm": "SVM", "top1": "top-1", "top5": "top-5"}
COLUMN_TITLES = {"trained": "pre-trained", "untrained": "untrained", "pixels": "raw pixels"}


def results_section(scores: Sequence[Score], notes: Sequence[str]) -> str:
    """Cards, bars and a table of the headline numbers: trained against untrained and raw pixels."""
    left_out = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    shown = sorted((score for score in scores if score.benchmark in HEADLINES), key=_place) or list(scores)
    if not shown:
        return f'<section id="results"><h2>Results</h2>{left_out}</section>' if left_out else ""
    shown = shown[:MAX_BARS]
    names = [_score_title(score) for score in shown]
    filled = [(name, colour) for name, colour in COLUMNS if any(getattr(score, name) is not None for score in shown)]
    marks = legend([(VARIABLES[colour], "o", COLUMN_TITLES[name]) for name, colour in filled])
    bars = f"<figure>{marks}{score_bars(shown, names)}</figure>"
    cards = "".join(_card(score) for score in shown[:MAX_CARDS])
    numbers = _score_table(shown, names)
    return (
        f'<section id="results"><h2>Results</h2><div class="cards">{cards}</div>'
        f'<div class="pair">{bars}<div>{numbers}{_saturation_note(scores)}{left_out}</div></div></section>'
    )


def _base(score: Score) -> str:
    """The benchmark of a score, whatever its settings."""
    return score.benchmark.partition("@")[0]


def _place(score: Score) -> tuple[bool, bool, int]:
    """Top-1 and few shots come first, what raw pixels nearly solve behind them, then top-5 and further k."""
    is_lead = score.metric == "top1" or score.metric.endswith("_shot")
    return not is_lead, score.is_saturated, HEADLINES.index(score.benchmark)


def _card(score: Score) -> str:
    """One number in large type, with the gain over the untrained network and, smaller, over raw pixels."""
    unit = " %" if _base(score) in HEADLINES else ""
    spread = "" if score.deviation is None else f" ± {_one_decimal(score.deviation)}"
    gains = "".join(_gain(score, name) for name in ("untrained", "pixels"))
    return (
        f'<div class="card"><h3>{escape(_score_title(score))}</h3>'
        f'<div class="big">{_one_decimal(score.trained)}<small>{unit}{spread}</small></div>{gains}</div>'
    )


def _gain(score: Score, column: str) -> str:
    """What pre-training brought over one of its two rivals."""
    rival = getattr(score, column)
    if rival is None or not math.isfinite(score.trained - rival):
        return ""
    points = score.trained - rival
    tone = "better" if points >= 0 else "worse"
    sign = "−" if points < 0 else "+"
    return f'<div class="gain {column} {tone}">{sign}{abs(points):.1f} vs {COLUMN_TITLES[column]}</div>'


def _saturation_note(scores: Sequence[Score]) -> str:
    """A warning where raw pixels already solve kNN."""
    saturated = [score for score in scores if score.is_saturated]
    if not saturated:
        return ""
    advice = " Go by the low-shot numbers." if any(_base(score) == "low_shot" for score in scores) else ""
    return (
        f'<p class="note">Raw pixels alone reach {_one_decimal(saturated[0].pixels)} % kNN top-1 on these images, '
        f"so kNN can hardly tell a good backbone from a poor one here.{advice}</p>"
    )


def benchmarks_section(scores: Sequence[Score]) -> str:
    """Every score."""
    if not scores:
        return ""
    names = [f"{score.benchmark} / {score.metric}" for score in scores]
    return f'<section id="benchmarks"><h2>Benchmarks</h2>{_score_table(scores, names, with_notes=True)}</section>'


def _score_table(scores: Sequence[Score], names: Sequence[str], with_notes: bool = False) -> str:
    """Scores as rows; columns that none of them fills are left out."""
    columns = [name for name in COLUMN_TITLES if any(getattr(score, name) is not None for score in scores)]
    has_spread = any(score.deviation is not None for score in scores)
    has_notes = with_notes and any(score.note for score in scores)
    titles = ["pre-trained"] + ["±"] * has_spread + [COLUMN_TITLES[name] for name in columns[1:]]
    head = "<th></th>" + "".join(f'<th class="number">{title}</th>' for title in titles) + "<th>note</th>" * has_notes
    rows = []
    for score, name in zip(scores, names, strict=True):
        cells = f'<td class="name">{escape(name)}</td><td class="number main">{number(score.trained)}</td>'
        cells += f'<td class="number">{number(score.deviation)}</td>' * has_spread
        cells += "".join(f'<td class="number">{number(getattr(score, column))}</td>' for column in columns[1:])
        rows.append(cells + f'<td class="remark">{escape(score.note)}</td>' * has_notes)
    return table(head, rows)


def _score_title(score: Score) -> str:
    """A score's name for people: `low_shot`, `5_shot` -> `Low-shot, 5 per class`."""
    base, at, variant = score.benchmark.partition("@")
    shots = score.metric.removesuffix("_shot")
    top, _, k = score.metric.partition("_k")
    if shots.isdigit() and shots != score.metric:
        metric = f"{shots} per class"
    elif top in TITLES and k.isdigit():
        metric = f"{TITLES[top]}, k = {k}"
    else:
        metric = TITLES.get(score.metric, score.metric)
    title = f"{TITLES.get(base, base)}{f' {at}{variant}' if at else ''}, {metric}".replace("_", " ")
    return title if base in TITLES else title[:1].upper() + title[1:]


def _one_decimal(value: float | None) -> str:
    """For large type; a dash where there is no number."""
    return f"{value:.1f}" if value is not None and math.isfinite(value) else "–"
