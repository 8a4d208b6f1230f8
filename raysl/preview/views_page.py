"""A page that shows the views of a method: a recipe's settings, and the views of some samples, epoch by epoch."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from PIL import Image

from raysl.components import Classes, resolve
from raysl.config.load import load_config
from raysl.config.schema import DataConfig, RunConfig
from raysl.data.source import Split
from raysl.errors import ConfigError
from raysl.plan.setup import Setup
from raysl.preview.recipe_table import recipe_table
from raysl.preview.samples import GroupPictures, SampleViews, StoredImage, ViewPicture, sample_views
from raysl.report.html import document, figure, quiet, section
from raysl.report.images import data_uri
from raysl.train.prepare import make_views
from raysl.transforms.view_recipe import ViewRecipe


@dataclass(frozen=True)
class ViewRequest:
    """The views that a page shows."""

    name: str
    """Of the configuration."""
    what: str
    """What makes the views: `method simclr`."""
    about: str
    """First line of its documentation."""
    recipe: ViewRecipe
    data: DataConfig
    split: Split
    """The training images."""
    seed: int


def requested(name: str, overrides: Sequence[str]) -> ViewRequest:
    """Return the views of the method of a packaged configuration or a .yaml file on its data."""
    config = load_config(name, overrides)
    split: Split = resolve("source", config.data.name)(config.data).required("train")
    classes = Classes.of(config)
    recipe = make_views(_setup(config, split), classes)
    about = next(iter((inspect.getdoc(classes.method) or "").splitlines()), "")
    return ViewRequest(config.name, f"method {config.method.name}", about, recipe, config.data, split, config.seed)


def _setup(config: RunConfig, split: Split) -> Setup:
    """Return the setup of a run over these images, however few: nothing is trained."""
    batch_size = min(config.train.batch_size, split.num_samples)
    train = replace(config.train, batch_size=batch_size, workers=1)
    data = replace(config.data, lanes=None, drop_last=True)
    return Setup.of(replace(config, train=train, data=data), split.num_samples, len(split.classes))


STORED = 116
"""Longer side of a stored image on the page, in pixels."""
SMALL, LARGE = 160, 256
"""Widths on the page between which the largest views are: small ones have large pixels."""
MIN_COLUMNS = 4
"""Views of a group that stay side by side before the group goes below the one before it."""
GAP = 4
PNG_LIMIT = 12_000
"""Bytes from which a view is stored as lossy WebP."""


def write_views(name: str, overrides: Sequence[str], path: Path, num: int = 6, num_epochs: int = 2) -> Path:
    """Write the page of a configuration's views in the first epochs, and return its absolute path."""
    request = requested(name, overrides)
    samples = sample_views(request.split, request.recipe, request.seed, num, num_epochs)
    path = path.absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(views_page(request, samples), encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error}); give another --out") from error
    return path


def views_page(request: ViewRequest, samples: Sequence[SampleViews]) -> str:
    """Return the page as HTML text."""
    zoom = _zoom(samples)
    facts = [
        f"<b>{escape(request.what)}</b>",
        f"<b>{escape(request.data.name)}</b>, {request.split.num_samples:,} training images",
        f"seed {request.seed}",
    ]
    pictures = "\n".join(_sample(sample, zoom) for sample in samples)
    body = [
        f"<header><h1>Views of {escape(request.name)}</h1>",
        f'<p class="what">{" · ".join(facts)}</p><p>{escape(request.about)}</p></header>',
        section("recipe", "Recipe", recipe_table(request.recipe) + quiet(_table_notes(request))),
        section("samples", "Samples", quiet(_picture_notes(request.recipe, zoom)) + pictures),
    ]
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return document(f"Views of {request.name}", "\n".join(body), style)


def _zoom(samples: Sequence[SampleViews]) -> float:
    """Return the page's pixels for a pixel of a view, the same for all: a whole number where views are small."""
    largest = max(
        view.picture.width for sample in samples for groups in sample.epochs for group in groups for view in group.views
    )
    return LARGE / largest if largest > LARGE else float(max(1, SMALL // largest))


def _table_notes(request: ViewRequest) -> str:
    notes = [
        "Output: images in a batch, views of an image, channels, height and width. p: probability.",
        "Other settings of transforms that are at their default are left out; point at a transform to see all.",
    ]
    if request.split.num_sources > 1:
        notes.append(f"Each of the {request.split.num_sources} images of a sample has these views.")
    return " ".join(notes)


def _picture_notes(recipe: ViewRecipe, zoom: float) -> str:
    views = [view for group in recipe.groups.values() for view in group]
    scale = "" if zoom == 1 else f", {zoom:.3g} times their size"
    notes = [f"All views are shown at one scale{scale}, before normalisation."]
    if any(view.mask is not None for view in views):
        notes.append("Stripes: masked patches. The method gets the whole view, and the mask beside it.")
    if any(view.tiles is not None for view in views):
        notes.append("Tiles stand in the order in which the method gets them, column by column, as cells are counted.")
    return " ".join(notes)


def _sample(sample: SampleViews, zoom: float) -> str:
    stored = "".join(_stored(image) for image in sample.stored)
    epochs = "".join(
        f'<div class="epoch"><h3>epoch {number}</h3><div class="groups">'
        f"{''.join(_group(group, zoom) for group in groups)}</div></div>"
        for number, groups in enumerate(sample.epochs)
    )
    return (
        f'<article class="sample"><div class="stored"><h3>index {sample.index:,}</h3>'
        f'<p class="quiet">{escape(sample.label)}</p>{stored}</div><div class="epochs">{epochs}</div></article>'
    )


def _stored(image: StoredImage) -> str:
    picture = image.picture.copy()
    picture.thumbnail((2 * STORED, 2 * STORED), Image.Resampling.LANCZOS)
    width = STORED * picture.width / max(picture.size)
    shown = _picture(picture, width, "stored image")
    return figure("", shown, f"stored at<br>{image.height} × {image.width} px")


def _group(group: GroupPictures, zoom: float) -> str:
    """Return views under the name of their group, in as many columns as fit, down to MIN_COLUMNS."""
    views = "".join(_view(view, index + 1, group, zoom) for index, view in enumerate(group.views))
    num_columns = min(len(group.views), MIN_COLUMNS)
    width = num_columns * group.views[0].picture.width * zoom
    basis = f"calc(var(--zoom) * {width:.7g}px + {GAP * (num_columns - 1)}px)"
    flex = f"flex:{int(num_columns < len(group.views))} 1 {basis}"
    head = f"<h4>{escape(group.name)}, {group.size} px{' tiles' * group.is_tiled}</h4>"
    return f'<div class="group" style="{flex}">{head}<div class="views">{views}</div></div>'


def _view(view: ViewPicture, number: int, group: GroupPictures, zoom: float) -> str:
    shown = _picture(view.picture, view.picture.width * zoom, f"{group.name}, view {number}")
    lines = "".join(f"<br>{escape(line)}" for line in view.caption)
    return figure("", shown, f"view {number}{lines}")


def _picture(picture: Image.Image, width: float, alt: str) -> str:
    """Return a picture of `width` pixels of the page, fewer on narrow screens; enlarged pixels stay squares."""
    crisp = ' class="crisp"' if width > picture.width else ""
    style = f"width:calc(var(--zoom) * {width:.7g}px)"
    return f'<img{crisp} style="{style}" src="{data_uri(picture, PNG_LIMIT)}" alt="{escape(alt)}">'
