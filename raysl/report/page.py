"""`report.html`: one file that shows a run, the numbers and pictures first, with nothing loaded from elsewhere."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from raysl.redact import redact, redact_tree, redact_uri
from raysl.report.contents import RunReport, Score, report_json
from raysl.report.curves import MAX_MARKS, MAX_POINTS, MIN_SMOOTHED, Course, courses, curve
from raysl.report.figures import (
    COLUMNS,
    MAX_NAMED_CLASSES,
    VARIABLES,
    class_colour,
    class_shape,
    embedding_map,
    score_bars,
)
from raysl.report.html import document, table
from raysl.report.images import (
    MAX_NEIGHBOURS,
    MAX_VIEWS,
    Sheet,
    contact_sheet,
    data_uri,
    neighbour_sheet,
    thumbnail_map,
)
from raysl.report.projection import MIN_POINTS, chosen, has_collapsed, project
from raysl.report.summary import number

HEADLINES = ("low_shot", "knn")
"""Benchmarks whose numbers open the page; both are accuracies in percent."""
MAX_CARDS = 4
MAX_BARS = 8
SATURATED = 97.0
"""Percent from which kNN on raw pixels leaves no room to tell backbones apart."""

TITLES = {"knn": "kNN", "low_shot": "Low-shot", "svm": "SVM", "top1": "top-1", "top5": "top-5"}
COLUMN_TITLES = {"trained": "pre-trained", "untrained": "untrained", "pixels": "raw pixels"}
SHAPES = {"o": '<circle cx="6" cy="6" r="5.5" {fill}/>', "^": '<path d="M6 0L12 12H0Z" {fill}/>'}
"""Markers of the legends, in a box of 12."""


def write_report(report: RunReport, folder: Path) -> Path:
    """Write `report.json` and `report.html` into `folder`, which is made if need be; returns the path of the page.

    Neither holds credentials.
    """
    report = replace(
        report,
        config=redact_tree(report.config),
        checkpoint=redact_uri(report.checkpoint),
        command=redact(report.command),
        events=[redact(event) for event in report.events],
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(report_json(report), encoding="utf-8")
    path = folder / "report.html"
    path.write_text(page(report), encoding="utf-8", errors="replace")
    return path


def page(report: RunReport) -> str:
    """The page as HTML text: the same report gives the same text."""
    parts = [
        _title(report),
        _results(report.scores),
        _curves(report),
        _embeddings(report),
        _views(report),
        _neighbours(report),
        _benchmarks(report.scores),
        _times(report),
        _config(report),
        _environment(report),
        _next_steps(report),
    ]
    title = f"{report.name}: {report.method} on {report.dataset}"
    return document(title, "\n".join(part for part in parts if part))


def _title(report: RunReport) -> str:
    """Name of the run; method, backbone, data set and end beneath."""
    pieces = [f"<b>{escape(text)}</b>" for text in (report.method, report.backbone, report.dataset) if text]
    if report.finished:
        pieces.append(f"finished {escape(report.finished.replace('T', ' '))}")
    return f'<header><h1>{escape(report.name)}</h1><p class="what">{" · ".join(pieces)}</p></header>'


def _results(scores: Sequence[Score]) -> str:
    """Cards, bars and a table of the headline numbers: trained against untrained and raw pixels."""
    shown = [score for name in HEADLINES for score in scores if score.benchmark == name] or list(scores)
    if not shown:
        return ""
    shown = shown[:MAX_BARS]
    names = [_score_title(score) for score in shown]
    filled = [(name, colour) for name, colour in COLUMNS if any(getattr(score, name) is not None for score in shown)]
    legend = _legend([(VARIABLES[colour], "o", COLUMN_TITLES[name]) for name, colour in filled])
    bars = f"<figure>{legend}{score_bars(shown, names)}</figure>"
    cards = "".join(_card(score) for score in _card_choice(shown))
    numbers = _score_table(shown, names)
    return (
        f'<section id="results"><h2>Results</h2><div class="cards">{cards}</div>'
        f'<div class="pair">{bars}<div>{numbers}{_saturation_note(scores)}</div></div></section>'
    )


def _card_choice(scores: Sequence[Score]) -> list[Score]:
    """The scores that get a card: kNN, and as many of the others as fit."""
    knn = [score for score in scores if score.benchmark == "knn"][:1]
    others = [score for score in scores if score not in knn]
    return others[: MAX_CARDS - len(knn)] + knn


def _card(score: Score) -> str:
    """One number in large type, with the gain over the better of its two rivals."""
    unit = " %" if score.benchmark in HEADLINES else ""
    spread = "" if score.deviation is None else f" ± {_one_decimal(score.deviation)}"
    rivals = {COLUMN_TITLES[name]: getattr(score, name) for name in ("untrained", "pixels")}
    known = {name: value for name, value in rivals.items() if value is not None and math.isfinite(value)}
    gain = ""
    if known and math.isfinite(score.trained):
        best = max(known, key=lambda name: known[name])
        points = score.trained - known[best]
        tone = "better" if points >= 0 else "worse"
        gain = f'<div class="gain {tone}">{"−" if points < 0 else "+"}{abs(points):.1f} vs {best}</div>'
    return (
        f'<div class="card"><h3>{escape(_score_title(score))}</h3>'
        f'<div class="big">{_one_decimal(score.trained)}<small>{unit}{spread}</small></div>{gain}</div>'
    )


def _saturation_note(scores: Sequence[Score]) -> str:
    """A warning where raw pixels already solve kNN."""
    saturated = [s for s in scores if s.benchmark == "knn" and s.pixels is not None and s.pixels >= SATURATED]
    if not saturated:
        return ""
    advice = " Go by the low-shot numbers." if any(score.benchmark == "low_shot" for score in scores) else ""
    return (
        f'<p class="note">Raw pixels alone reach {_one_decimal(saturated[0].pixels)} % with kNN on these images, '
        f"so kNN can hardly tell a good backbone from a poor one here.{advice}</p>"
    )


def _curves(report: RunReport) -> str:
    """Small multiples of everything that was logged."""
    panels = list(courses(report.history))
    if not panels:
        return ""
    figures = "".join(_curve(course) for course in panels)
    notes = ["Horizontally: steps (updates of the weights)."]
    if any(not course.quantity.is_smooth and len(course.steps) >= MIN_SMOOTHED for course in panels):
        notes.append("Faint: as logged; strong: running mean.")
    if any(len(course.steps) > MAX_POINTS for course in panels):
        notes.append(f"Long courses are drawn as {MAX_POINTS} means.")
    return (
        f'<section id="curves"><h2>Course of training</h2><div class="curves">{figures}</div>'
        f'<p class="quiet">{" ".join(notes)}</p></section>'
    )


def _curve(course: Course) -> str:
    """One course under its title and last value."""
    unit = f" {course.quantity.unit}" if course.quantity.unit else ""
    broken = ""
    if course.broken:
        steps = ", ".join(map(str, course.broken[:MAX_MARKS])) + (" …" if len(course.broken) > MAX_MARKS else "")
        broken = f'<figcaption class="worse">Not finite at step {steps}.</figcaption>'
    title = f"{escape(course.quantity.title)}<span>last {readable(course.last)}{escape(unit)}</span>"
    return f"<figure><h3>{title}</h3>{curve(course)}{broken}</figure>"


def _embeddings(report: RunReport) -> str:
    """The map of the embeddings, as coloured points and as the images themselves."""
    sample = report.embeddings
    if sample is None:
        return ""
    rows = chosen(sample.features)
    if len(rows) < MIN_POINTS or sample.features.shape[1] < 2:
        return ""
    heading = '<section id="map"><h2>Map of the embeddings</h2>'
    if has_collapsed(sample.features[rows]):
        text = f"The embeddings of {len(rows)} different images are all the same: the representation has collapsed."
        return f'{heading}<p class="note">{text}</p></section>'
    points, perplexity = project(sample.features[rows])
    labels = sample.labels[rows]
    classes = [int(label) for label in np.unique(labels)]
    legend = ""
    if len(classes) <= MAX_NAMED_CLASSES:
        names = [_class_title(label, sample.class_names) for label in classes]
        marks = [(class_colour(label), class_shape(label)) for label in classes]
        legend = _legend([(*mark, name) for mark, name in zip(marks, names, strict=True)])
    caption = (
        f"t-SNE (started from PCA, perplexity {perplexity:.3g}, fixed seed) of the embeddings, at length 1, of "
        f"N = {len(rows)} held-out images. Neighbourhoods mean something, distances between far groups do not."
    )
    picture = data_uri(thumbnail_map(points, sample.thumbnails[rows]))
    images = f'<img src="{picture}" alt="The same map with the images in place of points">'
    return (
        f'{heading}{legend}<div class="pair"><figure>{embedding_map(points, labels, sample.class_names)}</figure>'
        f'<figure>{images}</figure></div><p class="quiet">{caption}</p></section>'
    )


def _views(report: RunReport) -> str:
    """What the method sees of some images."""
    sample = report.views
    if sample is None or not sample.originals or not any(views.size for views in sample.views.values()):
        return ""
    counts = []
    for name, views in sample.views.items():
        first = f", the first {MAX_VIEWS} shown" if views.shape[1] > MAX_VIEWS else ""
        counts.append(f"{views.shape[1]} {escape(name)} of {views.shape[3]} × {views.shape[2]} px{first}")
    caption = f"Views of each image: {'; '.join(counts)}. All drawn at one size."
    return f'<section id="views"><h2>Views</h2>{_sheet(contact_sheet(sample), "Views", caption)}</section>'


def _neighbours(report: RunReport) -> str:
    """Query images and what the backbone finds most similar."""
    sample = report.neighbours
    if sample is None or sample.images.size == 0:
        return ""
    names = report.embeddings.class_names if report.embeddings is not None else []
    sheet = neighbour_sheet(sample, names)
    labels = sample.labels[: sheet.num_rows, :MAX_NEIGHBOURS]
    query_labels = sample.query_labels[: sheet.num_rows, None]
    known = (labels >= 0) & (query_labels >= 0)
    caption = "The number under an image is its cosine similarity to the query."
    if known.any():
        num_same = int((labels == query_labels)[known].sum())
        caption += f" ✔ and green: same class ({num_same} of {known.sum()}); ✘ and red: another class."
    figure = _sheet(sheet, "Queries and their nearest neighbours", caption)
    return f'<section id="neighbours"><h2>Nearest neighbours</h2>{figure}</section>'


def _sheet(sheet: Sheet, alt: str, caption: str) -> str:
    """A sheet of pictures under the headings of its columns; narrow screens scroll it."""
    columns = " ".join(f"{width}fr" for _, width in sheet.columns)
    heads = "".join(f"<span>{escape(name)}</span>" for name, _ in sheet.columns)
    width = f"max-width:{sheet.picture.width}px"
    return (
        f'<figure><div class="wide"><div class="sheet" style="{width}">'
        f'<div class="heads" style="grid-template-columns:{columns}">{heads}</div>'
        f'<img src="{data_uri(sheet.picture)}" alt="{escape(alt)}"></div></div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _benchmarks(scores: Sequence[Score]) -> str:
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


def _times(report: RunReport) -> str:
    """Where the time went, how fast training was, and what happened on the way."""
    parts = []
    if report.times:
        total = report.times.get("total") or sum(report.times.values())
        rows = [
            f'<td class="name">{escape(phase)}</td><td class="number">{duration(seconds)}</td>'
            f'<td class="number">{_share(seconds, total)}</td><td class="bar">{_share_bar(seconds, total)}</td>'
            for phase, seconds in report.times.items()
            if phase != "total"
        ]
        rows.append(f'<td class="main">total</td><td class="number main">{duration(total)}</td><td></td><td></td>')
        parts.append(f"<div><h3>Time</h3>{table('', rows)}</div>")
    speeds = _speeds(report)
    if speeds:
        parts.append(f"<div><h3>Throughput</h3>{table('', speeds)}</div>")
    events = "".join(f"<li>{escape(event)}</li>" for event in report.events)
    happened = f'<div class="events"><h3>On the way</h3><ul>{events}</ul></div>' if events else ""
    if not parts and not happened:
        return ""
    columns = f'<div class="pair">{"".join(parts)}</div>' if parts else ""
    return f'<section id="times"><h2>Time and throughput</h2>{columns}{happened}</section>'


def _speeds(report: RunReport) -> list[str]:
    """Rows of the throughput table, from the history."""
    by_key = {course.key: course for course in courses(report.history)}
    rows = []
    for key in ("images_per_s", "step_s", "data_wait", "memory_gb"):
        if key in by_key:
            course, is_peak = by_key[key], key == "memory_gb"
            value = float(course.values.max() if is_peak else np.median(course.values))
            title = f"{course.quantity.title}, {'peak' if is_peak else 'median'}"
            rows.append(f'<td>{title}</td><td class="number">{readable(value)} {course.quantity.unit}</td>')
    return rows


def _config(report: RunReport) -> str:
    """The resolved settings as a tree that opens."""
    if not report.config:
        return ""
    tree = _tree(report.config, report.config_docs or {}, "")
    return f'<section id="config"><h2>Settings</h2><details><summary>All settings</summary>{tree}</details></section>'


def _tree(node: Mapping[str, Any], docs: Mapping[str, str], path: str) -> str:
    """Leaves of a node as a list, then its branches, each of which opens."""
    leaves, branches = [], []
    for key, value in node.items():
        dotted = f"{path}{key}"
        doc = f"<p>{escape(docs[dotted])}</p>" if dotted in docs else ""
        if isinstance(value, Mapping) and value:
            inner = _tree(value, docs, f"{dotted}.")
            branches.append(f"<details open><summary>{escape(str(key))}</summary>{doc}{inner}</details>")
        else:
            leaves.append(f"<dt>{escape(str(key))}</dt><dd><code>{escape(_setting(value))}</code>{doc}</dd>")
    return (f'<dl class="tree">{"".join(leaves)}</dl>' if leaves else "") + "".join(branches)


def _setting(value: object) -> str:
    """A setting as YAML would have it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_setting(item) for item in value) + "]"
    return str(value)


def _environment(report: RunReport) -> str:
    """Versions and hardware."""
    if not report.environment:
        return ""
    rows = "".join(f"<dt>{escape(key)}</dt><dd>{escape(str(value))}</dd>" for key, value in report.environment.items())
    return f'<section id="environment"><h2>Environment</h2><dl class="tree">{rows}</dl></section>'


def _next_steps(report: RunReport) -> str:
    """The command that made the run and the line that loads its backbone."""
    parts = []
    if report.command:
        parts.append(f"<h3>Run it again</h3><pre>{escape(report.command)}</pre>")
    if report.checkpoint:
        load = f"import raysl\n\nbackbone = raysl.load_backbone({_quoted(report.checkpoint)})"
        lines = f"{load}\nfeatures = backbone(images)  # [B, 3, H, W] -> [B, D]"
        parts.append(f"<h3>Use the backbone</h3><pre>{escape(lines)}</pre>")
    return f'<section id="use"><h2>Use it</h2>{"".join(parts)}</section>' if parts else ""


def _quoted(text: str) -> str:
    """`text` as a Python string in double quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _legend(entries: Sequence[tuple[str, str, str]]) -> str:
    """(colour, shape, name) entries as a list that wraps."""
    items = []
    for colour, shape, name in entries:
        mark = SHAPES[shape].format(fill=f'style="fill:{VARIABLES.get(colour, colour)}"')
        items.append(f'<li><svg viewBox="0 0 12 12" aria-hidden="true">{mark}</svg>{escape(name)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def _score_title(score: Score) -> str:
    """A score's name for people: `low_shot`, `5_shot` -> `Low-shot, 5 per class`."""
    shots = score.metric.removesuffix("_shot")
    metric = f"{shots} per class" if shots.isdigit() and shots != score.metric else score.metric
    title = f"{TITLES.get(score.benchmark, score.benchmark)}, {TITLES.get(metric, metric)}".replace("_", " ")
    return title if score.benchmark in TITLES else title[:1].upper() + title[1:]


def _class_title(label: int, class_names: Sequence[str]) -> str:
    """A class's name for the legend."""
    if label < 0:
        return "unlabelled"
    return class_names[label] if label < len(class_names) else f"class {label}"


def _one_decimal(value: float | None) -> str:
    """For large type; a dash where there is no number."""
    return f"{value:.1f}" if value is not None and math.isfinite(value) else "–"


def readable(value: float) -> str:
    """Three digits, or all before the point: `0.000113`, `1.91`, `12,400`."""
    return f"{value:,.0f}" if 100 <= abs(value) < 1e9 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Seconds as people say them: `0.42 s`, `38.1 s`, `4 min 07 s`, `3 h 12 min`."""
    if not math.isfinite(seconds):
        return "–"
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min"


def _share(part: float, total: float) -> str:
    """Part of the total in percent."""
    return f"{part / total:.0%}" if _is_share(part, total) else ""


def _share_bar(part: float, total: float) -> str:
    """Part of the total as a bar."""
    return f'<div style="width:{min(100.0, 100 * part / total):.1f}%"></div>' if _is_share(part, total) else ""


def _is_share(part: float, total: float) -> bool:
    """Whether the quotient says anything."""
    return math.isfinite(part) and math.isfinite(total) and part >= 0 and total > 0
