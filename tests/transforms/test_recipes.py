"""The recipes have the numbers of their papers, and the pixels that come out show it.

`PAPERS` is written from the papers, their authors' code and VISSL's configurations, in the order in which they apply
the operations.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from raysl.transforms import (
    Affine,
    GaussianBlur,
    HorizontalFlip,
    SampleRandom,
    Transform,
    VerticalFlip,
    View,
    ViewRecipe,
    functional,
    permutation_table,
)
from raysl.transforms.recipes import AsymmetricCrops, AsymmetricMultiCrop, Crops, MultiCrop
from tests.transforms.papers import RECIPES, extras_of

Part = tuple[str, dict[str, Any]]  # a class and all of its settings
Chain = list[Part]

MANY = np.arange(4000)


def crop(size: int, low: float, high: float) -> Part:
    return "RandomResizedCrop", {
        "size": size,
        "scale": (low, high),
        "ratio": (3 / 4, 4 / 3),
        "interpolation": "bilinear",
    }


def jitter(p: float, brightness: Any, contrast: Any, saturation: Any, hue: Any) -> Part:
    settings = {"p": p, "brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}
    return "ColorJitter", settings | {"arithmetic": "torchvision"}


def gray(p: float) -> Part:
    return "Grayscale", {"p": p}


def blur(p: float) -> Part:
    return "GaussianBlur", {"p": p, "sigma": (0.1, 2.0), "kernel_size": None}


def solarize(p: float) -> Part:
    return "Solarize", {"p": p, "threshold": 0.5}


FLIP: Part = ("HorizontalFlip", {"p": 0.5})
TURN: Part = ("RandomRotation90", {})
PHOTOMETRIC: Part = (
    "RandomPhotometric",
    {"p": 0.66, "bits": (4, 7), "sharpness": (0.1, 1.9), "threshold": (0, 255)},
)
BLOCKS: Part = (
    "BlockMask",
    {"patch_size": 16, "ratios": ((0.0, 0.0), (0.3, 0.2)), "aspect": (0.3, 1 / 0.3), "min_block": None},
)
RAND_AUGMENT: Part = (
    "RandAugment",
    {"num_ops": 2, "magnitude": 9, "magnitude_std": 0.5, "p": 0.5, "num_bins": 11, "fill": 0.5},
)
ERASING: Part = ("RandomErasing", {"p": 0.25, "scale": (0.02, 0.33), "ratio": (0.3, 3.3), "value": "random"})


def dropped(ratio: float) -> Part:
    return "RandomMask", {"patch_size": 16, "ratio": ratio}


STRONG_JITTER = jitter(1.0, 0.4, 0.4, 0.4, 0.4)
SIMCLR: Chain = [FLIP, jitter(0.8, 0.8, 0.8, 0.8, 0.2), gray(0.2), blur(0.5)]
BYOL: Chain = [FLIP, jitter(0.8, 0.4, 0.4, 0.2, 0.1), gray(0.2)]
FIRST: Chain = [*BYOL, blur(1.0)]
SECOND: Chain = [*BYOL, blur(0.1), solarize(0.2)]
LOCAL: Chain = [*BYOL, blur(0.5)]
MSN: Chain = [FLIP, jitter(0.8, 0.4, 0.4, 0.4, 0.1), gray(0.2), blur(0.5)]
WIDE = (0.6, 1.4)

PAPERS: dict[str, dict[str, list[tuple[Part, Chain]]]] = {
    "barlow_twins": {"global": [(crop(224, 0.08, 1), FIRST), (crop(224, 0.08, 1), SECOND)]},
    "byol": {"global": [(crop(224, 0.08, 1), FIRST), (crop(224, 0.08, 1), SECOND)]},
    "clusterfit": {"global": [(crop(224, 0.08, 1), [jitter(1.0, WIDE, WIDE, WIDE, (-0.2, 0.2)), FLIP])]},
    "deepcluster_v2": {"global": [(crop(224, 0.08, 1), SIMCLR)] * 2},
    "deit": {"global": [(crop(224, 0.08, 1), [FLIP, RAND_AUGMENT, ERASING])]},
    "dino": {
        "global": [(crop(224, 0.4, 1), FIRST), (crop(224, 0.4, 1), SECOND)],
        "local": [(crop(96, 0.05, 0.4), LOCAL)] * 8,
    },
    "ibot": {
        "global": [(crop(224, 0.25, 1), [*FIRST, BLOCKS]), (crop(224, 0.25, 1), [*SECOND, BLOCKS])],
        "local": [(crop(96, 0.05, 0.25), LOCAL)] * 10,
    },
    "jigsaw": {"patches": [(("RandomCrop", {"size": 255, "resize": 256}), [FLIP, gray(0.66)])]},
    "mae": {"global": [(crop(224, 0.2, 1), [FLIP, dropped(0.75)])]},
    "moco_v1": {"global": [(crop(224, 0.2, 1), [gray(0.2), STRONG_JITTER, FLIP])] * 2},
    "moco_v2": {"global": [(crop(224, 0.2, 1), [jitter(0.8, 0.4, 0.4, 0.4, 0.1), gray(0.2), blur(0.5), FLIP])] * 2},
    "moco_v3": {"global": [(crop(224, 0.08, 1), FIRST), (crop(224, 0.08, 1), SECOND)]},
    "msn": {
        "target": [(crop(224, 0.3, 1), MSN)],
        "global": [(crop(224, 0.3, 1), [*MSN, dropped(0.15)])],
        "local": [(crop(96, 0.05, 0.3), MSN)] * 10,
    },
    "npid": {"global": [(crop(224, 0.08, 1), [STRONG_JITTER, FLIP])]},
    "pirl": {
        "global": [(crop(224, 0.08, 1), [jitter(1.0, 0.4, 0.4, 0.4, 0.2), PHOTOMETRIC, gray(0.2), FLIP])],
        "patches": [(crop(255, 0.6, 1), [])],
    },
    "rotnet": {"global": [(crop(224, 0.08, 1), [TURN, FLIP])]},
    "simclr": {"global": [(crop(224, 0.08, 1), SIMCLR)] * 2},
    "simclr_multicrop": {
        "global": [(crop(224, 0.14, 1), SIMCLR)] * 2,
        "local": [(crop(96, 0.05, 0.14), SIMCLR)] * 6,
    },
    "supervised": {"global": [(crop(224, 0.08, 1), [FLIP, STRONG_JITTER])]},
    "swav": {"global": [(crop(224, 0.14, 1), SIMCLR)] * 2, "local": [(crop(96, 0.05, 0.14), SIMCLR)] * 6},
    "vicreg": {"global": [(crop(224, 0.08, 1), [*BYOL, blur(0.5), solarize(0.1)])] * 2},
}

SMALL: dict[str, dict[str, Any]] = {  # the same recipes for views of 32 px and 16 px
    "dino": {"local_size": 16},
    "ibot": {"local_size": 16, "patch_size": 4},
    "jigsaw": {"num_permutations": 50, "size": 48, "tile_size": 12},
    "mae": {"patch_size": 4},
    "msn": {"local_size": 16, "patch_size": 4},
    "pirl": {"patches_size": 48, "tile_size": 12},
    "simclr_multicrop": {"local_size": 16},
    "swav": {"local_size": 16},
}
SHAPES = {  # views of one image by group: number and side
    "deepcluster_v2": {"global": (2, 32)},
    "dino": {"global": (2, 32), "local": (8, 16)},
    "ibot": {"global": (2, 32), "local": (10, 16)},
    "jigsaw": {"patches": (9, 12)},
    "msn": {"target": (1, 32), "global": (1, 32), "local": (10, 16)},
    "pirl": {"global": (1, 32), "patches": (9, 12)},
    "simclr_multicrop": {"global": (2, 32), "local": (6, 16)},
    "swav": {"global": (2, 32), "local": (6, 16)},
}
PAIRS = ("barlow_twins", "byol", "moco_v1", "moco_v2", "moco_v3", "simclr", "vicreg")

every_recipe = pytest.mark.parametrize("name", sorted(RECIPES))


def small(name: str) -> ViewRecipe:
    return RECIPES[name](**{"size": 32, **SMALL.get(name, {})})


def described(part: Any) -> Part:
    return type(part).__name__, asdict(part)


def parts_of(view: View) -> list[Any]:
    """The transforms, and the mask behind them."""
    return [*view.transforms, *([] if view.mask is None else [view.mask])]


def test_every_recipe_is_compared_with_its_paper() -> None:
    assert set(PAPERS) == set(RECIPES)


@every_recipe
def test_a_recipe_has_the_crops_and_transforms_of_its_paper(name: str) -> None:
    recipe = RECIPES[name]()
    found = {
        group: [(described(view.crop), [described(part) for part in parts_of(view)]) for view in views]
        for group, views in recipe.groups.items()
    }
    assert found == PAPERS[name]
    assert all(view.tiles is None for group, views in recipe.groups.items() if group != "patches" for view in views)


def test_tiles_have_the_sizes_and_orders_of_their_papers() -> None:
    (jigsaw,), (pirl,) = RECIPES["jigsaw"]().groups["patches"], RECIPES["pirl"]().groups["patches"]
    for view in (jigsaw, pirl):
        assert view.tiles is not None
        assert (view.tiles.grid, view.tiles.size, view.tiles.jitter) == (3, 64, 21)
        assert view.crop.size // 3 == 64 + 21
    assert np.array_equal(jigsaw.tiles.order, permutation_table(2000))
    assert jigsaw.tile_transforms == ()
    assert pirl.tiles.order == "random"
    image = RECIPES["pirl"]().groups["global"][0]
    assert pirl.tile_transforms == image.transforms  # each tile as the image, with numbers of its own


def test_multi_crop_variants_keep_their_scales() -> None:
    recipe = RECIPES["deepcluster_v2"](160, 96, num_global=2, num_local=4)
    crops = {name: [described(view.crop) for view in views] for name, views in recipe.groups.items()}
    assert crops == {"global": [crop(160, 0.08, 1)] * 2, "local": [crop(96, 0.05, 0.14)] * 4}
    for name in ("dino", "ibot", "msn", "swav"):
        assert "local" not in RECIPES[name](num_local=0).groups


@pytest.mark.parametrize(
    ("made", "paper"),
    [
        (Crops(), RECIPES["simclr"]()),
        (AsymmetricCrops(), RECIPES["byol"]()),
        (AsymmetricMultiCrop(), RECIPES["dino"]()),
        (AsymmetricMultiCrop(num_local=0), RECIPES["dino"](num_local=0)),
        (MultiCrop(), RECIPES["swav"]()),
        (MultiCrop(min_scale=0.08, num_local=0), RECIPES["deepcluster_v2"]()),
    ],
)
def test_shared_recipes_come_to_the_views_of_papers(made: Crops, paper: ViewRecipe) -> None:
    assert made.recipe() == paper


def test_asymmetric_crops_alternate_and_are_the_large_ones_of_multi_crop() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Mixed(AsymmetricCrops, MultiCrop):
        pass

    first, second = RECIPES["byol"]().groups["global"]
    assert AsymmetricCrops(num=3).recipe().groups == {"global": (first, second, first)}
    assert AsymmetricCrops(num=1).recipe().groups == {"global": (first,)}
    mixed = Mixed(num_local=3).recipe().groups
    assert mixed["global"] == (first, second)
    assert [(view.crop.size, view.transforms) for view in mixed["local"]] == [(96, first.transforms)] * 3


def test_views_may_be_upside_down() -> None:
    flips = Crops(vertical_flip=0.5).recipe().groups["global"][0].transforms[:2]
    assert flips == (HorizontalFlip(p=0.5), VerticalFlip(p=0.5))


def test_recipes_leave_out_what_can_never_act() -> None:
    def chain(views: Crops) -> tuple[Transform, ...]:
        return views.recipe().groups["global"][0].transforms

    off = Crops(flip=0, jitter_strength=0, grayscale_p=0, blur_p=0)
    assert chain(off) == ()
    assert chain(replace(off, flip=1)) == (HorizontalFlip(p=1),)
    affine = replace(off, affine_p=0.5, degrees=10, translate=0.1, scale=(0.9, 1.1), shear=5)
    assert chain(affine) == (Affine(p=0.5, degrees=10, translate=(0.1, 0.1), scale=(0.9, 1.1), shear=5),)
    assert chain(replace(off, affine_p=0.5)) == ()
    assert replace(off, num=4).recipe().num_views == 4


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_all_crops_are_resized_as_interpolation_says(
    interpolation: functional.Interpolation, cuts: Callable[..., list[Tensor]]
) -> None:
    plain = {"flip": 0.0, "jitter_p": 0.0, "grayscale_p": 0.0, "blur_p": 0.0}
    settings = {"size": 32, "num_local": 2, "local_size": 16, "interpolation": interpolation}
    recipe, images, index = MultiCrop(**plain, **settings).recipe(), cuts(3, 60, 80), np.arange(3)
    views = recipe(images, index, 0, 0)
    heights, widths = np.full(3, 60), np.full(3, 80)
    number = 0
    for group, members in recipe.groups.items():
        for place, view in enumerate(members):
            random = SampleRandom(0, 0, index, number).at(crc32(b"crop"))
            boxes = np.stack(list(view.crop.draw(random, heights, widths).values()), axis=1).tolist()
            for image, box, ours in zip(images, boxes, views[group][:, place], strict=True):
                mode = tv.InterpolationMode(interpolation)
                expected = tv.resized_crop(image, *box, [view.size] * 2, mode, antialias=True)
                assert (ours.int() - expected.int()).abs().max() <= 1  # equal where the processor has AVX2
            number += 1


def test_the_blurs_kernel_is_a_tenth_of_the_side_or_as_large_as_asked_for() -> None:
    def kernels(views: MultiCrop) -> dict[str, set[int]]:
        blurs = {
            name: [(part, view.size) for view in group for part in view.transforms if isinstance(part, GaussianBlur)]
            for name, group in views.recipe().groups.items()
        }
        sigma = torch.ones(1, dtype=torch.float64)
        return {
            name: {2 * int(part.program({"sigma": sigma}, (side, side))[1][0, 0, 1]) + 1 for part, side in members}
            for name, members in blurs.items()
        }

    assert kernels(MultiCrop()) == {"global": {23}, "local": {9}}
    assert kernels(MultiCrop(blur_kernel_size=23)) == {"global": {23}, "local": {23}}
    with pytest.raises(ValueError, match="kernel_size=10 must be odd"):
        MultiCrop(blur_kernel_size=10).recipe()


@every_recipe
def test_views_have_their_shapes(name: str, cuts: Callable[..., list[Tensor]]) -> None:
    expected = SHAPES.get(name, {"global": (2 if name in PAIRS else 1, 32)})
    views = small(name)(cuts(3, 60, 80), np.arange(3), 0, 0)
    assert {group: tuple(view.shape) for group, view in views.items()} == {
        group: (3, num, 3, side, side) for group, (num, side) in expected.items()
    }
    assert all(view.dtype == torch.uint8 for view in views.values())


@every_recipe
def test_views_differ_between_samples_and_epochs_and_from_each_other(
    name: str, cuts: Callable[..., list[Tensor]]
) -> None:
    recipe, image = small(name), cuts(2, 60, 80)[1]
    here, later = (recipe([image, image], np.array([4, 5]), 0, epoch) for epoch in (0, 1))
    for group, views in here.items():
        assert not torch.equal(views[0], views[1])
        assert not torch.equal(views, later[group])
        distinct = {view.numpy().tobytes() for view in views[0]}
        assert len(distinct) == views.shape[1]


@every_recipe
def test_a_samples_views_and_extras_do_not_depend_on_its_batch(name: str, cuts: Callable[..., list[Tensor]]) -> None:
    recipe, images, index = small(name), cuts(5, 50, 64), np.array([3, 14, 15, 92, 65])
    together, extras = recipe(images, index, 1, 2), extras_of(recipe, index, 1, 2)
    backwards = recipe(images[::-1], index[::-1], 1, 2)
    for group, views in together.items():
        assert torch.equal(backwards[group].flip(0), views)
    for row in range(5):
        alone = recipe(images[row : row + 1], index[row : row + 1], 1, 2)
        assert all(torch.equal(alone[group][0], views[row]) for group, views in together.items())
        own = extras_of(recipe, index[row : row + 1], 1, 2)
        assert own.keys() == extras.keys()
        assert all(torch.equal(own[key][0], values[row]) for key, values in extras.items())


def test_views_of_byol_equal_torchvisions_functions_in_the_papers_order(cuts: Callable[..., list[Tensor]]) -> None:
    recipe, images, index = RECIPES["byol"](size=64), cuts(12, 80, 100), np.arange(12)
    crops = recipe.crop(images, index, 0, 0)["global"]
    views = recipe(images, index, 0, 0)["global"]
    for number, view in enumerate(recipe.groups["global"]):
        drawn = view.draw(SampleRandom(0, 0, index, number))
        for row in range(12):
            expected = by_torchvision(crops[row, number], [{k: v[row] for k, v in part.items()} for part in drawn])
            is_close = (views[row, number].float() - expected).abs() <= 1.0
            assert is_close.float().mean() > 0.998  # the rest lies at the threshold of the solarisation


def by_torchvision(image: Tensor, drawn: list[dict[str, Tensor]]) -> Tensor:
    """A view of BYOL with these parameters, one operation after the other; float levels."""
    flip, jittered, is_gray, blurred, *solarized = drawn
    out = image.float() / 255
    if flip["mask"]:
        out = tv.hflip(out)
    if jittered["mask"]:
        operations = [tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue]
        names = ["brightness", "contrast", "saturation", "hue"]
        for number in jittered["order"].tolist():
            out = operations[number](out, float(jittered[names[number]]))
    if is_gray["mask"]:
        out = tv.rgb_to_grayscale(out, num_output_channels=3)
    if blurred["sigma"] > 0:
        out = tv.gaussian_blur(out, [7, 7], [float(blurred["sigma"])] * 2)  # a tenth of 64 px
    if solarized and solarized[0]["threshold"] <= 1:
        out = tv.solarize(out, float(solarized[0]["threshold"]))
    return out * 255


def share_of_blurred(view: View, number: int) -> float:
    return share(view, number, "GaussianBlur", lambda params: params["sigma"] > 0)


def share_of_solarized(view: View, number: int) -> float:
    return share(view, number, "Solarize", lambda params: params["threshold"] <= 1)


def share(view: View, number: int, kind: str, acts: Callable[[dict[str, Tensor]], Tensor]) -> float:
    """Share of 4000 samples on which the transform of this kind acts; 0 where there is none."""
    drawn = view.draw(SampleRandom(0, 0, MANY, number))
    kinds = [type(transform).__name__ for transform in view.transforms]
    return float(acts(drawn[kinds.index(kind)]).double().mean()) if kind in kinds else 0.0


@pytest.mark.parametrize(
    ("name", "blurs", "solarizes"),
    [
        ("byol", [1.0, 0.1], [0.0, 0.2]),
        ("moco_v3", [1.0, 0.1], [0.0, 0.2]),
        ("barlow_twins", [1.0, 0.1], [0.0, 0.2]),
        ("dino", [1.0, 0.1, *[0.5] * 8], [0.0, 0.2, *[0.0] * 8]),
        ("ibot", [1.0, 0.1, *[0.5] * 10], [0.0, 0.2, *[0.0] * 10]),
        ("vicreg", [0.5, 0.5], [0.1, 0.1]),
        ("simclr", [0.5, 0.5], [0.0, 0.0]),
    ],
)
def test_each_view_is_blurred_and_solarised_as_often_as_in_the_paper(
    name: str, blurs: list[float], solarizes: list[float]
) -> None:
    recipe = small(name)
    views = [view for group in recipe.groups.values() for view in group]
    found = [(share_of_blurred(view, n), share_of_solarized(view, n)) for n, view in enumerate(views)]
    for (blurred, solarized), p, q in zip(found, blurs, solarizes, strict=True):
        assert blurred == pytest.approx(p, abs=4 * (p * (1 - p) / len(MANY)) ** 0.5)
        assert solarized == pytest.approx(q, abs=4 * (q * (1 - q) / len(MANY)) ** 0.5)


def test_the_rotation_is_the_turn_that_the_pixels_show(cuts: Callable[..., list[Tensor]]) -> None:
    recipe, images, index = small("rotnet"), cuts(40, 60, 80), np.arange(40)
    crops = recipe.crop(images, index, 0, 0)["global"][:, 0]
    views, extras = recipe(images, index, 0, 0)["global"][:, 0], extras_of(recipe, index, 0, 0)
    assert extras.keys() == {"global.rotation"}
    labels = extras["global.rotation"][:, 0].tolist()
    mirrored = 0
    for image, view, label in zip(crops, views, labels, strict=True):
        plain = [k for k in range(4) if torch.equal(image.rot90(k, (1, 2)), view)]
        flipped = [k for k in range(4) if torch.equal(image.rot90(k, (1, 2)).flip(2), view)]
        assert plain + flipped == [label]
        mirrored += len(flipped)
    assert set(labels) == {0, 1, 2, 3}
    assert 0 < mirrored < 40


def cells_of(tiles: Tensor, image: Tensor) -> list[set[int]]:
    """Cells of a 3x3 grid that have a tile's pixels somewhere in them, for each tile; columns are counted first."""
    side, cell = tiles.shape[-1], image.shape[-1] // 3
    windows = image.unfold(1, side, 1).unfold(2, side, 1)  # [C, Y, X, side, side]
    found = []
    for tile in tiles:
        rows, columns = (windows == tile[:, None, None]).all((0, 3, 4)).nonzero().T
        inside = (rows % cell + side <= cell) & (columns % cell + side <= cell)
        found.append(set((columns // cell * 3 + rows // cell)[inside].tolist()))
    return found


def without_tiles(recipe: ViewRecipe) -> ViewRecipe:
    """Views as they are before they are cut."""
    groups = {}
    for name, views in recipe.groups.items():
        groups[name] = tuple(replace(view, tiles=None, tile_transforms=()) for view in views)
    return ViewRecipe(groups)


@pytest.mark.thorough
def test_the_permutation_is_how_the_tiles_were_shuffled(cuts: Callable[..., list[Tensor]]) -> None:
    recipe, images, index = small("jigsaw"), cuts(12, 60, 80), np.arange(12)
    tiles, whole = recipe(images, index, 0, 0)["patches"], without_tiles(recipe)(images, index, 0, 0)["patches"]
    extras = extras_of(recipe, index, 0, 0)
    assert extras.keys() == {"patches.permutation"}
    rows = permutation_table(50)[extras["patches.permutation"][:, 0].numpy()]
    for row in range(12):
        found = cells_of(tiles[row], whole[row, 0])
        assert all(cell in cells for cell, cells in zip(rows[row].tolist(), found, strict=True))
        assert sum(len(cells) for cells in found) < 2 * 9  # few tiles fit elsewhere too
    assert len(set(extras["patches.permutation"][:, 0].tolist())) > 6


@pytest.mark.thorough
def test_tiles_of_pirl_come_from_all_cells_in_another_order_each_time(cuts: Callable[..., list[Tensor]]) -> None:
    recipe, images, index = small("pirl"), cuts(8, 60, 80), np.arange(8)
    assert extras_of(recipe, index, 0, 0) == {}
    plain = {name: tuple(replace(view, tile_transforms=()) for view in views) for name, views in recipe.groups.items()}
    tiles, whole = (r(images, index, 0, 0)["patches"] for r in (ViewRecipe(plain), without_tiles(recipe)))
    orders = set()
    for row in range(8):
        found = cells_of(tiles[row], whole[row, 0])
        assert set().union(*found) == set(range(9))
        orders.add(tuple(min(cells) for cells in found))
    assert len(orders) == 8


def test_each_tile_of_pirl_has_colours_of_its_own() -> None:
    image = torch.tensor([200, 120, 60], dtype=torch.uint8).view(3, 1, 1).expand(3, 60, 60)
    tiles = small("pirl")([image], np.array([0]), 0, 0)["patches"][0]  # [9, 3, 12, 12]
    assert len({tuple(tile.float().mean((1, 2)).tolist()) for tile in tiles}) == 9


def test_mae_masks_three_quarters_of_the_patches_and_msn_some_of_the_anchors_alone() -> None:
    index = np.arange(200)
    mae, msn = (extras_of(small(name), index, 0, 0) for name in ("mae", "msn"))
    assert mae.keys() == msn.keys() == {"global.mask"}
    assert mae["global.mask"].shape == msn["global.mask"].shape == (200, 1, 8, 8)
    assert mae["global.mask"].sum((1, 2, 3)).unique().tolist() == [48]
    assert msn["global.mask"].sum((1, 2, 3)).unique().tolist() == [10]
    many = extras_of(RECIPES["msn"](mask_ratio=0.7), np.arange(20), 0, 0)["global.mask"]
    assert many.sum((1, 2, 3)).unique().tolist() == [137]  # of 196


def test_ibot_masks_nothing_or_up_to_half_of_the_large_views() -> None:
    index = np.arange(600)
    masks = extras_of(RECIPES["ibot"](), index, 0, 0)["global.mask"]
    assert masks.shape == (600, 2, 14, 14)
    shares = masks.double().mean((2, 3))
    is_masked = shares > 0
    assert float(is_masked.double().mean()) == pytest.approx(0.5, abs=4 * (0.25 / is_masked.numel()) ** 0.5)
    assert shares.max() <= 0.5
    assert (shares[is_masked] >= 0.1 - 1 / 196).double().mean() > 0.9  # blocks may fail to fit
    assert 0.25 < float(shares[is_masked].mean()) < 0.31
    is_alike = is_masked[:, 0] == is_masked[:, 1]
    assert float(is_alike.double().mean()) == pytest.approx(0.5, abs=4 * (0.25 / 600) ** 0.5)
