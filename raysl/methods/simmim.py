"""SimMIM: A Simple Framework for Masked Image Modeling.

Xie, Zhang, Cao, Lin, Bao, Yao, Dai and Hu 2021, arXiv 2111.09886. A learned token replaces large squares of an image,
and one linear layer on the ViT's output predicts the hidden pixels.
"""

from dataclasses import dataclass, field
from typing import Annotated

from torch import Tensor, nn

from raysl.config.ranges import Side, Within
from raysl.losses import masked_patch_l1, patchify
from raysl.methods.method import Backbone, Batch, ConfigError, MethodConfig, Setup, Step, StepOutput
from raysl.methods.shared.patches import PatchMethod, check_mask_size, grid_side, need_mask_token, patch_side
from raysl.methods.shared.reconstruction import Reconstruction, patch_reconstruction
from raysl.nn.collapse import COLLAPSE, batch_collapse
from raysl.transforms import Crops, UnitMask


class SimMIM(PatchMethod):
    """Predicts the pixels of masked squares from tokens by a linear layer."""

    logged = COLLAPSE

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's ImageNet settings."""

        name: str = "simmim"
        mask_size: Side = 32
        """Side of the masked squares in pixels: a multiple of the backbone's patches that divides the views (section
        3.2, table 1)."""
        mask_ratio: Annotated[float, Within(0, 1, above=True, below=True)] = 0.6
        """Masked share of the squares, rounded up to a number of squares (section 3.2, table 1)."""
        views: Crops = field(
            default_factory=lambda: Crops(num=1, min_scale=0.67, jitter_p=0.0, grayscale_p=0.0, blur_p=0.0)
        )
        """One crop of at least two thirds, mirrored with probability 1/2, without colours (section 4.1)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        self.head = nn.Linear(self.backbone.token_dim, self.backbone.in_channels * self.backbone.patch_size**2)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse backbones without patches or a token for masked ones, and squares that do not fit both patches and
        views, or are all masked."""
        grid_side(setup, "SimMIM")
        need_mask_token(setup, "SimMIM")
        check_mask_size(setup, "SimMIM")
        config = setup.method
        num_squares = (config.views.size // config.mask_size) ** 2
        if cls.mask(setup).num_masked(num_squares) == num_squares:
            raise ConfigError(
                f"method.mask_ratio={config.mask_ratio:g} masks all {num_squares} squares of a view; take a smaller "
                "ratio or method.mask_size"
            )

    @classmethod
    def mask(cls, setup: Setup) -> UnitMask:
        """Return the mask of each view."""
        config = setup.method
        return UnitMask(patch_size=patch_side(setup, "SimMIM"), unit_size=config.mask_size, ratio=config.mask_ratio)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the absolute error of the masked pixels (section 3.4)."""
        images = batch.views["global"].flatten(0, 1)  # [B*V, C, H, W]
        mask = batch.extras["global.mask"].flatten(0, 1)  # [B*V, h, w]
        tokens, pixels = self._predict(images, mask)
        loss = masked_patch_l1(pixels, patchify(images, self.backbone.patch_size), mask.flatten(1))
        h = tokens.detach().mean(dim=1).view(*batch.views["global"].shape[:2], -1)  # [B, V, D]
        return StepOutput(loss, batch_collapse(h))

    def reconstruct(self, batch: Batch) -> Reconstruction:
        """Return the predictions of masked squares among the other patches."""
        images, mask = batch.views["global"][:, 0], batch.extras["global.mask"][:, 0]
        _, pixels = self._predict(images, mask)
        return patch_reconstruction(images, mask.flatten(1), pixels, self.backbone.patch_size)

    def _predict(self, images: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens of all patches [N, L, D] and their pixels [N, L, p*p*C]."""
        tokens = self.backbone.tokens(images, mask)[:, self.backbone.num_prefix_tokens :]
        return tokens, self.head(tokens)
