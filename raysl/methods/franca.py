"""Franca: Nested Matryoshka Clustering for Scalable Visual Representation Learning.

Venkataramanan et al. 2025, arXiv 2507.14137. The losses of DINOv2, for several heads: one projects the features to a
sixteenth of their width, one to an eighth and so on up to all of it, with as many fewer prototypes, so that narrow
heads find coarse clusters and wide ones fine clusters. The paper's text cuts the first channels off; the authors' code
projects all of them. Masked views show one block, which is moved round the image, so that all places are hidden equally
often (CyclicMask). What the paper does to trained features, RASA, which removes directions that tell the place of a
patch, is not here.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, cast

import torch
from torch import Tensor, nn

from raysl.config.ranges import Rising, Share, Within
from raysl.losses import dino, masked_prediction
from raysl.methods.dino_v2 import DINOv2
from raysl.methods.method import ConfigError, Setup
from raysl.methods.shared.patches import block_mask
from raysl.nn import HeadConfig, NestedHead
from raysl.nn.sinkhorn import sinkhorn
from raysl.transforms import AsymmetricMultiCrop, CyclicMask, Mask


class Franca(DINOv2):
    """Predicts a teacher's balanced assignments to coarse and fine clusters of its features."""

    title = "Franca"

    @dataclass(frozen=True, kw_only=True)
    class Config(DINOv2.Config):
        """The authors' settings of a ViT-B/14 on ImageNet-21K (their code)."""

        name: str = "franca"
        num_levels: Annotated[int, Within(1, 16)] = 5
        """Heads of class tokens, and of patches: of the features' width, half of it, a quarter and so on (the authors'
        code). The loss is their sum."""
        is_cyclic: bool = True
        """Show one block of a masked view, moved round the image ("CyclicMask"); if false, mask blocks as DINOv2."""
        mask_share: Annotated[tuple[Share, Share], Rising()] = (0.1, 0.65)
        """Range of the masked share of a large view's patches; half of the views stay whole (the authors' code)."""
        head: HeadConfig = field(
            default_factory=lambda: HeadConfig(num_prototypes=131_072, bottleneck_dim=384, last_layer="weight_norm")
        )
        """The widest projector of class tokens; narrower ones have as many fewer prototypes (the authors' code)."""
        patch_head: HeadConfig = field(
            default_factory=lambda: HeadConfig(num_prototypes=131_072, last_layer="weight_norm")
        )
        """The projector of patches, likewise (the authors' code)."""
        views: AsymmetricMultiCrop = field(
            default_factory=lambda: AsymmetricMultiCrop(min_scale=0.32, local_size=98, local_scale=(0.05, 0.32))
        )
        """Two large crops, masked for the student, and eight small ones (the authors' code)."""

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse what DINOv2 refuses, and more levels than channels or prototypes can be halved for."""
        super().check(setup)
        config = setup.method
        fewest = 1 << (config.num_levels - 1)
        smallest = min(config.head.num_prototypes, config.patch_head.num_prototypes)
        if min(setup.backbone.feature_dim, smallest // 2) < fewest:
            raise ConfigError(
                f"method.num_levels is {config.num_levels}: the smallest head would have 1/{fewest} of "
                f"{setup.backbone.feature_dim} channels and of {smallest} prototypes, less than 1 channel or 2 "
                "prototypes; give fewer levels"
            )

    @classmethod
    def mask(cls, setup: Setup) -> Mask:
        """Return the mask of each large view."""
        if not setup.method.is_cyclic:
            return super().mask(setup)
        blocks = block_mask(setup, cls.title)
        return CyclicMask(patch_size=blocks.patch_size, ratios=blocks.ratios, aspect=blocks.aspect)

    @property
    def most_entropy(self) -> float:
        """The sum over the heads: `teacher_entropy` is."""
        return sum(map(math.log, cast(NestedHead, self.head).sizes))

    def _head(self, dim: int, config: HeadConfig) -> NestedHead:
        return NestedHead(dim, config, self.config.num_levels)

    def _class_loss(self, scores: Tensor, codes: Tensor) -> Tensor:
        """Return the sum over the heads of DINO's loss."""
        levels = zip(*map(cast(NestedHead, self.head).split, (scores, codes)), strict=True)
        return torch.stack([dino(student, target, self.config.temperature) for student, target in levels]).sum()

    def _patch_loss(self, scores: Tensor, codes: Tensor, is_learned: Tensor) -> Tensor:
        """Return the sum over the heads of the loss of patches."""
        levels = zip(*map(cast(NestedHead, self.patch_head).split, (scores, codes)), strict=True)
        temp: float = self.config.temperature
        return torch.stack([masked_prediction(student, target, is_learned, temp) for student, target in levels]).sum()

    def _balanced(self, head: nn.Module, scores: Tensor, temp: float, mask: Tensor | None = None) -> Tensor:
        """Return the assignments of all heads [n, K], each balanced by itself."""
        levels = cast(NestedHead, head).split(scores)
        return torch.cat([sinkhorn(level, temp, self.config.sinkhorn_iters, mask=mask) for level in levels], dim=-1)
