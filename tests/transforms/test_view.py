"""Recipes of views: the same pixels for a sample, whatever comes with it."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from torch import Tensor

from raysl.errors import ConfigError
from raysl.transforms import (
    Affine,
    CenterCrop,
    ColorJitter,
    GaussianBlur,
    Grayscale,
    HorizontalFlip,
    RandomCrop,
    RandomResizedCrop,
    Solarize,
    Transform,
    View,
    ViewRecipe,
    evaluation_recipe,
    normalize,
    view,
)
from raysl.transforms.masking import RandomMask
from raysl.transforms.random import SampleRandom
from raysl.transforms.recipes import Crops
from raysl.transforms.view import augment

NUM = 60


def everything(size: int) -> ViewRecipe:
    """Every transform, each acting on about half of the images."""
    chain = (
        HorizontalFlip(),
        Affine(p=0.5, degrees=40, translate=(0.1, 0.1), scale=(0.8, 1.2), shear=10),
        ColorJitter(p=0.8),
        Grayscale(p=0.2),
        GaussianBlur(p=0.5),
        Solarize(p=0.3),
    )
    return ViewRecipe({"global": (View(RandomResizedCrop(size=size), chain),) * 2})


def multi_crop() -> ViewRecipe:
    """Asymmetric views, as DINO's."""
    large, small = RandomResizedCrop(size=32, scale=(0.4, 1.0)), RandomResizedCrop(size=16, scale=(0.05, 0.4))
    first, second = (HorizontalFlip(), GaussianBlur(p=1.0)), (HorizontalFlip(), Solarize(p=1.0))
    return ViewRecipe({"global": (View(large, first), View(large, second)), "local": (View(small, ()),) * 3})


@pytest.mark.thorough
@pytest.mark.parametrize("size", [16, 32, 96])
def test_a_samples_views_do_not_depend_on_its_batch(size: int, cuts: Callable[..., list[Tensor]], monkeypatch) -> None:
    recipe = everything(size)
    images = cuts(NUM, size + 25, size + 60)
    index = np.arange(NUM) * 7 + 1
    together = recipe(images, index, 3, 2)["global"]  # [B, 2, 3, size, size]

    alone = [recipe(images[row : row + 1], index[row : row + 1], 3, 2)["global"] for row in range(NUM)]
    assert torch.equal(torch.cat(alone), together)
    sevens = [recipe(images[row : row + 7], index[row : row + 7], 3, 2)["global"] for row in range(0, NUM, 7)]
    assert torch.equal(torch.cat(sevens), together)
    order = np.random.default_rng(0).permutation(NUM)
    assert torch.equal(recipe([images[row] for row in order], index[order], 3, 2)["global"], together[order])
    monkeypatch.setattr("raysl.transforms.chain.CHUNK", 5 * 3 * size * size)
    assert torch.equal(recipe(images, index, 3, 2)["global"], together)


@pytest.mark.thorough
@pytest.mark.parametrize(("size", "num"), [(32, NUM), (192, 1), (192, 4)])
def test_floats_do_not_depend_on_the_number_of_threads(size: int, num: int, cuts) -> None:
    """At 192 px one plane is large enough for torch to split a sum over it between threads."""
    chain = everything(size).groups["global"][0]
    crops = torch.stack(cuts(num, size, size)).float().div(255.0)
    params = chain.draw(view.SampleRandom(0, 0, np.arange(num), 0))
    params[2]["mask"][:] = True  # colours, with their mean, for every image
    results = []
    for num_threads in (1, 2, 5):
        torch.set_num_threads(num_threads)
        results.append(through(chain, crops, params, slice(None)))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.thorough
@pytest.mark.parametrize(("size", "num"), [(32, 40), (192, 4)])
def test_floats_before_rounding_do_not_depend_on_the_batch_either(size: int, num: int, cuts) -> None:
    chain = everything(size).groups["global"][0]
    crops = torch.stack(cuts(num, size, size)).float().div(255.0)
    params = chain.draw(view.SampleRandom(0, 0, np.arange(num), 0))
    params[2]["mask"][:] = True
    together = through(chain, crops, params, slice(None))
    alone = [through(chain, crops, params, slice(row, row + 1)) for row in range(num)]
    assert torch.equal(torch.cat(alone), together)


def through(chain: View, crops: Tensor, params: list[dict[str, Tensor]], rows: slice) -> Tensor:
    """Float images after the transforms of a view, not rounded."""
    out = crops[rows]
    for transform, values in zip(chain.transforms, params, strict=True):
        out = transform.apply(out, {name: value[rows] for name, value in values.items()})
    return out


@pytest.mark.thorough
def test_augmenting_mixes_no_devices() -> None:
    """The meta device refuses CPU tensors just as a GPU does."""
    crops = {"global": torch.empty(NUM, 2, 3, 32, 32, dtype=torch.uint8, device="meta")}
    views = everything(32).augment(crops, np.arange(NUM), 0, 0).views
    assert views["global"].device.type == "meta"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_makes_the_views_of_a_cpu_to_one_level(cuts) -> None:
    recipe, index = everything(96), np.arange(NUM)
    crops = recipe.crop(cuts(NUM, 120, 150), index, 0, 0)
    there = recipe.augment({"global": crops["global"].cuda()}, index, 0, 0).views["global"].cpu()
    assert (there.int() - recipe.augment(crops, index, 0, 0).views["global"].int()).abs().max() <= 1


def test_crop_then_augment_is_the_whole_recipe(cuts) -> None:
    recipe, images, index = multi_crop(), cuts(6, 50, 70), np.arange(6)
    crops = recipe.crop(images, index, 0, 1)
    strided = {name: group.transpose(0, 1).contiguous().transpose(0, 1) for name, group in crops.items()}
    whole = recipe(images, index, 0, 1)
    for given in (crops, strided):
        augmented = recipe.augment(given, index, 0, 1).views
        for name in ("global", "local"):
            assert torch.equal(whole[name], augmented[name])


def test_groups_have_their_own_sizes_and_views(cuts) -> None:
    recipe = multi_crop()
    views = recipe(cuts(6, 50, 70), np.arange(6), 0, 0)
    assert {name: tuple(group.shape) for name, group in views.items()} == {
        "global": (6, 2, 3, 32, 32),
        "local": (6, 3, 3, 16, 16),
    }
    assert all(group.dtype == torch.uint8 for group in views.values())
    assert recipe.num_views == 5
    assert recipe.size == 32


def test_images_of_different_sizes_go_into_one_batch(photos: list[Tensor]) -> None:
    images = [photos[0], photos[1][:, :40, :300], photos[0][:, :200, :20]]
    assert multi_crop()(images, np.arange(3), 0, 0)["global"].shape == (3, 2, 3, 32, 32)


def test_each_view_uses_its_own_transforms(cuts) -> None:
    recipe, images, index = multi_crop(), cuts(6, 50, 70), np.arange(6)
    crops, views = recipe.crop(images, index, 0, 0), recipe(images, index, 0, 0)
    blurred, solarized = views["global"].unbind(1)
    flips = torch.stack([crops["global"], crops["global"].flip(-1)])  # [2, B, V, C, H, W]
    inverted = torch.where(flips >= 128, 255 - flips, flips)[:, :, 1]
    assert (inverted == solarized).flatten(2).all(2).any(0).all()
    assert (blurred.float().diff(dim=-1).abs().mean() < crops["global"][:, 0].float().diff(dim=-1).abs().mean()).item()
    assert torch.equal(views["local"], crops["local"])


def test_views_of_a_sample_differ_between_views_epochs_seeds_and_samples(photos: list[Tensor]) -> None:
    recipe = everything(32)
    seen = [recipe([photos[0]], np.array([index]), seed, epoch)["global"][0] for seed, epoch, index in KEYS]
    flat = [tuple(one.flatten().tolist()) for views in seen for one in views]
    assert len(set(flat)) == 2 * len(KEYS)


KEYS = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]


def test_another_transform_does_not_move_the_draws_of_the_rest() -> None:
    crop, random = RandomResizedCrop(size=32), view.SampleRandom(0, 0, np.arange(50), 0)
    short = View(crop, (HorizontalFlip(), GaussianBlur())).draw(random)
    long = View(crop, (ColorJitter(), HorizontalFlip(), Solarize(), GaussianBlur(), HorizontalFlip())).draw(random)
    assert torch.equal(short[0]["mask"], long[1]["mask"])
    assert torch.equal(short[1]["sigma"], long[3]["sigma"])
    assert not torch.equal(long[1]["mask"], long[4]["mask"])


def test_evaluation_resizes_and_takes_the_centre(photos: list[Tensor]) -> None:
    recipe = evaluation_recipe(224)
    assert recipe.groups["image"][0].crop == CenterCrop(size=224, resize=256)
    assert evaluation_recipe(32).groups["image"][0].crop == CenterCrop(size=32, resize=32)
    assert evaluation_recipe(64, 80).groups["image"][0].crop == CenterCrop(size=64, resize=80)
    views = recipe(photos, np.arange(2), 0, 0)["image"]
    assert views.shape == (2, 1, 3, 224, 224)
    assert torch.equal(views, recipe(photos, np.arange(2) + 9, 5, 5)["image"])


def test_normalize_takes_views_with_any_leading_dimensions(cuts) -> None:
    views = evaluation_recipe(32)(cuts(4, 32, 32), np.arange(4), 0, 0)["image"]
    mean = views.float().div(255).mean((0, 1, 3, 4)).tolist()
    std = views.float().div(255).std((0, 1, 3, 4)).tolist()
    out = normalize(views, mean, std)
    assert out.dtype == torch.float32
    assert out.mean((0, 1, 3, 4)).abs().max() < 1e-5
    assert (out.std((0, 1, 3, 4)) - 1).abs().max() < 1e-4


def test_an_empty_batch_gives_empty_views() -> None:
    views = everything(16)([], np.arange(0), 0, 0)
    assert views["global"].shape == (0, 2, 3, 16, 16)


def test_wrong_recipes_and_images_are_refused(cuts) -> None:
    with pytest.raises(ValueError, match=r"sizes \[16, 32\]"):
        ViewRecipe({"global": (View(RandomResizedCrop(size=32)), View(RandomResizedCrop(size=16)))})
    with pytest.raises(ValueError, match="at least one group"):
        ViewRecipe({})
    recipe, images = everything(16), cuts(2, 20, 20)
    with pytest.raises(ValueError, match="2 images were given with 3 indices"):
        recipe(images, np.arange(3), 0, 0)
    with pytest.raises(ValueError, match=r"image 8 is torch\.float32"):
        recipe([images[0], images[1].float()], np.array([4, 8]), 0, 0)
    with pytest.raises(ValueError, match=r"image 8 is torch\.uint8 \[1, 20, 20\]"):
        recipe([images[0], images[1][:1]], np.array([4, 8]), 0, 0)


@dataclass(frozen=True, kw_only=True)
class Returning(Transform):
    """Returns what a test asks for."""

    drawn: Any = field(default_factory=dict)
    change: Callable[[Tensor], Any] = lambda images: images

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        """See `Transform.draw`."""
        drawn: dict[str, Tensor] = self.drawn
        return drawn

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        """See `Transform.apply`."""
        changed: Tensor = self.change(images)
        return changed


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"change": lambda images: (images * 255).to(torch.uint8)},
            r"apply returned torch.uint8 \[2, 3, 8, 8\]",
        ),
        ({"change": lambda images: images[..., :4]}, r"apply returned torch.float32 \[2, 3, 8, 4\] on cpu"),
        ({"change": lambda images: None}, "apply returned NoneType"),
        ({"change": lambda images: images.numpy()}, "apply returned ndarray"),
        ({"change": lambda images: images * torch.nan}, "apply returned values that are not finite"),
        ({"drawn": None}, "draw returned None; return tensors"),
        ({"drawn": {"a": np.zeros(2)}}, "draw returned {'a': array"),
    ],
)
def test_what_a_transform_may_not_return_is_refused_with_its_name(settings: dict[str, Any], message: str) -> None:
    images = [torch.zeros(3, 9, 9, dtype=torch.uint8)] * 2
    with pytest.raises(ConfigError, match=f"^Returning.{message}"):
        ViewRecipe({"global": (View(RandomResizedCrop(size=8), (Returning(**settings),)),)})(
            images, np.arange(2), seed=0, epoch=0
        )


def test_a_recipe_travels_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(multi_crop())) == multi_crop()


@pytest.mark.cluster
def test_transforms_need_neither_ray_nor_omegaconf() -> None:
    code = "import sys, raysl.transforms; print({'ray', 'omegaconf'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_views_that_go_through_their_transforms_together_are_those_that_go_alone() -> None:
    recipe, index = Crops(size=16, num=3, blur_p=0.5).recipe(), np.arange(NUM)
    crops = torch.randint(256, (NUM, 3, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    together = recipe.augment({"global": crops.clone()}, index, 0, 1).views["global"]
    (views,) = recipe.groups.values()
    for number, each in enumerate(views):
        alone = crops[:, number : number + 1].clone()
        augment([each], [SampleRandom(0, 1, index, number)], alone)
        assert torch.equal(together[:, number], alone[:, 0])


def test_whole_images_keep_masks_and_lose_what_is_random(cuts: Callable[..., list[Tensor]]) -> None:
    crop = RandomResizedCrop(size=16, scale=(0.1, 0.2))
    mask = RandomMask(patch_size=4, ratio=0.5)
    views = (View(crop, (HorizontalFlip(p=1.0),), mask=mask),) * 2
    recipe = ViewRecipe({"global": views}).of_whole_images()
    images, index = cuts(3, 20, 40), np.arange(3)
    cropped = recipe.crop(images, index, 0, 0)
    assert torch.equal(cropped["global"][:, 0], evaluation_recipe(16)(images, index, 0, 0)["image"][:, 0])
    augmented = recipe.augment(cropped, index, 0, 0)
    assert torch.equal(augmented.views["global"], recipe.crop(images, index, 5, 5)["global"])
    assert augmented.extras["global.mask"].shape == (3, 1, 4, 4)
    assert augmented.extras["global.mask"].float().mean() == 0.5


def test_a_view_inside_another_is_drawn_as_from_an_image_that_is_that_crop() -> None:
    outer, inner = RandomResizedCrop(size=8, scale=(0.3, 0.9)), RandomResizedCrop(size=4, scale=(0.1, 0.4))
    images = [torch.arange(60 * 80, dtype=torch.int64).remainder(251).to(torch.uint8).view(1, 60, 80)] * 2
    recipe = ViewRecipe({"large": (View(outer), View(outer)), "small": (View(inner, inside=1), View(inner, inside=1))})
    index = np.array([3, 9])
    crops = recipe.crop(images, index, seed=0, epoch=1)
    slot = crc32(b"crop")
    box = outer.draw(SampleRandom(0, 1, index, 1).at(slot), np.full(2, 60), np.full(2, 80))
    for number in range(2):
        drawn = inner.draw(SampleRandom(0, 1, index, 2 + number).at(slot), box["height"], box["width"])
        for row in range(2):
            params = {name: int(values[row]) for name, values in drawn.items()}
            top, left = int(box["top"][row]), int(box["left"][row])
            part = images[row][:, top : top + int(box["height"][row]), left : left + int(box["width"][row])]
            assert torch.equal(crops["small"][row, number], inner.apply(part, params))
    # other views do not change
    alone = ViewRecipe({"large": (View(outer), View(outer))}).crop(images, index, seed=0, epoch=1)
    assert torch.equal(crops["large"], alone["large"])
    rooms = recipe.room(np.array([[60, 80], [60, 80]]), index, seed=0, epoch=1)
    sides = np.minimum(box["height"], box["width"]) * np.sqrt(0.4) / 4
    assert (rooms <= sides + 1).all()


def test_a_view_lies_only_inside_an_earlier_one_of_which_the_box_is_known() -> None:
    box = RandomResizedCrop(size=8)
    for inside in (1, 2, -1):
        with pytest.raises(ValueError, match=f"view 1 lies inside view {inside}; give the number of an earlier view"):
            ViewRecipe({"views": (View(box), View(box, inside=inside))})
    for views in (
        (View(CenterCrop(size=8, resize=8)), View(box, inside=0)),
        (View(box), View(RandomCrop(size=8, resize=9), inside=0)),
    ):
        with pytest.raises(ValueError, match="view 1 lies inside view 0; both need a RandomResizedCrop"):
            ViewRecipe({"views": views})
