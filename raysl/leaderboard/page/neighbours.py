"""The nearest neighbours that the pages of the best runs show, small enough to stand side by side."""

import base64
import io
import re

from PIL import Image

from raysl.report.images import BAND, CELL, FRAME, GAP, data_uri

NUM_QUERIES, WIDTH = 6, 620
"""Rows of a run's sheet that are kept, and the width in pixels to which it is made smaller."""
SHEET = re.compile(r'<section id="neighbours">.*?<img src="data:image/\w+;base64,([A-Za-z0-9+/=]+)"', re.DOTALL)


def neighbours_of(report: str) -> str:
    """The first queries of a run's page with their neighbours, as the `src` of an image; empty where it has none.

    Args:
        report: text of a `report.html`.
    """
    found = SHEET.search(report)
    if found is None:
        return ""
    try:
        sheet = Image.open(io.BytesIO(base64.b64decode(found[1]))).convert("RGBA")
    except (OSError, ValueError):  # the page was cut off while it was written
        return ""
    rows = NUM_QUERIES * (CELL + FRAME + BAND + GAP) - GAP
    sheet = sheet.crop((0, 0, sheet.width, min(sheet.height, rows)))
    if sheet.width > WIDTH:
        sheet = sheet.resize((WIDTH, round(sheet.height * WIDTH / sheet.width)), Image.Resampling.LANCZOS)
    return data_uri(sheet, png_limit=0)
