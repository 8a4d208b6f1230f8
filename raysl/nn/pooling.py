"""From stages of a backbone, or from pixels, to one vector per image, for linear classifiers and other benchmarks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from raysl.config.ranges import Within
from raysl.nn.backbones.backbone import Backbone, TokenBackbone

PoolSide = Annotated[int, Within(1, 1024)]
PIXELS_SIDE = 32


@dataclass(frozen=True, kw_only=True)
class Pool:
    """How a stage becomes a vector: maps are pooled to a grid of `size` x `size`, or in windows, and flattened.

    >>> import torch
    >>> Pool(size=2)(torch.zeros(1, 64, 7, 7)).shape, Pool(kind="class")(torch.zeros(1, 50, 384), 1).shape
    (torch.Size([1, 256]), torch.Size([1, 384]))
    """

    kind: Literal["avg", "max", "class", "none"] = "avg"
    """Means, maxima, the class token of a ViT's stage, or the whole stage. Means and maxima of tokens are those of the
    patches; a vector stays as it is."""
    size: PoolSide = 1
    """Side of the grid that maps of any size are pooled to."""
    kernel: PoolSide | None = None
    """Side of pooling windows, which replace `size`; the side of the result then follows from the map's."""
    stride: PoolSide | None = None
    """Step between windows. Default: their side."""
    padding: Annotated[int, Within(0, 512)] = 0
    """Border around the map that windows may include; it counts as 0 in means."""

    def __call__(self, stage: Tensor, num_prefix_tokens: int = 0) -> Tensor:
        """Return one vector per image [B, D].

        Args:
            stage: maps [B, C, H, W], tokens [B, num_prefix_tokens + L, C] or vectors [B, D].
            num_prefix_tokens: number of tokens before the patches.

        Raises:
            ValueError: if a stage without class token is to give it, or windows do not fit the map.
        """
        if self.kind == "class" and (stage.ndim != 3 or num_prefix_tokens < 1):
            raise ValueError(f"a stage of shape {list(stage.shape)} has no class token; take kind='avg' or 'max'")
        if self.kind == "none" or stage.ndim == 2:
            return stage.flatten(1)
        if self.kind == "class":
            return stage[:, 0]
        if stage.ndim == 3:
            patches = stage[:, num_prefix_tokens:]
            return patches.mean(dim=1) if self.kind == "avg" else patches.amax(dim=1)
        return self._pooled(stage).flatten(1)

    def _pooled(self, maps: Tensor) -> Tensor:
        if self.kernel is None:
            pool = F.adaptive_avg_pool2d if self.kind == "avg" else F.adaptive_max_pool2d
            out: Tensor = pool(maps, self.size)
            return out
        if self.kernel > min(maps.shape[-2:]) + 2 * self.padding:
            raise ValueError(
                f"windows of side {self.kernel} do not fit a map of {maps.shape[-2]}x{maps.shape[-1]} with "
                f"a border of {self.padding}; give a smaller kernel"
            )
        if self.kind == "avg":
            return F.avg_pool2d(maps, self.kernel, self.stride, self.padding)
        return F.max_pool2d(maps, self.kernel, self.stride, self.padding)


def pooled_stages(backbone: Backbone, images: Tensor, pools: Sequence[tuple[str, Pool]]) -> list[Tensor]:
    """Return vectors [B, D] of stages in one pass through the network; a stage may appear with several pools.

    Args:
        images: normalised images [B, 3, H, W].
    """
    stages = backbone.stages(images, list(dict.fromkeys(name for name, _ in pools)))
    num_prefix = backbone.num_prefix_tokens if isinstance(backbone, TokenBackbone) else 0
    return [pool(stages[name], num_prefix) for name, pool in pools]


class RawPixels(nn.Module):
    """The image itself as a feature vector, shrunk to at most 32 pixels a side: a baseline for networks.

    >>> import torch
    >>> RawPixels()(torch.zeros(2, 3, 224, 224)).shape
    torch.Size([2, 3072])
    """

    def forward(self, images: Tensor) -> Tensor:
        """Return [B, 3 * side * side] of images [B, 3, H, W]."""
        side = min(PIXELS_SIDE, images.shape[-1])
        return nn.functional.adaptive_avg_pool2d(images, side).flatten(1)
