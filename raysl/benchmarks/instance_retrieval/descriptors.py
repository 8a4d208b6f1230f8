"""One descriptor for an image of any size, from a stage of a network."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.benchmarks.instance_retrieval.pooling import Moments, Whitening, gem, region_maxima, rmac_regions
from raysl.benchmarks.instance_retrieval.truth import Box, Images
from raysl.config.schema import DataConfig
from raysl.data.decode.decode import CorruptImage, decode
from raysl.errors import ConfigError, log
from raysl.nn.backbones.backbone import Backbone, TokenBackbone
from raysl.nn.backbones.maps import as_map
from raysl.storage.folder import Folder
from raysl.transforms.channels import network_input
from raysl.transforms.functional import Interpolation, resize

Pooling = Literal["rmac", "gem", "mean", "max", "class", "class_gem"]
MOST_BROKEN = 0.01
"""Share of a database whose images may be broken; the original Paris has 20 such of 6,412."""


@dataclass(frozen=True)
class Recipe:
    """Settings of a descriptor, as in `Retrieval.Config`. `normalize`: scale parts to length 1 before they are
    whitened."""

    stage: str | None
    pooling: Pooling
    size: int
    scales: tuple[float, ...] = (1.0,)
    rmac_levels: int = 3
    rmac_overlap: float = 0.4
    gem_p: float = 4.0
    gem_bias: bool = False
    normalize: bool = True
    whiten_norm: bool = True
    is_square: bool = False


class Describer:
    """Computes descriptors of images by a network.

    Stages of a backbone are maps, for tokens those of their patches; other networks, such as raw pixels, have a vector.
    """

    def __init__(self, network: nn.Module, data: DataConfig, recipe: Recipe) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network, self.data, self.recipe = network.to(self.device), data, recipe
        self.patch = (network.patch_size or 1) if isinstance(network, Backbone) else 1
        self._stage = recipe.stage

    @torch.inference_mode()
    def parts(self, image: Tensor, box: Box | None = None) -> Tensor:
        """Return the parts that are whitened and summed, scaled to length 1 unless `normalize` is off: [R, D] with one
        row for each region of R-MAC, else one row.

        Args:
            image: uint8 [3, H, W].
            box: part of it that is described; default: all.
        """
        recipe = self.recipe
        pooled = []
        for scale in recipe.scales:
            filtered = self.data.eval_interpolation
            pixels = sized(image, recipe.size, scale, box, self.patch, recipe.is_square, filtered)
            inputs = network_input(pixels[None].to(self.device), self.data.mean, self.data.std, self.data.channels)
            pooled.append(self._pooled(inputs))
        parts = torch.cat(pooled) if recipe.pooling == "rmac" else torch.stack(pooled).mean(dim=0)  # [R, D]
        if recipe.pooling == "gem" and recipe.gem_bias:
            parts = F.pad(parts, (0, 1), value=1.0)
        return F.normalize(parts, dim=1) if recipe.normalize else parts

    def descriptor(self, parts: Tensor, whitening: Whitening | None = None) -> Tensor:
        """Combine parts [R, D] to a descriptor [D']: whiten and scale each to length 1, sum, scale to length 1."""
        if whitening is not None:
            parts = whitening(parts)
            if self.recipe.pooling != "rmac" and not self.recipe.whiten_norm:
                return parts.sum(dim=0)
            parts = F.normalize(parts, dim=1)
        return F.normalize(parts.sum(dim=0), dim=0)

    def _pooled(self, inputs: Tensor) -> Tensor:
        """Pool one image [1, 3, H, W] to [R, D]."""
        recipe, network = self.recipe, self.network
        if not isinstance(network, Backbone):
            return network(inputs).float()  # type: ignore[no-any-return]
        stage = network.stages(inputs, [self._stage_of(network, inputs)])[self._stage or ""].float()
        if recipe.pooling in ("class", "class_gem") and not (isinstance(network, TokenBackbone) and stage.ndim == 3):
            raise ValueError(
                f"pooling={recipe.pooling} needs a stage with a class token, and {self._stage!r} of "
                f"{type(network).__name__} has none; set pooling=gem or rmac"
            )
        if recipe.pooling == "class":
            return stage[:, 0]
        every_map = as_map(network, stage, inputs)
        if every_map is None:
            raise ValueError(
                f"the stage {self._stage!r} is not a map, but {list(stage.shape)}; set stage= to one of: "
                f"{', '.join(network.stage_widths)}"
            )
        maps = every_map[0]  # [C, H', W']
        if recipe.pooling == "rmac":
            height, width = maps.shape[1:]
            return region_maxima(maps, rmac_regions(height, width, recipe.rmac_levels, recipe.rmac_overlap))
        if recipe.pooling == "class_gem":
            return torch.cat([stage[0, 0], gem(maps, recipe.gem_p)])[None]
        if recipe.pooling == "gem":
            return gem(maps, recipe.gem_p)[None]
        return (maps.mean(dim=(1, 2)) if recipe.pooling == "mean" else maps.amax(dim=(1, 2)))[None]

    def _stage_of(self, network: Backbone, inputs: Tensor) -> str:
        if self._stage is None:
            every = network.stages(inputs, list(network.stage_widths))
            self._stage = next((name for name in reversed(every) if every[name].ndim in (3, 4)), None)
            if self._stage is None:
                raise ValueError(f"{type(network).__name__} tells of no stage with places; set stage=")
        return self._stage


@dataclass(frozen=True)
class Described:
    """Descriptors of images.

    Args:
        rows: float32 [N, D] on the CPU; of length 1 as a rule.
        is_read: bool [N], false of those that could not be decoded, whose row is 0.
    """

    rows: Tensor
    is_read: Tensor


def describe(
    describer: Describer, images: Images, whitening: Whitening | None = None, most_broken: float = MOST_BROKEN
) -> Described:
    """Compute descriptors of images, which are read one by one.

    Args:
        most_broken: share of them that may be broken.

    Raises:
        ConfigError: if more are broken, with the first of them.
    """
    rows = [
        None if parts is None else describer.descriptor(parts, whitening).cpu()
        for parts in _parts_of(describer, images, most_broken)
    ]
    # there is one, since `_parts_of` refuses images that are all broken
    filled = next(row for row in rows if row is not None)
    return Described(
        torch.stack([torch.zeros_like(filled) if row is None else row for row in rows]),
        torch.tensor([row is not None for row in rows]),
    )


def gather_moments(describer: Describer, images: Images) -> Moments:
    """Sum the moments of the parts of images, for a whitening.

    Raises:
        ConfigError: if too many are broken, with the first of them.
    """
    moments: Moments | None = None
    for parts in _parts_of(describer, images, MOST_BROKEN):
        if parts is not None:
            moments = moments or Moments(parts.shape[1])
            moments.add(parts)
    assert moments is not None
    return moments


def _parts_of(describer: Describer, images: Images, most_broken: float) -> Iterator[Tensor | None]:
    """Yield the parts of each image, None of a broken one; refuse too many broken ones at the end."""
    folder, broken, num = Folder(images.uri), list[str](), len(images.paths)
    for path, box in zip(images.paths, images.boxes or [None] * num, strict=True):
        try:
            parts = describer.parts(decode(folder.read(path)), box)
        except CorruptImage as error:
            broken.append(f"{path}: {error}")
            yield None
        else:
            yield parts
    if len(broken) > most_broken * num or len(broken) == num:
        raise ConfigError(
            f"{len(broken):,} of {num:,} images in {images.uri!r} are broken, first {broken[0]}; fetch them anew"
        )
    if broken:
        message = "%d images in %s are broken and are found by no query, first %s"
        log.warning(message, len(broken), images.uri, broken[0])


def sized(
    image: Tensor,
    size: int,
    scale: float = 1.0,
    box: Box | None = None,
    patch: int = 1,
    is_square: bool = False,
    interpolation: Interpolation = "bilinear",
) -> Tensor:
    """Scale an image, or a box of it, so that the whole has a longer side of `size * scale` pixels.

    A box keeps the scale of its image, so a query is as large as in the images of the database (Radenovic et al. 2018).

    Args:
        image: uint8 [3, H, W].
        size: longer side of the whole image in pixels; smaller ones are enlarged.
        scale: times that.
        box: cut out first, without the part outside of the image; ignored if all of it is outside.
        patch: sides are rounded to multiples of it, at least one.
        is_square: bring both sides to `size * scale`, whatever its shape.
    """
    factor = size * scale / max(image.shape[1:])
    cut = image if box is None else _cut(image, box)
    wanted = (size * scale,) * 2 if is_square else tuple(side * factor for side in cut.shape[1:])
    height, width = (max(1, round(side / patch)) * patch for side in wanted)
    return cut if (height, width) == tuple(cut.shape[1:]) else resize(cut, height, width, interpolation)


def _cut(image: Tensor, box: Box) -> Tensor:
    first, top, last, bottom = (max(0, round(edge)) for edge in box)
    cut = image[:, top:bottom, first:last]
    return cut if cut.numel() else image
