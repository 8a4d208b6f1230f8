"""Features of the patches of images, their principal components as colours, and their similarities."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone, TokenBackbone
from raysl.nn.backbones.class_attention import class_attention, tokens_and_attention
from raysl.nn.backbones.maps import as_map

LEAST_SIDE = 4
"""Places along each side of the map of a network without tokens, from which on it is taken."""
TOKENS = "tokens"
"""Name of the output tokens of a ViT, beside the names of stages."""
BRIGHTEST = 0.99
"""Quantile of a component that gets the brightest colour; the opposite one gets the darkest."""


@dataclass(frozen=True)
class NearPatch:
    """A patch that is similar to another one.

    Args:
        image: position of its image.
        row, column: position in the map of the image, counted from 0.
        cosine: cosine of the angle between the features of both patches.
    """

    image: int
    row: int
    column: int
    cosine: float


@dataclass(frozen=True, eq=False)
class PatchMaps:
    """Features of the patches of N images: output tokens of a ViT, or the places of a feature map.

    >>> features = torch.zeros(2, 3, 3, 8)
    >>> features[0, 0, 0, 0] = features[1, 2, 1, 0] = 1.0
    >>> PatchMaps(features, TOKENS).nearest(0, 0, 0, k=1)
    [NearPatch(image=1, row=2, column=1, cosine=1.0)]

    Args:
        features: float32 [N, h, w, D] on the CPU.
        stage: name of the stage that they are from, or `tokens`.
        attention: attention of the class token to the patches, float32 [N, heads, h, w]; None where there is none, see
            `class_attention`.
        images: the images as the network saw them before normalisation, uint8 [N, C, H, W]; None if they were not kept.
    """

    features: Tensor
    stage: str
    attention: Tensor | None = None
    images: Tensor | None = None

    @property
    def grid(self) -> tuple[int, int]:
        """Number of patches down and across an image."""
        return self.features.shape[1], self.features.shape[2]

    def colors(self, foreground: bool = False) -> Tensor:
        """Return the first three principal components of all patches of all images as red, green and blue, uint8
        [N, h, w, 3], as DINOv2 (Oquab et al. 2023, arXiv 2304.07193, figure 1) and DINOv3 show theirs.

        A component goes from dark to bright between the percentiles 1 and 99 of its values.

        Args:
            foreground: show only patches above the mean of the first component, by the components of these patches
                alone; others are black. The side of the component that has fewer patches at the borders of images
                counts as foreground.
        """
        rows = self.features.flatten(0, 2)
        shown = self.foreground().flatten() if foreground else torch.ones(len(rows), dtype=torch.bool)
        colors = torch.zeros(len(rows), 3, dtype=torch.uint8)
        colors[shown] = _as_colors(_components(rows[shown], 3))
        return colors.view(*self.features.shape[:3], 3)

    def foreground(self) -> Tensor:
        """Return the patches of the foreground as `colors` shows them, bool [N, h, w]."""
        first = _components(self.features.flatten(0, 2), 1).view(self.features.shape[:3])
        is_high = first > 0
        is_border = torch.ones(self.grid, dtype=torch.bool)
        is_border[1:-1, 1:-1] = False
        share = is_high[:, is_border].float().mean()
        return is_high if share <= is_high.float().mean() else ~is_high

    def similarities(self, image: int, row: int, column: int) -> Tensor:
        """Return the cosine of a patch with each patch of all images, float32 [N, h, w].

        Raises:
            ConfigError: if there is no such patch.
        """
        unit = torch.nn.functional.normalize(self.features, dim=3)
        self._check(image, row, column)
        return unit @ unit[image, row, column]

    def nearest(self, image: int, row: int, column: int, k: int = 8) -> list[NearPatch]:
        """Return the patches of all images that are most similar to a patch, by cosine, without the patch itself.

        Raises:
            ConfigError: if there is no such patch.
        """
        cosines = self.similarities(image, row, column)
        cosines[image, row, column] = -torch.inf
        values, order = cosines.flatten().sort(descending=True, stable=True)
        k = min(k, len(values) - 1)
        images, rows, columns = (axis.tolist() for axis in np.unravel_index(order[:k].numpy(), tuple(cosines.shape)))
        return [NearPatch(*one) for one in zip(images, rows, columns, values[:k].tolist(), strict=True)]

    def codes(self, most: int) -> Tensor:
        """Return vectors whose products are near the cosines of the patches, float32 [N, h, w, K], K at most `most`.

        They are the features at length 1 on their K strongest directions, around 0, so that no other vectors of this
        length have products nearer to the cosines in the mean square.
        """
        unit = torch.nn.functional.normalize(self.features.flatten(0, 2), dim=1)
        codes = unit.double() @ _axes(unit.double(), most)
        return codes.float().view(*self.features.shape[:3], -1)

    def _check(self, image: int, row: int, column: int) -> None:
        num, height, width = self.features.shape[:3]
        if not (0 <= image < num and 0 <= row < height and 0 <= column < width):
            raise ConfigError(
                f"no patch at image {image}, row {row}, column {column}; there are {num} images of {height} x {width} "
                "patches, counted from 0"
            )


@torch.no_grad()
def patch_maps(backbone: Backbone, images: Tensor, stage: str | None = None, batch_size: int = 16) -> PatchMaps:
    """Return the features of the patches of images by a network in evaluation mode.

    Args:
        images: normalised images [N, C, H, W], on the device of the network.
        stage: one of the network's stages that is a map or tokens. Default: the output tokens of a ViT; of other
            networks the last map with at least 4 x 4 places.
        batch_size: number of images that pass through the network at a time.

    Raises:
        ConfigError: if no stage is such a map, or this stage is none.
        ValueError: if the images do not fit the network, or it has no stage of this name.
    """
    if stage is None:
        stage = TOKENS if isinstance(backbone, TokenBackbone) else last_large_map(backbone, images[:1])
    features, attention = [], []
    for part in torch.split(images, batch_size):
        values, weights = _map_and_attention(backbone, part, stage)
        features.append(values.float().cpu())
        if weights is not None:
            attention.append(weights.float().cpu())
    return PatchMaps(torch.cat(features), stage, torch.cat(attention) if attention else None)


def last_large_map(backbone: Backbone, images: Tensor) -> str:
    """Return the last stage that is a map with at least 4 x 4 places for these images.

    Raises:
        ConfigError: if there is none.
    """
    stages = backbone.stages(images, list(backbone.stage_widths))
    for name in reversed(stages):
        values = as_map(backbone, stages[name], images)
        if values is not None and min(values.shape[2:]) >= LEAST_SIDE:
            return name
    height, width = images.shape[2:]
    raise ConfigError(
        f"{backbone.title} has no map with {LEAST_SIDE} x {LEAST_SIDE} places or more for images of {height} x {width} "
        "pixels; give larger ones"
    )


def _map_and_attention(backbone: Backbone, images: Tensor, stage: str) -> tuple[Tensor, Tensor | None]:
    """Return a stage, or the output tokens, as a map [B, h, w, D], and the attention of the class token."""
    if isinstance(backbone, TokenBackbone) and stage == TOKENS:
        tokens, attention = tokens_and_attention(backbone, images)
        patches = tokens[:, backbone.num_prefix_tokens :]  # [B, h*w, D]
        return patches.reshape(len(patches), *backbone.grid(images), -1), attention
    values = as_map(backbone, backbone.stages(images, [stage])[stage], images)
    if values is None:
        raise ConfigError(f"stage {stage} of {backbone.title} is one vector of an image; take one that is a map")
    return values.permute(0, 2, 3, 1), class_attention(backbone, images)


def _components(rows: Tensor, num: int) -> Tensor:
    """Return the first principal components of rows [M, D], float64 [M, num]; zeros where there are fewer."""
    if not len(rows):
        return torch.zeros(0, num, dtype=torch.float64)
    centred = rows.double() - rows.double().mean(dim=0)
    values = centred @ _axes(centred, num)
    return torch.nn.functional.pad(values, (0, num - values.shape[1]))


def _axes(rows: Tensor, num: int) -> Tensor:
    """Return the directions of the largest spread of rows around 0, float64 [D, K], the largest first; K is `num`, or
    less where rows have fewer directions. The largest entry of each is positive, so that equal rows give equal ones."""
    from scipy.linalg import eigh

    # of the two matrices with the same eigenvalues, the smaller one
    is_wide = rows.shape[1] > rows.shape[0]
    products = (rows @ rows.T if is_wide else rows.T @ rows).numpy()
    size = len(products)
    values, vectors = eigh(products, subset_by_index=[size - min(num, size), size - 1])
    axes = torch.from_numpy(vectors[:, ::-1].copy())
    kept = torch.from_numpy(values[::-1].copy() > 1e-12 * max(float(values[-1]), 1e-30))
    axes = (rows.T @ axes if is_wide else axes)[:, kept]
    axes = axes / torch.linalg.vector_norm(axes, dim=0).clamp(min=1e-30)
    signs = axes.gather(0, axes.abs().argmax(dim=0, keepdim=True)).sign()
    directions: Tensor = axes * signs
    return directions


def _as_colors(components: Tensor) -> Tensor:
    """Return components [M, 3] as uint8 [M, 3]; a constant one is the middle grey."""
    if not len(components):
        return torch.zeros(0, 3, dtype=torch.uint8)
    low, high = torch.from_numpy(np.quantile(components.numpy(), [1 - BRIGHTEST, BRIGHTEST], axis=0))
    extent = high - low
    scaled = torch.where(extent > 0, (components - low) / extent.clamp(min=1e-30), 0.5)
    return (scaled.clamp(0, 1) * 255).round().to(torch.uint8)
