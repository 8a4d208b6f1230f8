"""A recipe of views as a table: the crop, the transforms and the output of every view."""

import dataclasses
from html import escape
from itertools import groupby
from typing import Any

import numpy as np

from raysl.report.html import table
from raysl.transforms import Transform, View, ViewRecipe

HEAD = "<th>group</th><th>output</th><th>view</th><th>crop</th><th>transforms, in order</th>"
ALWAYS_SHOWN = ("p", "brightness", "contrast", "saturation", "hue", "patch_size", "ratio", "ratios")
"""Settings that are shown at their default too."""


def recipe_table(recipe: ViewRecipe) -> str:
    """Return a table of the views of each group; neighbours that are drawn alike share a row."""
    rows = []
    for name, views in recipe.groups.items():
        alike = [list(run) for _, run in groupby(views)]
        num_images = sum(view.num_images for view in views)
        span = f' rowspan="{len(alike)}"'
        group = f'<td class="main"{span}>{escape(name)}</td><td{span}>{_shape(num_images, views[0].size)}</td>'
        first = 1
        for run in alike:
            rows.append(group + _view(run[0], first, len(run)))
            group, first = "", first + len(run)
    return table(HEAD, rows)


def _shape(num_images: int, size: int) -> str:
    return f"<code>[B, {num_images}, 3, {size}, {size}]</code>"


def _view(view: View, first: int, num: int) -> str:
    """Return the cells of `num` views that are drawn alike, counted from `first`."""
    numbers = f"view {first}" if num == 1 else f"views {first} to {first + num - 1}, alike"
    chain = _chain(view.transforms)
    if view.tiles is not None:
        chain += f"<p>Cut into {view.num_images} tiles: {_named(view.tiles)}</p>"
    if view.mask is not None:
        chain += f"<p>Patches masked: {_named(view.mask)}</p>"
    if view.tile_transforms:
        chain += f"<p>Of each tile:</p>{_chain(view.tile_transforms)}"
    crop = _named(view.crop)
    if view.inside is not None:
        crop += f"<p>Inside view {view.inside + 1}, counted over all groups</p>"
    return f"<td>{numbers}</td><td>{crop}</td><td>{chain or 'none'}</td>"


def _chain(transforms: tuple[Transform, ...]) -> str:
    """Return transforms as a list; pointing at one shows all its settings."""
    items = "".join(
        f'<li title="{escape(repr(transform))}">{_named(transform, is_brief=True)}</li>' for transform in transforms
    )
    return f"<ol>{items}</ol>" if items else ""


def _default(field: "dataclasses.Field[object]") -> object:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


def _named(part: Any, is_brief: bool = False) -> str:
    """Return the name of a part and its settings; if brief, only ALWAYS_SHOWN and those not at their default."""
    values = [(item, getattr(part, item.name)) for item in dataclasses.fields(part)]
    settings = [
        escape(f"{item.name} {_spelled(value)}").replace(" ", "&nbsp;")
        for item, value in values
        if not is_brief or item.name in ALWAYS_SHOWN or value != _default(item)
    ]
    return f"<b>{type(part).__name__}</b> {', '.join(settings)}".rstrip()


def _spelled(value: object) -> str:
    """Return a setting in few letters: three digits, and a table of permutations as its length."""
    if isinstance(value, np.ndarray):
        return f"of {len(value):,} permutations"
    if isinstance(value, tuple):
        return f"({', '.join(map(_spelled, value))})"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
