"""MaskFeat: Masked Feature Prediction for Self-Supervised Visual Pre-Training.

Wei, Fan, Xie, Wu, Yuille and Feichtenhofer 2021, arXiv 2112.09133. A learned token replaces blocks of an image's
patches, and one linear layer on the ViT's output predicts the histograms of oriented gradients of the hidden patches.
"""

from dataclasses import dataclass, field
from typing import Annotated

from torch import Tensor, nn

from raysl import distributed as dist
from raysl.config.ranges import Count, Within
from raysl.losses import at_least_fp32, hog_patches
from raysl.methods.method import Backbone, Batch, ConfigError, MethodConfig, Setup, Step, StepOutput
from raysl.methods.shared.patches import PatchMethod, grid_side, need_mask_token, patch_side
from raysl.nn import COLLAPSE, batch_collapse, init_linear
from raysl.transforms import BlockMask, Crops


class MaskFeat(PatchMethod):
    """Predicts histograms of oriented gradients of masked patches from tokens by a linear layer."""

    logged = COLLAPSE

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's ImageNet settings."""

        name: str = "maskfeat"
        mask_ratio: Annotated[float, Within(0, 1, above=True, below=True)] = 0.4
        """Share of the patches that are masked, in blocks as in BEiT (section 4.2 and appendix)."""
        cell_size: Count = 8
        """Side of a histogram's cell in pixels, a divisor of a patch's side (section 3.2)."""
        num_bins: Count = 9
        """Directions of a histogram in half a turn (section 3.2)."""
        views: Crops = field(
            default_factory=lambda: Crops(num=1, min_scale=0.5, jitter_p=0.0, grayscale_p=0.0, blur_p=0.0)
        )
        """One crop of at least half the image, mirrored with probability 1/2, without colours (appendix)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        config, patch_size = self.config, patch_side(setup, "MaskFeat")
        num_values = self.backbone.in_channels * config.num_bins * (patch_size // config.cell_size) ** 2
        self.head = nn.Linear(self.backbone.token_dim, num_values)
        init_linear(self.head)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse backbones without patches or a token for masked ones, cells that do not cover a patch, and empty
        masks."""
        num_patches = grid_side(setup, "MaskFeat") ** 2
        need_mask_token(setup, "MaskFeat")
        config, patch_size = setup.method, patch_side(setup, "MaskFeat")
        if patch_size % config.cell_size:
            fits = [str(size) for size in range(1, patch_size + 1) if patch_size % size == 0]
            raise ConfigError(
                f"method.cell_size is {config.cell_size}, and cells of it do not cover patches of {patch_size} pixels; "
                f"give {' or '.join(fits)}"
            )
        if cls.mask(setup).most_masked(num_patches) == 0:
            raise ConfigError(
                f"method.mask_ratio={config.mask_ratio:g} masks none of the {num_patches} patches of a view; take a "
                "larger ratio, or smaller patches"
            )

    @classmethod
    def mask(cls, setup: Setup) -> BlockMask:
        """Return the mask of each view."""
        return BlockMask(patch_size=patch_side(setup, "MaskFeat"), ratios=((setup.method.mask_ratio, 0.0),))

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the squared error of the histograms, over the masked patches of the whole batch (section 3.1)."""
        images = batch.views["global"].flatten(0, 1)  # [B*V, C, H, W]
        mask = batch.extras["global.mask"].flatten(0, 1)  # [B*V, h, w]
        target = self._targets(images)  # [B*V, L, 3*N*c*c]
        tokens = self.backbone.tokens(images, mask)[:, self.backbone.num_prefix_tokens :]  # [B*V, L, D]
        errors = (at_least_fp32(self.head(tokens)) - target).square().mean(dim=-1)  # [B*V, L]
        masked = mask.flatten(1).to(errors.dtype)
        loss = dist.all_sum((errors * masked).sum()) / dist.all_sum(masked.sum()).clamp(min=1)
        h = tokens.detach().mean(dim=1).view(*batch.views["global"].shape[:2], -1)  # [B, V, D]
        return StepOutput(loss, batch_collapse(h))

    def _targets(self, images: Tensor) -> Tensor:
        config = self.config
        return hog_patches(images, self.backbone.patch_size, config.cell_size, config.num_bins)
