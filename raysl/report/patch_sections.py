"""The sections of a run's page on parts of images: what networks say of patches, and reconstructions of hidden ones."""

import base64
import json
from functools import cache
from html import escape
from pathlib import Path

import numpy as np

from raysl.report.contents import PatchNetwork, PatchSample, Pixels, Reconstructions, RunReport
from raysl.report.html import fold, quiet, section
from raysl.report.images import CELL, GAP, HEAT, Sheet, data_uri, grid_sheet, heat, strip
from raysl.report.picture_sections import MIN_SHEET, PAGE_WIDTH, SHEET_GAP, sheet_figure

MAX_IMAGES = 10
"""Images of a section."""
MAX_HEADS, LEAST_CELL = 16, 56
"""Heads that are drawn, and the smallest side of their pictures in pixels."""
MAX_MOMENTS = 8
"""Steps whose reconstructions are drawn."""
LARGE = 224
"""Largest side of the pictures whose patches can be clicked."""
LEVELS = 127
"""Levels of a number of a code, up and down."""


def patches_section(report: RunReport) -> str:
    """Return principal components, attention by head and similarities of patches, before and after training."""
    sample = report.patches
    if sample is None or not sample.networks or not len(sample.images):
        return ""
    kind = "Held-out" if sample.is_held_out else "Training"
    height, width = sample.networks[-1].colors.shape[1:3]
    what = "Output tokens" if sample.stage == "tokens" else f"Map <code>{escape(sample.stage)}</code>"
    caption = (
        f"{what}, {height} × {width} patches. Colours: the first three principal components over all patches of these "
        "images, each network by itself, so colours of one cannot be compared with those of another."
    )
    components = _strips(sample, f"{kind} images", [network.colors for network in sample.networks])
    alone = _strips(sample, f"{kind} images", [network.foreground for network in sample.networks])
    about = "Patches above the mean of the first component, by the components of these alone."
    parts = [
        "<h3>Principal components</h3>",
        components,
        quiet(caption),
        fold("Foreground alone", alone + quiet(about)),
        _attention(sample),
        _similar(sample),
        *(quiet(escape(note)) for note in sample.notes),
    ]
    return section("patches", "Patches", "".join(parts))


def _strips(sample: PatchSample, title: str, maps: list[Pixels]) -> str:
    """Return the images above a row of maps for each network; narrow screens scroll all rows together."""
    rows = [(title, sample.images[:MAX_IMAGES])]
    rows += [(network.title, some[:MAX_IMAGES]) for network, some in zip(sample.networks, maps, strict=True)]
    drawn = ""
    for name, pictures in rows:
        name = name[:1].upper() + name[1:]
        drawn += f'<h4>{escape(name)}</h4><img src="{data_uri(strip(pictures))}" alt="{escape(name)}">'
    width = strip(rows[0][1]).width
    style = f"min-width:min({MIN_SHEET}px,{width}px);max-width:{width}px"
    return f'<div class="wide"><div class="sheet strips" style="{style}">{drawn}</div></div>'


def _attention(sample: PatchSample) -> str:
    """Return a row of heads for each image and network; empty where no network has such attention."""
    sheets = ""
    for network in sample.networks:
        if network.attention is not None:
            name = network.title[:1].upper() + network.title[1:]
            sheet = _heads_sheet(sample.images[:MAX_IMAGES], network.attention[:MAX_IMAGES], len(sample.networks))
            sheets += f"<div><h4>{escape(name)}</h4>{sheet_figure(sheet, f'Attention by head, {name}')}</div>"
    if not sheets:
        return ""
    heads = sample.networks[-1].attention
    more = "" if heads is None or heads.shape[1] <= MAX_HEADS else f" The first {MAX_HEADS} heads are shown."
    caption = (
        "Attention of the class token to the patches in the last block; the brightest patch of a picture has its "
        f"largest weight, and black is 0.{more}"
    )
    return f'<h3>Attention by head</h3><div class="sheets">{sheets}</div>{quiet(caption)}'


def _heads_sheet(images: Pixels, attention: np.ndarray, num_networks: int) -> Sheet:
    """Draw a row an image: the image, then the attention of each head, as large as networks fit side by side."""
    num_heads = min(attention.shape[1], MAX_HEADS)
    room = (PAGE_WIDTH - SHEET_GAP * (num_networks - 1)) // num_networks
    side = min(CELL, room // (num_heads + 1) - GAP)
    if side < LEAST_CELL:
        side = min(CELL, PAGE_WIDTH // (num_heads + 1) - GAP)
    weights = attention[:, :num_heads]
    pictures = heat(weights / np.maximum(weights.max(axis=(2, 3), keepdims=True), 1e-12))  # [N, heads, h, w, 3]
    rows = [[image, *heads] for image, heads in zip(images, pictures, strict=True)]
    return grid_sheet(rows, ["image", *(f"{head + 1}" for head in range(num_heads))], side)


def _similar(sample: PatchSample) -> str:
    """Return the picture whose patches can be clicked; the script of the page fills it."""
    images = sample.images[:MAX_IMAGES]
    side = min(LARGE, max(images.shape[1:3]))
    width = max(network.codes.shape[3] for network in sample.networks)
    exact = all(network.codes.shape[3] == network.num_features for network in sample.networks)
    more = "" if exact else f" Cosines are of the strongest {width} directions of the features."
    caption = (
        "Click a patch, or move with the arrow keys: the brighter a patch, the nearer its features are to those of the "
        f"chosen one, by cosine, over all images. Framed: the nearest ones.{more}"
    )
    data = json.dumps({"side": side, "heat": HEAT, "networks": [_encoded(network) for network in sample.networks]})
    # no text of the data can end the element, since `<` is escaped in it
    data = data.replace("<", "\\u003c")
    sprite = data_uri(strip(images, side))
    return (
        f'<h3>Similar patches</h3>{quiet(caption)}<div id="similar" data-num="{len(images)}">'
        f'<img id="sprite" src="{sprite}" alt="" hidden><noscript>{quiet("This picture needs JavaScript.")}</noscript>'
        f'</div><script type="application/json" id="codes">{data}</script>'
    )


def _encoded(network: PatchNetwork) -> dict[str, object]:
    """Return title, grid and codes of a network: signed bytes, and what a step of each direction is worth."""
    codes = network.codes[:MAX_IMAGES]
    scales = np.maximum(np.abs(codes).max(axis=(0, 1, 2)), 1e-12) / LEVELS  # [K]
    content = np.round(codes / scales).astype(np.int8).tobytes()
    return {
        "title": network.title,
        "grid": list(codes.shape[1:3]),
        "scales": [float(f"{scale:.4g}") for scale in scales],
        "codes": base64.b64encode(content).decode("ascii"),
    }


@cache
def patches_script() -> str:
    """Return the script that draws similarities of patches."""
    return Path(__file__).with_name("patches.js").read_text(encoding="utf-8")


def reconstructions_section(report: RunReport) -> str:
    """Return images, what the method saw of them, and its predictions along the training."""
    sample = report.reconstructions
    if sample is None or not sample.predicted or not len(sample.images):
        return ""
    steps = _spread(sorted(sample.predicted))
    kind = "held-out" if sample.is_held_out else "training"
    sheet = _reconstruction_sheet(sample, steps)
    caption = (
        f"Whole {kind} images, always with the same masks; grey: hidden or not predicted. Where the method predicts "
        "pixels normalised by patch, the mean and the deviation are those of the patch itself, which it does not know."
    )
    picture = sheet_figure(sheet, "Images, what the method saw, and its predictions by step")
    return section("reconstructions", "Reconstructions", picture + quiet(caption))


def _spread(steps: list[int]) -> list[int]:
    """Return the first and the last step, and some at even distances between them where there are many."""
    if len(steps) <= MAX_MOMENTS:
        return steps
    return [steps[index] for index in np.linspace(0, len(steps) - 1, MAX_MOMENTS).round().astype(int)]


def _reconstruction_sheet(sample: Reconstructions, steps: list[int]) -> Sheet:
    """Draw a row an image: the image, what was seen of it, and the predictions by step."""
    columns = [sample.images, sample.seen, *(sample.predicted[step] for step in steps)]
    rows = [[column[row] for column in columns] for row in range(min(len(sample.images), MAX_IMAGES))]
    return grid_sheet(rows, ["image", "seen", *(f"step {step:,}" for step in steps)])
