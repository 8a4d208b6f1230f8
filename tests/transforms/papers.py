"""The views of published papers, one function each: what the transforms are tried on together.

Defaults are those for ImageNet; `size` is the side of the main views in pixels. Where VISSL's configuration departs
from the paper, the docstring says which of the two this is. Images are normalised after the last transform.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

from torch import Tensor

from raysl.config.ranges import Areas, Share, Side, Within
from raysl.transforms.color import RandomPhotometric
from raysl.transforms.crop import RandomCrop, RandomResizedCrop
from raysl.transforms.erasing import RandomErasing
from raysl.transforms.geometric import HorizontalFlip, RandomRotation90
from raysl.transforms.masking import BlockMask, Mask, RandomMask
from raysl.transforms.photometric import ColorJitter, GaussianBlur, Grayscale, Solarize
from raysl.transforms.rand_augment import RandAugment
from raysl.transforms.random import Ints
from raysl.transforms.tiles import Tiles, permutation_table
from raysl.transforms.transform import Transform
from raysl.transforms.view import View
from raysl.transforms.view_recipe import ViewRecipe

Scale = Areas
NumLocal = Annotated[int, Within(0, 64)]
NumGlobal = Annotated[int, Within(1, 64)]
Patch = Annotated[int, Within(1, 1024)]


def color_distortion(strength: float) -> tuple[Transform, ...]:
    """Colour jitter and grey of SimCLR (Chen et al. 2020, appendix A), for colour strength `strength`."""
    s = strength
    return ColorJitter(p=0.8, brightness=0.8 * s, contrast=0.8 * s, saturation=0.8 * s, hue=0.2 * s), Grayscale(p=0.2)


def byol_color(saturation: float = 0.2) -> tuple[Transform, ...]:
    """Colour jitter and grey of BYOL (Grill et al. 2020, table 6), which DINO, MoCo v3 and VICReg took over."""
    return ColorJitter(p=0.8, brightness=0.4, contrast=0.4, saturation=saturation, hue=0.1), Grayscale(p=0.2)


def supervised(size: Side = 224) -> ViewRecipe:
    """One view with a colour jitter of 0.4, as VISSL's supervised baseline."""
    jitter = ColorJitter(p=1.0, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.4)
    return _one(View(RandomResizedCrop(size=size), (HorizontalFlip(), jitter)))


def deit(size: Side = 224) -> ViewRecipe:
    """Supervised ViT (Touvron et al. 2021, table 9): RandAugment 9 with deviation 0.5, erasing 0.25."""
    augment = RandAugment(num_ops=2, magnitude=9, magnitude_std=0.5, p=0.5, num_bins=11, fill=0.5)
    return _one(View(RandomResizedCrop(size=size), (HorizontalFlip(), augment, RandomErasing(value="random"))))


def rotnet(size: Side = 224) -> ViewRecipe:
    """RotNet (Gidaris et al. 2018): one view turned by a multiple of 90 degrees, in extras["rotation"].

    VISSL turns before it crops, which leaves black bars on images that are not square; turning the square crop does
    not, and has the same distribution otherwise.
    """
    return _one(View(RandomResizedCrop(size=size), (RandomRotation90(), HorizontalFlip())))


def jigsaw(
    num_permutations: Annotated[int, Within(1, 10_000)] = 2000, size: Side = 255, tile_size: Side = 64
) -> ViewRecipe:
    """Jigsaw (Noroozi and Favaro 2016, in VISSL's form): 9 shuffled tiles, the permutation in extras["permutation"].

    Args:
        num_permutations: in the set that is told apart: 100, 2000 or 10000 in VISSL.
        size: of the crop that is cut into 3x3 cells; its short side is one pixel longer before the crop.
        tile_size: of the tile inside each cell.
    """
    tiles = Tiles(size=tile_size, jitter=size // 3 - tile_size, order=permutation_table(num_permutations))
    view = View(RandomCrop(size=size, resize=size + 1), (HorizontalFlip(), Grayscale(p=0.66)), tiles)
    return ViewRecipe({"patches": (view,)})


def npid(size: Side = 224) -> ViewRecipe:
    """Instance discrimination, NPID and NPID++ (Wu et al. 2018; Misra and van der Maaten 2020): one view.

    In VISSL's form; the code of Wu et al. crops from 0.2 of the area on and makes a fifth of the images grey, as MoCo.
    """
    jitter = ColorJitter(p=1.0, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.4)
    return _one(View(RandomResizedCrop(size=size), (jitter, HorizontalFlip())))


def pirl(size: Side = 224, patches_size: Side = 255, tile_size: Side = 64) -> ViewRecipe:
    """PIRL (Misra and van der Maaten 2020): the image, and 9 tiles of another crop of it in random order.

    Colours are drawn for the image and for each tile anew, as in VISSL.
    """
    colors = (
        ColorJitter(p=1.0, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.2),
        RandomPhotometric(p=0.66),
        Grayscale(p=0.2),
        HorizontalFlip(),
    )
    tiles = Tiles(size=tile_size, jitter=patches_size // 3 - tile_size, order="random")
    patches = View(RandomResizedCrop(size=patches_size, scale=(0.6, 1.0)), (), tiles, colors)
    image = View(RandomResizedCrop(size=size), colors)
    return ViewRecipe({"global": (image,), "patches": (patches,)})


def clusterfit(size: Side = 224) -> ViewRecipe:
    """ClusterFit (Yan et al. 2020, in VISSL's form): one view with a mild jitter."""
    wide = (0.6, 1.4)
    jitter = ColorJitter(p=1.0, brightness=wide, contrast=wide, saturation=wide, hue=(-0.2, 0.2))
    return _one(View(RandomResizedCrop(size=size), (jitter, HorizontalFlip())))


def simclr(size: Side = 224) -> ViewRecipe:
    """SimCLR (Chen et al. 2020, appendix A): two views drawn alike."""
    return ViewRecipe({"global": (_distorted(size, (0.08, 1.0)),) * 2})


def simclr_multicrop(
    size: Side = 224, local_size: Side = 96, num_global: NumGlobal = 2, num_local: NumLocal = 6
) -> ViewRecipe:
    """SimCLR on SwAV's crops (VISSL's simclr multicrop)."""
    return swav(size, local_size, num_global, num_local)


def swav(
    size: Side = 224,
    local_size: Side = 96,
    num_global: NumGlobal = 2,
    num_local: NumLocal = 6,
    global_scale: Scale = (0.14, 1.0),
    local_scale: Scale = (0.05, 0.14),
) -> ViewRecipe:
    """SwAV (Caron et al. 2020, appendix A.2): two large crops, six small ones, distorted alike."""
    groups = {"global": (_distorted(size, global_scale),) * num_global}
    return ViewRecipe(groups | ({"local": (_distorted(local_size, local_scale),) * num_local} if num_local else {}))


def deepcluster_v2(
    size: Side = 224, local_size: Side = 96, num_global: NumGlobal = 2, num_local: NumLocal = 0
) -> ViewRecipe:
    """DeepClusterV2 (Caron et al. 2020, appendix D): two crops; 2 of 160 px with 4 of 96 px is its multi-crop form."""
    return swav(size, local_size, num_global, num_local, global_scale=(0.08, 1.0))


def moco_v1(size: Side = 224) -> ViewRecipe:
    """MoCo (He et al. 2020, section 3.3): two views with jitter and grey, without blur."""
    jitter = ColorJitter(p=1.0, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.4)
    return _pair(RandomResizedCrop(size=size, scale=(0.2, 1.0)), (Grayscale(p=0.2), jitter, HorizontalFlip()))


def moco_v2(size: Side = 224) -> ViewRecipe:
    """MoCo v2 (Chen et al. 2020, section 3): two views; SimSiam (Chen and He 2021, section 3) has the same.

    VISSL crops from 0.08 of the area on; these are the paper's crops, from 0.2 on.
    """
    jitter = ColorJitter(p=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    return _pair(
        RandomResizedCrop(size=size, scale=(0.2, 1.0)),
        (jitter, Grayscale(p=0.2), GaussianBlur(p=0.5), HorizontalFlip()),
    )


def byol(size: Side = 224) -> ViewRecipe:
    """BYOL (Grill et al. 2020, table 6): the first view always blurred, the second rarely, and solarised at times."""
    return _asymmetric(size, (0.08, 1.0), byol_color())


def moco_v3(size: Side = 224) -> ViewRecipe:
    """MoCo v3 (Chen et al. 2021, section 4.1): BYOL's views."""
    return byol(size)


def barlow_twins(size: Side = 224) -> ViewRecipe:
    """Barlow Twins (Zbontar et al. 2021, section 2.2 and appendix A): BYOL's views.

    VISSL jitters the saturation by 0.4 and solarises from a random threshold on; these are the paper's 0.2 and a half.
    """
    return _asymmetric(size, (0.08, 1.0), byol_color())


def vicreg(size: Side = 224) -> ViewRecipe:
    """VICReg (Bardes et al. 2022, appendix C.1): two views drawn alike, each blurred by half and solarised at times."""
    chain = (HorizontalFlip(), *byol_color(), GaussianBlur(p=0.5), Solarize(p=0.1))
    return _pair(RandomResizedCrop(size=size), chain)


def dino(
    size: Side = 224,
    local_size: Side = 96,
    num_local: NumLocal = 8,
    global_scale: Scale = (0.4, 1.0),
    local_scale: Scale = (0.05, 0.4),
    mask: Mask | None = None,
) -> ViewRecipe:
    """DINO (Caron et al. 2021, appendix, and its code): BYOL's two large views, and small ones blurred by half.

    VISSL departs as for Barlow Twins.
    """
    large = _asymmetric(size, global_scale, byol_color()).groups["global"]
    local = View(
        RandomResizedCrop(size=local_size, scale=local_scale),
        (HorizontalFlip(), *byol_color(), GaussianBlur(p=0.5)),
    )
    groups = {"global": tuple(replace(view, mask=mask) for view in large)}
    return ViewRecipe(groups | ({"local": (local,) * num_local} if num_local else {}))


def ibot(
    size: Side = 224,
    local_size: Side = 96,
    num_local: NumLocal = 10,
    global_scale: Scale = (0.25, 1.0),
    local_scale: Scale = (0.05, 0.25),
    patch_size: Patch = 16,
) -> ViewRecipe:
    """iBOT (Zhou et al. 2022, appendix B): DINO's views, with blocks of patches masked, in extras["mask"].

    VISSL reads a colour strength of 1 here by mistake; these are the paper's colours.
    """
    return dino(size, local_size, num_local, global_scale, local_scale, BlockMask(patch_size=patch_size))


def msn(
    size: Side = 224, local_size: Side = 96, num_local: NumLocal = 10, patch_size: Patch = 16, mask_ratio: Share = 0.15
) -> ViewRecipe:
    """MSN (Assran et al. 2022, and its code): a target, an anchor that loses some of its patches, small anchors.

    The authors drop 0.15 of the patches for a ViT-S/16, and more for larger networks; VISSL drops 0.7, and has DINO's
    crops.
    """
    large = _distorted(size, (0.3, 1.0), strength=0.5)
    anchor = replace(large, mask=RandomMask(patch_size=patch_size, ratio=mask_ratio))
    groups = {"target": (large,), "global": (anchor,)}
    small = _distorted(local_size, (0.05, 0.3), strength=0.5)
    return ViewRecipe(groups | ({"local": (small,) * num_local} if num_local else {}))


def mae(size: Side = 224, patch_size: Patch = 16) -> ViewRecipe:
    """MAE (He et al. 2022, table 8): a crop and a flip; three quarters of the patches masked, in extras["mask"]."""
    mask = RandomMask(patch_size=patch_size, ratio=0.75)
    return _one(View(RandomResizedCrop(size=size, scale=(0.2, 1.0)), (HorizontalFlip(),), mask=mask))


RECIPES: dict[str, Callable[..., ViewRecipe]] = {
    recipe.__name__: recipe
    for recipe in (
        barlow_twins,
        byol,
        clusterfit,
        deepcluster_v2,
        deit,
        dino,
        ibot,
        jigsaw,
        mae,
        moco_v1,
        moco_v2,
        moco_v3,
        msn,
        npid,
        pirl,
        rotnet,
        simclr,
        simclr_multicrop,
        supervised,
        swav,
        vicreg,
    )
}
"""All recipes by name; called without arguments they are those for ImageNet."""


def extras_of(recipe: ViewRecipe, index: Ints, seed: int, epoch: int) -> dict[str, Tensor]:
    """What a recipe tells the method of the samples, whatever their pixels are."""
    plain = {
        name: tuple(replace(view, transforms=_telling(view), tile_transforms=()) for view in views)
        for name, views in recipe.groups.items()
    }
    return ViewRecipe(plain).augment(recipe.blank(len(index), 1), index, seed, epoch).extras


def _telling(view: View) -> tuple[Transform, ...]:
    return tuple(transform for transform in view.transforms if isinstance(transform, RandomRotation90))


def _one(view: View) -> ViewRecipe:
    return ViewRecipe({"global": (view,)})


def _pair(crop: RandomResizedCrop, transforms: tuple[Transform, ...]) -> ViewRecipe:
    """Two views drawn alike."""
    return ViewRecipe({"global": (View(crop, transforms),) * 2})


def _distorted(size: int, scale: Scale, strength: float = 1.0) -> View:
    """A crop with a flip, SimCLR's colours and a blur by half."""
    crop = RandomResizedCrop(size=size, scale=scale)
    return View(crop, (HorizontalFlip(), *color_distortion(strength), GaussianBlur(p=0.5)))


def _asymmetric(size: int, scale: Scale, colors: tuple[Transform, ...]) -> ViewRecipe:
    """Two views as BYOL has them: blurred always and by a tenth, solarised never and by a fifth."""
    crop = RandomResizedCrop(size=size, scale=scale)
    first = View(crop, (HorizontalFlip(), *colors, GaussianBlur(p=1.0)))
    second = View(crop, (HorizontalFlip(), *colors, GaussianBlur(p=0.1), Solarize(p=0.2)))
    return ViewRecipe({"global": (first, second)})
