"""From the stages of a backbone to one vector an image each, as linear classifiers on inner features take them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor
from torch.nn import functional as F

from raysl.config.ranges import Within
from raysl.nn.backbones.backbone import Backbone, TokenBackbone

PoolSide = Annotated[int, Within(1, 1024)]


@dataclass(frozen=True, kw_only=True)
class Pool:
    """How a stage becomes a vector: maps are pooled to a grid of `size` x `size`, or in windows, and laid out flat."""

    kind: Literal["avg", "max", "class", "none"] = "avg"
    """Means, maxima, the class token of a ViT's stage, or all of the stage as it is. Tokens have means and maxima of
    the patches; what is a vector already stays one."""
    size: PoolSide = 1
    """Side of the grid that maps are pooled to, whatever theirs is."""
    kernel: PoolSide | None = None
    """Side of windows that are pooled in place of that, where the side of the result follows from the map's."""
    stride: PoolSide | None = None
    """Places from one window to the next. Default: their side."""
    padding: Annotated[int, Within(0, 512)] = 0
    """Places around the map that windows may reach into; they count as 0 in means."""

    def __call__(self, stage: Tensor, num_prefix_tokens: int = 0) -> Tensor:
        """One vector an image [B, D].

        Args:
            stage: maps [B, C, H, W], tokens [B, num_prefix_tokens + L, C] or vectors [B, D].
            num_prefix_tokens: tokens in front of the patches.

        Raises:
            ValueError: if the class token is asked of what has none, or windows do not fit the map.
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
                f"windows of {self.kernel} places do not fit a map of {maps.shape[-2]}x{maps.shape[-1]} with "
                f"{self.padding} around it; give a smaller kernel"
            )
        if self.kind == "avg":
            return F.avg_pool2d(maps, self.kernel, self.stride, self.padding)
        return F.max_pool2d(maps, self.kernel, self.stride, self.padding)


def pooled_stages(backbone: Backbone, images: Tensor, asked: Sequence[tuple[str, Pool]]) -> list[Tensor]:
    """Vectors [B, D] of stages, in the order asked for; a stage may be asked for again with another pool.

    The network is passed through once.

    Args:
        backbone: whose stages they are.
        images: normalised images [B, 3, H, W].
        asked: names of stages, each with how it is pooled.

    Raises:
        ValueError: if a name is no stage, or its pool does not fit it.
    """
    found = backbone.stages(images, list(dict.fromkeys(name for name, _ in asked)))
    num_prefix = backbone.num_prefix_tokens if isinstance(backbone, TokenBackbone) else 0
    return [pool(found[name], num_prefix) for name, pool in asked]
