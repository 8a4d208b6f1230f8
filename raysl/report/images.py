"""Sheets of pictures: views of an image, nearest neighbours, thumbnails in place of points."""

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from raysl.report.contents import Neighbours, Pixels, Retrieved, ViewSample

CELL, GAP, WIDE_GAP = 96, 6, 20
"""Side of a picture on a sheet and the space between two, in pixels."""
MAX_ROWS, MAX_VIEWS, MAX_NEIGHBOURS = 10, 12, 8
FRAME, BAND = 5, 26
MAX_FONT, MIN_FONT, MARK_FONT = 17, 13, 24
MARKS = {True: "✔", False: "✘"}
SAME, OTHER, NEUTRAL = (0, 121, 86), (196, 70, 10), (96, 106, 118)
"""Frames: same class, other class, no class known. The first two differ for colour-blind eyes too."""
HEAT = ((14, 10, 46), (86, 26, 122), (176, 44, 102), (236, 106, 52), (250, 180, 64), (255, 236, 150))
"""Colours of `heat` at equal distances, ever brighter."""
MAP_WIDTH = 864
"""Pixels of the longer side of a map of thumbnails."""
PNG_LIMIT = 200_000
"""Bytes from which a sheet of photographs is stored as lossy WebP instead."""


@dataclass(frozen=True)
class Sheet:
    """A picture and what the page says above its columns."""

    picture: Image.Image
    columns: list[tuple[str, int]]
    """Heading and width in pixels, from the left; widths add up to the picture's."""
    num_rows: int
    """Rows that fitted."""


def contact_sheet(sample: ViewSample) -> Sheet:
    """Draw a row an image: the original on the left, then its views, group by group."""
    groups = {name: views for name, views in sample.views.items() if views.size}
    num_rows = min(len(sample.originals), MAX_ROWS, *map(len, groups.values()))
    widths = {name: min(views.shape[1], MAX_VIEWS) for name, views in groups.items()}
    spans = [("original", CELL + WIDE_GAP)]
    spans += [(name, count * (CELL + GAP) - GAP + WIDE_GAP) for name, count in widths.items()]
    spans[-1] = (spans[-1][0], spans[-1][1] - WIDE_GAP)
    sheet = _empty(sum(width for _, width in spans), num_rows * (CELL + GAP) - GAP)
    for row in range(num_rows):
        top, x = row * (CELL + GAP), CELL + WIDE_GAP
        sheet.paste(fitted(sample.originals[row], CELL), (0, top))
        for name, count in widths.items():
            for view in range(count):
                sheet.paste(fitted(sample.views[name][row, view], CELL), (x + view * (CELL + GAP), top))
            x += count * (CELL + GAP) - GAP + WIDE_GAP
    return Sheet(sheet, spans, num_rows)


def neighbour_sheet(sample: Neighbours, class_names: Sequence[str]) -> Sheet:
    """Draw a row a query: the query on the left, then its neighbours, marked as same or other class."""

    def note(row: int, column: int) -> tuple[str, bool | None]:
        label, other = int(sample.query_labels[row]), int(sample.labels[row, column])
        return f"{sample.similarities[row, column]:.2f}", None if min(label, other) < 0 else label == other

    return _search_sheet(sample, class_names, "nearest first", note)


def retrieved_sheet(sample: Retrieved, class_names: Sequence[str]) -> Sheet:
    """Draw a row a query: the query on the left, then the results, marked as right or wrong."""
    return _search_sheet(
        sample, class_names, "best first", lambda row, column: (str(column + 1), bool(sample.right[row, column]))
    )


def class_title(label: int, class_names: Sequence[str]) -> str:
    """Return a class's name, or its number; empty for -1."""
    return class_names[label] if 0 <= label < len(class_names) else f"class {label}" if label >= 0 else ""


def _search_sheet(
    sample: Neighbours | Retrieved,
    class_names: Sequence[str],
    heading: str,
    note: Callable[[int, int], tuple[str, bool | None]],
) -> Sheet:
    """Draw rows of queries under the names of their classes, each with its results.

    Args:
        note: returns the text of the result at (row, column), and whether it is right; None: nobody knows.
    """
    num_rows, num_columns = min(len(sample.queries), MAX_ROWS), min(sample.images.shape[1], MAX_NEIGHBOURS)
    width, height = CELL + 2 * FRAME, CELL + FRAME + BAND
    spans = [("query", width + WIDE_GAP), (heading, num_columns * (width + GAP) - GAP)]
    sheet = _empty(sum(span for _, span in spans), num_rows * (height + GAP) - GAP)
    for row in range(num_rows):
        top, title = row * (height + GAP), class_title(int(sample.query_labels[row]), class_names)
        sheet.paste(_framed(sample.queries[row], title), (0, top))
        for column in range(num_columns):
            card = _framed(sample.images[row, column], *note(row, column))
            sheet.paste(card, (width + WIDE_GAP + column * (width + GAP), top))
    return Sheet(sheet, spans, num_rows)


def _framed(pixels: Pixels, text: str, is_right: bool | None = None) -> Image.Image:
    """Frame a picture over a band with `text`, with a check mark or a cross unless `is_right` is None."""
    card = Image.new(
        "RGBA", (CELL + 2 * FRAME, CELL + FRAME + BAND), {None: NEUTRAL, True: SAME, False: OTHER}[is_right]
    )
    picture = fitted(pixels, CELL)
    card.paste(picture, (FRAME, FRAME), picture)
    draw, middle, start = ImageDraw.Draw(card), CELL + FRAME + BAND / 2, FRAME
    if is_right is not None:
        draw.text((FRAME + BAND / 2, middle), MARKS[is_right], fill="white", font=_font(MARK_FONT), anchor="mm")
        start += BAND
    text, font = _fitting(text, card.width - start - FRAME)
    draw.text(((start + card.width - FRAME) / 2, middle), text, fill="white", font=font, anchor="mm")
    return card


def thumbnail_map(points: NDArray[np.float64], thumbnails: Pixels, num_cells: int | None = None) -> Image.Image:
    """Draw thumbnails [N, H, W, 3] at their points [N, 2] in a grid: the point nearest to a cell's middle fills it.

    The grid has `num_cells` on its longer side; default: 8 to 24, fewer and larger ones for few points.
    """
    num_cells = num_cells or min(24, max(8, round(1.5 * len(points) ** 0.5)))
    side = MAP_WIDTH // num_cells
    extent = np.ptp(points, axis=0).max()
    # a little less than num_cells, so that the point at the far end falls into the last cell
    cells = (points - points.min(axis=0)) / extent * (num_cells - 1e-6)  # [N, 2], in cells
    num_columns, num_rows = (int(count) for count in np.floor(cells.max(axis=0)) + 1)
    sheet = _empty(num_columns * side, num_rows * side)
    filled: set[tuple[int, int]] = set()
    for index in np.argsort(np.abs(cells % 1 - 0.5).sum(axis=1), kind="stable"):
        column, row = (int(cell) for cell in cells[index])
        if (column, row) not in filled:
            filled.add((column, row))
            sheet.paste(fitted(thumbnails[index], side - 2), (column * side + 1, (num_rows - 1 - row) * side + 1))
    return sheet


def strip(pictures: Pixels | Sequence[Pixels], side: int = CELL) -> Image.Image:
    """Draw pictures [H, W, 3] of any sizes side by side, each in a square."""
    sheet = _empty(len(pictures) * (side + GAP) - GAP, side)
    for column, picture in enumerate(pictures):
        sheet.paste(fitted(picture, side), (column * (side + GAP), 0))
    return sheet


def grid_sheet(rows: Sequence[Sequence[Pixels]], headings: Sequence[str], side: int = CELL) -> Sheet:
    """Draw rows of pictures [H, W, 3] under the headings of their columns."""
    height = side + GAP
    sheet = _empty(len(headings) * height - GAP, len(rows) * height - GAP)
    for number, row in enumerate(rows):
        sheet.paste(strip(row, side), (0, number * height))
    widths = [height] * (len(headings) - 1) + [side]
    return Sheet(sheet, list(zip(headings, widths, strict=True)), len(rows))


def heat(values: NDArray[np.float32]) -> Pixels:
    """Return values in [0, 1] as colours from dark to bright, uint8 [..., 3].

    >>> heat(np.array([0.0, 1.0], np.float32)).tolist()
    [[14, 10, 46], [255, 236, 150]]
    """
    levels = np.clip(values, 0, 1)
    points = np.linspace(0, 1, len(HEAT))
    channels = [np.interp(levels, points, [stop[channel] for stop in HEAT]) for channel in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def fitted(pixels: Pixels, side: int) -> Image.Image:
    """Fit an image [H, W, 3] into a clear square: small ones keep their pixels as squares, large ones are averaged."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    scale = side / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    image = image.resize(size, Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS)
    square = _empty(side, side)
    square.paste(image, ((side - size[0]) // 2, (side - size[1]) // 2))
    return square


def data_uri(image: Image.Image, png_limit: int = PNG_LIMIT) -> str:
    """Return a picture for the `src` of an `<img>`: PNG, or WebP where PNG has more bytes than `png_limit`."""
    buffer, kind = io.BytesIO(), "png"
    image.save(buffer, "PNG", optimize=True)
    if buffer.tell() > png_limit:
        buffer, kind = io.BytesIO(), "webp"
        image.save(buffer, "WEBP", quality=82, method=4)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def _empty(width: int, height: int) -> Image.Image:
    """Return a clear picture: the page shows through, light or dark."""
    return Image.new("RGBA", (width, height), (0, 0, 0, 0))


def _fitting(text: str, width: int) -> tuple[str, ImageFont.FreeTypeFont]:
    """Return `text` and the largest font in which it fits into `width` pixels; cut with an ellipsis if none does."""
    for size in range(MAX_FONT, MIN_FONT - 1, -1):
        if _font(size).getlength(text) <= width:
            return text, _font(size)
    while text and _font(MIN_FONT).getlength(text + "…") > width:
        text = text[:-1]
    return text + "…", _font(MIN_FONT)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    """Return the font beside this file: the same on every machine, with the letters of most alphabets."""
    return ImageFont.truetype(str(Path(__file__).with_name("DejaVuSans-Bold.ttf")), size)
