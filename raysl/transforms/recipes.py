"""Recipes of views that several papers share: frozen settings that a method's `Config` holds as `views`.

The defaults of a paper are in its method's file. Images are normalised after the last transform.
"""

from dataclasses import dataclass, replace
from typing import Annotated

from raysl.config.ranges import Amount, Area, Areas, Factors, LocalSide, Share, ViewSide, Within
from raysl.transforms.crop import RandomResizedCrop
from raysl.transforms.functional import Interpolation
from raysl.transforms.geometric import Affine, HorizontalFlip, VerticalFlip
from raysl.transforms.masking import Mask
from raysl.transforms.photometric import Arithmetic, ColorJitter, GaussianBlur, Grayscale, Solarize
from raysl.transforms.shifted_crop import ShiftedCrop
from raysl.transforms.transform import Transform
from raysl.transforms.view import View
from raysl.transforms.view_recipe import ViewRecipe

NumViews = Annotated[int, Within(1, 64)]
NumLocal = Annotated[int, Within(0, 64)]
Strength = Annotated[float, Within(0, 2.5)]
Angle = Annotated[float, Within(0, 180)]
Shear = Annotated[float, Within(0, 89)]


@dataclass(frozen=True, kw_only=True)
class Crops:
    """Views of one size, all drawn the same way: a random crop, a flip, colours, a blur. The defaults are SimCLR's
    (Chen et al. 2020, section 3 and appendix A).

    >>> recipe = Crops(size=32, num=2).recipe()
    >>> recipe.num_views, [type(transform).__name__ for transform in recipe.groups["global"][0].transforms]
    (2, ['HorizontalFlip', 'ColorJitter', 'Grayscale', 'GaussianBlur'])
    """

    size: ViewSide = 224
    """Side of a view in pixels; it and data.image_size follow each other unless both are given."""
    num: NumViews = 2
    """Views of each image."""
    min_scale: Area = 0.08
    """Smallest area of the random crop, as a share of the image."""
    interpolation: Interpolation = "bilinear"
    """How crops are resized, always antialiased."""
    flip: Share = 0.5
    """Probability of a horizontal flip."""
    vertical_flip: Share = 0.0
    """Probability of a vertical flip, for images without an upright position, such as satellite images."""
    affine_p: Share = 0.0
    """Probability of a random affine map, which helps where crops alone are too weak, as on digits."""
    degrees: Angle = 0.0
    """Largest rotation of the affine map, either way, in degrees."""
    translate: Share = 0.0
    """Largest shift of the affine map along each axis, as a share of the side."""
    scale: Factors = (1.0, 1.0)
    """Range of the zoom of the affine map."""
    shear: Shear = 0.0
    """Largest shear of the affine map, either way, in degrees."""
    jitter_p: Share = 0.8
    """Probability of the colour jitter."""
    jitter: tuple[Amount, Amount, Amount, Annotated[float, Within(0, 0.5)]] = (0.8, 0.8, 0.8, 0.2)
    """Colour jitter of brightness, contrast, saturation and hue at strength 1."""
    jitter_strength: Strength = 1.0
    """Factor of the colour jitter."""
    jitter_arithmetic: Arithmetic = "torchvision"
    """How the jitter changes brightness, contrast and saturation: as torchvision does, or as TensorFlow, which adds
    to the brightness (`ColorJitter.arithmetic`)."""
    grayscale_p: Share = 0.2
    """Probability of dropping the colour."""
    grayscale_first: bool = False
    """Drop the colour before the jitter instead of after it."""
    blur_p: Share = 0.5
    """Probability of a Gaussian blur."""
    blur_sigma: Factors = (0.1, 2.0)
    """Range of the blur's standard deviation in pixels."""
    blur_kernel_size: Annotated[int, Within(1, 9999)] | None = None
    """Side of the blur's kernel in pixels, odd, the same for views of all sizes; 23 cuts nothing off at the default
    `blur_sigma`. Default: the odd number nearest to a tenth of a view's side, at least 3 (SimCLR's rule)."""
    solarize_p: Share = 0.0
    """Probability of inverting the values above a half."""

    def recipe(self, mask: Mask | None = None) -> ViewRecipe:
        """Return `num` views in the group "global", each with masked patches if a mask is given.

        Raises:
            ValueError: if the settings make no view.
        """
        return ViewRecipe({"global": (self._view(self.size, (self.min_scale, 1.0), mask),) * self.num})

    def _view(self, size: int, area: tuple[float, float], mask: Mask | None = None) -> View:
        return View(
            RandomResizedCrop(size=size, scale=area, interpolation=self.interpolation), self._chain(), mask=mask
        )

    def _chain(self) -> tuple[Transform, ...]:
        """Return the transforms in order, without those that can never act."""
        is_map = any((self.degrees, self.translate, self.shear, self.scale != (1.0, 1.0)))
        affine = Affine(
            p=self.affine_p,
            degrees=self.degrees,
            translate=(self.translate, self.translate),
            scale=self.scale,
            shear=self.shear,
        )
        chain: list[tuple[float, Transform]] = [
            (self.flip, HorizontalFlip(p=self.flip)),
            (self.vertical_flip, VerticalFlip(p=self.vertical_flip)),
            (self.affine_p * is_map, affine),
            *self._colors(),
            (self.blur_p, GaussianBlur(p=self.blur_p, sigma=self.blur_sigma, kernel_size=self.blur_kernel_size)),
            (self.solarize_p, Solarize(p=self.solarize_p)),
        ]
        return tuple(transform for acts, transform in chain if acts > 0)

    def _colors(self) -> list[tuple[float, Transform]]:
        """Return the colour transforms in order, each with a number that is above 0 if it can act."""
        brightness, contrast, saturation, hue = (self.jitter_strength * amount for amount in self.jitter)
        jitter = ColorJitter(
            p=self.jitter_p,
            brightness=brightness,
            contrast=contrast,
            saturation=saturation,
            hue=hue,
            arithmetic=self.jitter_arithmetic,
        )
        colors: list[tuple[float, Transform]] = [
            (self.jitter_p * self.jitter_strength * any(self.jitter), jitter),
            (self.grayscale_p, Grayscale(p=self.grayscale_p)),
        ]
        return colors[::-1] if self.grayscale_first else colors


@dataclass(frozen=True, kw_only=True)
class AsymmetricCrops(Crops):
    """Views whose blur and solarisation alternate between two settings. The defaults are BYOL's (Grill et al. 2020,
    appendix B, table 6); with `MultiCrop` as a further base class, these are the large views of multi-crop.

    >>> first, second = AsymmetricCrops(size=32).recipe().groups["global"]
    >>> type(first.transforms[-1]).__name__, type(second.transforms[-1]).__name__
    ('GaussianBlur', 'Solarize')
    """

    jitter: tuple[Amount, Amount, Amount, Annotated[float, Within(0, 0.5)]] = (0.4, 0.4, 0.2, 0.1)
    """Colour jitter of brightness, contrast, saturation and hue at strength 1."""
    blur_p: Share = 1.0
    """Probability of a Gaussian blur of the first view."""
    second_blur_p: Share = 0.1
    """Probability of a Gaussian blur of the second view."""
    solarize_p: Share = 0.0
    """Probability of inverting the values above a half in the first view."""
    second_solarize_p: Share = 0.2
    """Probability of inverting the values above a half in the second view."""

    def recipe(self, mask: Mask | None = None) -> ViewRecipe:
        """Return the groups; in "global" the first, third, ... view have the first settings, the others the second."""
        groups = super().recipe(mask).groups
        chain = replace(self, blur_p=self.second_blur_p, solarize_p=self.second_solarize_p)._chain()
        views = (replace(view, transforms=chain) if n % 2 else view for n, view in enumerate(groups["global"]))
        return ViewRecipe(groups | {"global": tuple(views)})


@dataclass(frozen=True, kw_only=True)
class ShiftedCrops(Crops):
    """A view without colours, and a view of nearly the same pixels: its place in the same random crop is moved by some
    pixels, and it has the colours, the blur and the affine map. The defaults are CMAE's (Huang et al. 2022, and the
    authors' code).

    >>> groups = ShiftedCrops(size=28, shift=3).recipe().groups
    >>> {name: (views[0].crop.master, views[0].crop.shift, len(views[0].transforms)) for name, views in groups.items()}
    {'global': (32, 0, 1), 'shifted': (32, 3, 4)}
    """

    num: NumViews = 1
    """Views of each image without colours, each with a moved one."""
    min_scale: Area = 0.2
    """Smallest area of the random crop, as a share of the image."""
    interpolation: Interpolation = "bicubic"
    """How crops are resized, always antialiased."""
    shift: Annotated[int, Within(0, 4096)] = 31
    """Largest move of the second view along each axis, in pixels. The crop is resized to a side of `size + shift + 1`,
    of which both views are squares of `size`; the first is the upper left one."""
    jitter: tuple[Amount, Amount, Amount, Annotated[float, Within(0, 0.5)]] = (0.4, 0.4, 0.4, 0.1)
    """Colour jitter of brightness, contrast, saturation and hue at strength 1."""

    def recipe(self, mask: Mask | None = None) -> ViewRecipe:
        """Return the groups "global", with masked patches if a mask is given, and "shifted", flipped alike."""
        plain = replace(self, affine_p=0.0, jitter_p=0.0, grayscale_p=0.0, blur_p=0.0, solarize_p=0.0)
        views = [self._square(0, plain._chain(), mask=mask)] * self.num
        moved = [self._square(self.shift, self._chain(), repeats=number) for number in range(self.num)]
        return ViewRecipe({"global": tuple(views), "shifted": tuple(moved)})

    def _square(
        self, shift: int, chain: tuple[Transform, ...], mask: Mask | None = None, repeats: int | None = None
    ) -> View:
        master, area = self.size + self.shift + 1, (self.min_scale, 1.0)
        crop = ShiftedCrop(size=self.size, master=master, shift=shift, scale=area, interpolation=self.interpolation)
        return View(crop, chain, mask=mask, repeats=repeats)


@dataclass(frozen=True, kw_only=True)
class MultiCrop(Crops):
    """Large and small views, all with the same transforms. The defaults are SwAV's (Caron et al. 2020, appendix A.2).

    >>> {name: len(views) for name, views in MultiCrop().recipe().groups.items()}
    {'global': 2, 'local': 6}
    """

    min_scale: Area = 0.14
    """Smallest area of a large view as a share of the image."""
    local_size: LocalSide = 96
    """Side of a small view in pixels; follows `size` in proportion unless it is given."""
    num_local: NumLocal = 6
    """Small views of each image."""
    local_scale: Areas = (0.05, 0.14)
    """Areas of small views as shares of the image."""

    def recipe(self, mask: Mask | None = None) -> ViewRecipe:
        """Return the groups "global", with masked patches if a mask is given, and "local"."""
        groups = super().recipe(mask).groups
        local = (self._view(self.local_size, self.local_scale),) * self.num_local
        return ViewRecipe(groups | ({"local": local} if local else {}))


@dataclass(frozen=True, kw_only=True)
class AsymmetricMultiCrop(AsymmetricCrops, MultiCrop):
    """Large views as in `AsymmetricCrops`, and small views with a blur probability of their own. The defaults are
    DINO's (Caron et al. 2021, and the authors' code).

    >>> {name: (len(views), views[0].size) for name, views in AsymmetricMultiCrop().recipe().groups.items()}
    {'global': (2, 224), 'local': (8, 96)}
    """

    min_scale: Area = 0.4
    """Smallest area of a large view as a share of the image."""
    num_local: NumLocal = 8
    """Small views of each image."""
    local_scale: Areas = (0.05, 0.4)
    """Areas of small views as shares of the image."""
    local_blur_p: Share = 0.5
    """Probability of a Gaussian blur of a small view; small views are never solarised."""

    def recipe(self, mask: Mask | None = None) -> ViewRecipe:
        """Return the groups "global", with masked patches if a mask is given, and "local"."""
        groups = super().recipe(mask).groups
        chain = replace(self, blur_p=self.local_blur_p, solarize_p=0.0)._chain()
        local = tuple(replace(view, transforms=chain) for view in groups.get("local", ()))
        return ViewRecipe(groups | ({"local": local} if local else {}))
