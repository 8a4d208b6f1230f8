"""The page of a recipe's views."""

import base64
import io
import logging
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from raysl.data.order import Order
from raysl.data.sources.photos import Photos
from raysl.data.split import Rows, Split
from raysl.data.stream.loader import Loader
from raysl.errors import ConfigError
from raysl.hashing import Int64s
from raysl.preview.recipe_table import recipe_table
from raysl.preview.samples import masked, sample_views, spread_samples, view_picture
from raysl.preview.views_page import ViewRequest, requested, views_page, write_views
from raysl.transforms.crop import CenterCrop, RandomResizedCrop
from raysl.transforms.recipes import Crops, MultiCrop
from raysl.transforms.tiles import Tiles
from raysl.transforms.view import View
from raysl.transforms.view_recipe import ViewRecipe, evaluation_recipe
from tests.report.test_page import HOSTILE, Outline
from tests.transforms.papers import RECIPES, extras_of

PHOTOS = Photos.Config(size=16, num_train=8)


class Stored(Split):
    """Grey images of 8 x 12 pixels, their brightness ten times their index; some may be missing."""

    def __init__(
        self, labels: Int64s, classes: tuple[str, ...] = (), missing: tuple[int, ...] = (), num_sources: int = 1
    ) -> None:
        self.labels, self.classes, self.missing, self.num_sources = labels, classes, missing, num_sources
        self.unit_sizes = np.array([len(labels)])
        self.fingerprint, self.is_random_access = "stored", True

    def read(self, index: Int64s) -> Rows:
        def rows(brighter: int) -> Rows:
            pixels = [np.full((8, 12, 3), 10 * number + brighter, np.uint8) for number in index]
            pixels = [None if number in self.missing else one for number, one in zip(index, pixels, strict=True)]
            return Rows(pixels, self.labels[index], [f"image {number}" for number in index])

        first, *others = (rows(source) for source in range(self.num_sources))
        return Rows(first.images, first.labels, first.names, tuple(others))


def html(recipe: ViewRecipe, num: int = 2, num_epochs: int = 2) -> str:
    split = Photos(PHOTOS).required("train")
    request = ViewRequest("mine", "method mine", "What it is.", recipe, PHOTOS, split, seed=0)
    samples = sample_views(request.split, request.recipe, request.seed, num, num_epochs)
    return views_page(request, samples)


def text(page: str) -> str:
    return Outline(page.replace("<br>", " ").replace("&nbsp;", " ")).text


def pictures(page: str, alt: str) -> list[np.ndarray]:
    """Pixels of the pictures with a description."""
    found = re.findall(rf'src="data:image/\w+;base64,([^"]+)" alt="{re.escape(alt)}"', page)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))) for data in found]


def test_the_page_has_a_picture_for_each_view_and_each_stored_image() -> None:
    page = html(MultiCrop(size=32, local_size=16, num_local=3).recipe(), num=2, num_epochs=3)
    assert page.count("<img") == 2 + 2 * 3 * (2 + 3)
    assert len(pictures(page, "stored image")) == 2
    assert len(pictures(page, "global, view 2")) == 2 * 3
    assert len(pictures(page, "local, view 3")) == 2 * 3
    assert not pictures(page, "local, view 4")


def test_a_sample_stands_with_its_index_label_and_stored_size() -> None:
    said = text(html(Crops(size=16).recipe(), num=8))
    for index, (label, side) in enumerate(zip(["china", "flower"] * 4, [16, 16, 24, 24, 32, 32, 16, 16], strict=True)):
        assert f"index {index}label {label}stored at {side} × {side} px" in said


@pytest.mark.parametrize("num_sources", [1, 2])
def test_the_pictures_are_the_views_that_a_run_of_this_seed_trains_on(num_sources: int) -> None:
    split = Stored(np.arange(6), num_sources=num_sources)
    recipe = RECIPES["dino"](size=32, local_size=16, num_local=2)
    order = Order(seed=3, fingerprint="x", unit_sizes=split.unit_sizes, batch_size=6, lanes=1, window=8, is_exact=True)
    mean = std = (0.5, 0.5, 0.5)
    loader = Loader(split, recipe, order, mean, std, augment_in_task=True, plain_recipe=evaluation_recipe(16))
    samples = sample_views(split, recipe, seed=3, num=6, num_epochs=2)
    for epoch in range(2):
        loaded = loader.load(epoch, rank=0, world=1)
        for row, index in enumerate(loaded.key.tolist()):
            groups = samples[index].epochs[epoch]
            assert [group.name for group in groups] == list(loaded.views)
            for group in groups:
                expected = loaded.views[group.name][row].permute(0, 2, 3, 1).numpy()
                assert np.array_equal(np.stack([np.asarray(view.picture) for view in group.views]), expected)


def test_the_table_names_crops_probabilities_and_outputs() -> None:
    said = text(recipe_table(RECIPES["dino"](num_local=4)))
    assert "RandomResizedCrop size 224, scale (0.4, 1), ratio (0.75, 1.33)" in said
    assert "RandomResizedCrop size 96, scale (0.05, 0.4), ratio (0.75, 1.33)" in said
    assert "ColorJitter p 0.8, brightness 0.4, contrast 0.4, saturation 0.2, hue 0.1" in said
    assert said.index("GaussianBlur p 1") < said.index("GaussianBlur p 0.1Solarize p 0.2") < said.index("local")
    assert "[B, 2, 3, 224, 224]" in said
    assert "[B, 4, 3, 96, 96]" in said


def test_views_that_are_drawn_alike_share_a_row() -> None:
    assert "views 1 to 2, alike" in text(recipe_table(RECIPES["simclr"]()))
    unlike = text(recipe_table(RECIPES["byol"]()))
    assert "alike" not in unlike
    assert "view 1Random" in unlike
    assert "view 2Random" in unlike


def test_settings_at_their_default_are_left_for_those_who_point_at_them() -> None:
    table = recipe_table(RECIPES["simclr"]())
    assert "sigma" not in text(table)
    assert "sigma=(0.1, 2.0)" in unescape(table)


def test_the_table_tells_of_tiles_and_what_happens_to_each() -> None:
    said = text(recipe_table(RECIPES["pirl"]()))
    assert "[B, 9, 3, 64, 64]" in said
    assert "Cut into 9 tiles: Tiles grid 3, size 64, jitter 21, order randomOf each tile:ColorJitter p 1" in said
    assert "order of 10 permutations" in text(recipe_table(RECIPES["jigsaw"](num_permutations=10)))


def test_masks_are_drawn_over_the_masked_patches_alone() -> None:
    pixels = np.full((8, 8, 3), 100, np.uint8)
    mask = np.array([[True, False], [False, False]])
    shown = masked(pixels, mask)
    assert (shown[:4, :4] != 100).all()
    assert (shown[4:] == 100).all()
    assert (shown[:, 4:] == 100).all()


def test_masked_patches_are_counted_below_each_view_that_has_a_mask() -> None:
    recipe = RECIPES["ibot"](size=32, patch_size=8, local_size=16, num_local=1)
    page = html(recipe, num=8, num_epochs=1)
    counts = extras_of(recipe, np.arange(8), 0, 0)["global.mask"].sum(dim=(2, 3))  # [8, 2]
    assert counts.unique().numel() > 1
    said = re.findall(r"view (\d)( (\d+) of 16 patches masked)?", text(page)[text(page).index("index 0") :])
    expected = [("1", str(first)) for first, _ in counts.tolist()] + [
        ("2", str(second)) for _, second in counts.tolist()
    ]
    assert sorted((view, count) for view, _, count in said if count) == sorted(expected)
    assert "Stripes: masked patches" in page
    assert "Stripes" not in html(Crops(size=16).recipe(), num=1)


def test_tiles_in_the_order_of_their_cells_make_up_the_image() -> None:
    image = torch.arange(3 * 36, dtype=torch.uint8).view(1, 3, 6, 6)
    view = View(CenterCrop(size=6, resize=6), (), Tiles(grid=3, size=2, jitter=1, order="fixed"))
    tiles = view.tiles.cut(image, {"offsets": torch.zeros(1, 9, 2, dtype=torch.int64), "order": torch.arange(9)[None]})
    laid_out = np.asarray(view_picture(view, tiles[0], {}).picture)
    assert laid_out.shape == (8, 8, 4)  # gaps of a pixel
    gaps = [2, 5]
    assert (laid_out[gaps, :, 3] == 0).all()
    whole = np.delete(np.delete(laid_out, gaps, axis=0), gaps, axis=1)
    assert np.array_equal(whole[..., :3], image[0].permute(1, 2, 0).numpy())


def test_a_permutation_is_told_with_its_number_and_cells() -> None:
    recipe = RECIPES["jigsaw"](num_permutations=10, size=30, tile_size=8)
    page = html(recipe, num=8)
    table = recipe.groups["patches"][0].tiles.order
    for epoch in range(2):
        for number in extras_of(recipe, np.arange(8), 0, epoch)["patches.permutation"].flatten().tolist():
            assert f"permutation {number} of 10: cells {' '.join(map(str, table[number]))}" in text(page)
    assert "column by column" in page


def test_a_rotation_is_told_in_degrees() -> None:
    page = html(RECIPES["rotnet"](size=16), num=8, num_epochs=1)
    quarters = extras_of(RECIPES["rotnet"](size=16), np.arange(8), 0, 0)["global.rotation"].flatten()
    assert len(quarters.unique()) > 1
    assert re.findall(r"rotation (\d+)°", page) == [str(90 * number) for number in quarters.tolist()]


def test_small_views_are_enlarged_all_alike_with_square_pixels() -> None:
    page = html(MultiCrop(size=32, local_size=16, num_local=3).recipe())
    shown = re.findall(r'<img( class="crisp")? style="width:[^"]* (\d+)px\)"[^>]*alt="(\w+),', page)
    widths = {(name, is_crisp, width) for is_crisp, width, name in shown}
    assert widths == {("global", ' class="crisp"', "160"), ("local", ' class="crisp"', "80")}
    assert "5 times their size" in page


def test_large_views_are_shown_smaller_all_alike() -> None:
    page = html(MultiCrop(size=512, local_size=256).recipe(), num=1, num_epochs=1)
    assert set(re.findall(r'<img style="width:calc[^"]*? (\d+)px\)"[^>]*alt="(\w+), ', page)) == {
        ("256", "global"),
        ("128", "local"),
    }


@pytest.mark.parametrize(
    ("label", "classes", "said"),
    [
        (1, ("cat", "dog"), "label dog"),
        (7, (), "label 7"),
        (-1, ("cat", "dog"), "unlabelled"),
        ([1, 0, 1], ("cat", "dog", "cow"), "label cat, cow"),
        ([0, -1, 0], ("cat", "dog", "cow"), "none of the classes"),
    ],
)
def test_labels_are_told_by_the_names_of_their_classes(label: object, classes: tuple[str, ...], said: str) -> None:
    (sample,) = sample_views(Stored(np.array([label]), classes), evaluation_recipe(8), 0, 6, 1)
    assert sample.label == said


def test_a_corrupt_image_is_replaced_and_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "raysl"):
        samples = sample_views(Stored(np.zeros(3, np.int64), missing=(1,)), evaluation_recipe(8), 0, 3, 1)
    assert np.asarray(samples[1].stored[0].picture).max() == 20, "the next image of the unit"
    assert "image 1" in caplog.text


@pytest.mark.parametrize("num_samples", [1, 5, 6, 7, 1000, 10**10])
def test_shown_samples_are_different_and_lie_all_over_the_dataset(num_samples: int) -> None:
    index = spread_samples(num_samples, 6)
    assert len(index) == min(num_samples, 6)
    parts = np.arange(len(index) + 1) * num_samples // len(index)
    assert (parts[:-1] <= index).all()
    assert (index < parts[1:]).all()


def test_nothing_is_loaded_from_elsewhere_and_names_stay_text() -> None:
    recipe = ViewRecipe({HOSTILE: (View(CenterCrop(size=8, resize=8)),)})
    split = Stored(np.zeros(2, np.int64), (HOSTILE,))
    request = ViewRequest(HOSTILE, HOSTILE, HOSTILE, recipe, PHOTOS, split, seed=0)
    page = views_page(request, sample_views(split, recipe, 0, 2, 1))
    outline = Outline(page.replace("<br>", " "))
    assert "script" not in outline.tags
    assert not [name for name, _ in outline.attributes if name.startswith("on")]
    assert all(value.startswith("data:image/") for name, value in outline.attributes if name in ("src", "href"))
    assert outline.text.count(HOSTILE) == 1 + 3 + 1 + 2 + 2  # title, header, table, samples, groups


def test_a_configuration_shows_its_methods_views_on_its_data() -> None:
    request = requested("quickstart", ["seed=4", "data.limit=30"])
    assert (request.what, request.data.name, request.seed, request.split.num_samples) == (
        "method simclr",
        "digits",
        4,
        30,
    )
    assert (request.recipe.size, request.recipe.num_views) == (16, 2)


def test_any_images_show_what_a_method_makes_of_them_be_they_fewer_than_a_batch() -> None:
    asked = requested("simclr", ["data=photos", "data.num_train=9", "method.views.num=3"])
    assert (asked.split.num_samples, asked.recipe.num_views) == (9, 3)


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("quickstrat", [], r"did you mean 'quickstart'\?"),
        ("gone.yaml", [], r"no file 'gone\.yaml'"),
        ("quickstart", ["data=fotos"], r"unknown source 'fotos'; did you mean 'photos'"),
        ("quickstart", ["recipe.size=8"], r"recipe\.size: no such setting"),
        ("quickstart", ["method.views.jitter=[3, 0, 0, 0.6]"], r"method\.views\.jitter\[3\]: 0\.6 is out of range"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_what_was_meant(name: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        requested(name, overrides)


def test_the_page_is_written_below_folders_that_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_views("quickstart", [], Path("new/views.html"), num=1, num_epochs=1)
    assert path == tmp_path / "new" / "views.html"
    assert path.read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_views("quickstart", [], tmp_path / "new", num=1, num_epochs=1)


@pytest.mark.cluster
def test_views_need_no_ray() -> None:
    code = "import sys, raysl.preview.views_page; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_table_of_views_names_the_view_that_another_lies_in() -> None:
    crop = RandomResizedCrop(size=8)
    said = text(recipe_table(ViewRecipe({"large": (View(crop),) * 2, "small": (View(crop, inside=1),)})))
    assert said.count("Inside view") == 1
    assert "Inside view 2, counted over all groups" in said
