"""The parts of a run's page that are drawn: curves, the map of the embeddings, views, neighbours."""

import itertools
from html import escape

import numpy as np

from raysl.report.contents import RunReport, ViewSample
from raysl.report.curves import MAX_POINTS, MAX_SHOWN_STEPS, MIN_SMOOTHED, Curve, curves_of, draw_curve
from raysl.report.html import figure, quiet, section
from raysl.report.images import (
    MAX_NEIGHBOURS,
    MAX_ROWS,
    MAX_VIEWS,
    Sheet,
    class_title,
    contact_sheet,
    data_uri,
    neighbour_sheet,
    thumbnail_map,
)
from raysl.report.marks import MAX_MARKS, legend, mark_of
from raysl.report.projection import (
    MIN_POINTS,
    chosen,
    embedding_map,
    has_collapsed,
    project,
    share_beside_own_class,
)
from raysl.report.summary import readable

PAGE_WIDTH, SHEET_GAP, MIN_SHEET = 1080, 40, 560
"""Pixels: of the page's column, between two sheets, and of the least width at which a wide sheet does not scroll."""


def curves_section(report: RunReport) -> str:
    """Return a small drawing of each logged number."""
    panels = list(curves_of(report.history))
    if not panels:
        return ""
    last = max(float(curve.steps[-1]) for curve in panels)
    figures = "".join(_figure(curve, last) for curve in panels)
    notes = ["Horizontally: steps (updates of the weights)."]
    if any(not curve.quantity.is_smooth and len(curve.steps) >= MIN_SMOOTHED for curve in panels):
        notes.append("Faint: as logged; strong: running mean.")
    if any(len(curve.steps) > MAX_POINTS for curve in panels):
        notes.append(f"Long curves are drawn as {MAX_POINTS} means.")
    return section("curves", "Course of training", f'<div class="panels">{figures}</div>{quiet(" ".join(notes))}')


def _figure(curve: Curve, last_step: float) -> str:
    """Return one curve under its title and last value; the steps of all curves end alike."""
    unit = f" {curve.quantity.unit}" if curve.quantity.unit else ""
    note = ""
    if curve.broken:
        steps = ", ".join(map(str, curve.broken[:MAX_SHOWN_STEPS]))
        more = " …" if len(curve.broken) > MAX_SHOWN_STEPS else ""
        note = f'<span class="worse">Not finite at step {steps}{more}.</span>'
    title = f"{escape(curve.quantity.title)}<span>last {readable(float(curve.values[-1]))}{escape(unit)}</span>"
    return figure(title, draw_curve(curve, last_step), note)


def map_section(report: RunReport) -> str:
    """Return the map of the embeddings, as coloured points and as the images themselves."""
    sample = report.embeddings
    if sample is None:
        return ""
    rows = chosen(sample.features)
    if len(rows) < MIN_POINTS or sample.features.shape[1] < 2:
        return ""
    heading = "Map of the embeddings"
    if has_collapsed(sample.features[rows]):
        text = f"The embeddings of {len(rows)} different images are all the same: the representation has collapsed."
        return section("map", heading, f'<p class="note">{text}</p>')
    points, perplexity = project(sample.features[rows])
    labels = sample.labels[rows]
    classes = [int(label) for label in np.unique(labels)]
    marks = ""
    if len(classes) <= MAX_MARKS and classes != [-1]:
        names = {label: class_title(label, sample.class_names) if label >= 0 else "unlabelled" for label in classes}
        marks = legend((*mark_of(label), name) for label, name in names.items())
    kind = "held-out" if sample.is_held_out else "training"
    caption = (
        f"t-SNE (started from PCA, perplexity {perplexity:.3g}, fixed seed) of the embeddings, at length 1, of "
        f"N = {len(rows)} {kind} images. Neighbourhoods mean something, distances between far groups do not."
    )
    picture = data_uri(thumbnail_map(points, sample.thumbnails[rows]))
    images = f'<img src="{picture}" alt="The same map with the images in place of points">'
    drawings = figure("", embedding_map(points, labels)) + figure("", images)
    return section("map", heading, f'{marks}<div class="pair">{drawings}</div>{quiet(caption)}')


def nearest_class_notes(report: RunReport) -> list[str]:
    """Return how often neighbours on the map are of one class, where no benchmark has measured an accuracy."""
    sample = report.embeddings
    if sample is None or any(score.unit == "%" for score in report.scores):
        return []
    rows = chosen(sample.features)
    rows = rows[sample.labels[rows] >= 0]
    if len(np.unique(sample.labels[rows])) < 2 or has_collapsed(sample.features[rows]):
        return []
    share, by_chance = share_beside_own_class(sample.features[rows], sample.labels[rows])
    kind = "held-out" if sample.is_held_out else "training"
    caveat = "" if sample.is_held_out else "; training has seen these images, so that new ones may have less"
    return [
        f"Of {len(rows):,} {kind} images {100 * share:.1f} % have the class of the image nearest to them, by cosine "
        f"and among themselves; chance gives {100 * by_chance:.1f} %{caveat}."
    ]


def views_section(report: RunReport) -> str:
    """Return the views that the method gets of some images."""
    sample = report.views
    if sample is None or not sample.originals or not any(views.size for views in sample.views.values()):
        return ""
    counts = []
    for name, views in sample.views.items():
        first = f", the first {MAX_VIEWS} shown" if views.shape[1] > MAX_VIEWS else ""
        counts.append(f"{views.shape[1]} {escape(name)} of {views.shape[3]} × {views.shape[2]} px{first}")
    caption = f"Views of each image: {'; '.join(counts)}. All drawn at one size."
    sheets = [contact_sheet(part) for part in _side_by_side(sample)]
    pictures = "".join(sheet_figure(sheet, "Views") for sheet in sheets)
    return section("views", "Views", f'<div class="sheets">{pictures}</div>{quiet(caption)}')


def _side_by_side(sample: ViewSample) -> list[ViewSample]:
    """Split the images into as many columns as the page has room for."""
    num = min(len(sample.originals), MAX_ROWS)
    num_columns = max(1, min(num, (PAGE_WIDTH + SHEET_GAP) // (contact_sheet(sample).picture.width + SHEET_GAP)))
    cuts = [-(-num * column // num_columns) for column in range(num_columns + 1)]
    return [
        ViewSample(
            originals=sample.originals[start:stop],
            views={name: views[start:stop] for name, views in sample.views.items()},
        )
        for start, stop in itertools.pairwise(cuts)
    ]


def neighbours_section(report: RunReport) -> str:
    """Return query images with the images that the backbone finds most similar."""
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
    picture = sheet_figure(sheet, "Queries and their nearest neighbours")
    return section("neighbours", "Nearest neighbours", picture + quiet(caption))


def sheet_figure(sheet: Sheet, alt: str) -> str:
    """Return a sheet of pictures under the headings of its columns; narrow screens scroll it."""
    columns = " ".join(f"{width}fr" for _, width in sheet.columns)
    heads = "".join(f"<span>{escape(name)}</span>" for name, _ in sheet.columns)
    width = f"min-width:min({MIN_SHEET}px,{sheet.picture.width}px);max-width:{sheet.picture.width}px"
    picture = f'<img src="{data_uri(sheet.picture)}" alt="{escape(alt)}">'
    heads = f'<div class="heads" style="grid-template-columns:{columns}">{heads}</div>'
    return figure("", f'<div class="wide"><div class="sheet" style="{width}">{heads}{picture}</div></div>')
