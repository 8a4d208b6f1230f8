"""AIM: Scalable Pre-training of Large Autoregressive Image Models.

El-Nouby, Klein, Zhai, Bautista, Toshev, Shankar, Susskind and Joulin 2024, arXiv 2401.08541. A ViT reads an image's
patches row by row and predicts the pixels of the next one. The first patches, as many as a draw says, are a prefix that
all tokens see, so that the network also learns attention in both directions, with which it is used later.
"""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.config.ranges import Width, Within
from raysl.losses import masked_patch_mse, patchify
from raysl.methods.method import Backbone, Batch, ConfigError, MethodConfig, Setup, Step, StepOutput, TokenBackbone
from raysl.methods.shared.patches import PatchMethod, grid_side, patch_side
from raysl.methods.shared.reconstruction import Reconstruction, patch_reconstruction
from raysl.nn import COLLAPSE, batch_collapse, init_linear, sincos_positions
from raysl.transforms import Crops, PrefixMask


class AIM(PatchMethod):
    """Predicts the pixels of each patch from the patches before it."""

    logged = COLLAPSE

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's settings."""

        name: str = "aim"
        head_width: Width = 2048
        """Channels of the head's blocks (section 5.2, "MLP head")."""
        head_depth: Annotated[int, Within(0, 1000)] = 12
        """Blocks of the head (section 5.2)."""
        is_normalised: bool = True
        """Predict pixels minus their patch's mean, divided by its standard deviation (section 3.1, "pixel targets")."""
        views: Crops = field(
            default_factory=lambda: Crops(num=1, min_scale=0.4, jitter_p=0.0, grayscale_p=0.0, blur_p=0.0)
        )
        """One crop, mirrored with probability 1/2, without colours (appendix)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        self.head = Head(self.config, self.backbone)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse backbones without patches, patches that do not cover a view or are only one, and widths without
        positions."""
        if grid_side(setup, "AIM") < 2:
            raise ConfigError(
                f"a view of {setup.method.views.size} pixels is one patch, and AIM predicts each patch from those "
                "before it; take a smaller backbone.patch_size, or larger views"
            )
        width = setup.backbone.stages.get("norm", 0)
        if width % 4:
            raise ConfigError(
                f"the backbone's tokens have {width} channels, and positions in front of AIM's head need a multiple of "
                f"4; try backbone.width={width // 4 * 4 + 4}"
            )

    @classmethod
    def mask(cls, setup: Setup) -> PrefixMask:
        """Return the mask of what follows the prefix of each view."""
        return PrefixMask(patch_size=patch_side(setup, "AIM"))

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the squared error of the pixels of patches behind the prefix (section 3.1, eq. 2, and 3.2)."""
        images = batch.views["global"].flatten(0, 1)  # [B*V, C, H, W]
        mask = batch.extras["global.mask"].flatten(0, 1).flatten(1)  # [B*V, L]
        tokens, pixels = self._predict(images, mask)  # [B*V, L, D], [B*V, L - 1, p*p*C]
        patches = patchify(images, self.backbone.patch_size)[:, 1:]
        loss = masked_patch_mse(pixels, patches, mask[:, 1:], self.config.is_normalised)
        h = tokens.detach().mean(dim=1).view(*batch.views["global"].shape[:2], -1)  # [B, V, D]
        return StepOutput(loss, batch_collapse(h))

    def reconstruct(self, batch: Batch) -> Reconstruction:
        """Return the prefix and the predictions of the other patches, each from the true patches before it."""
        images, mask = batch.views["global"][:, 0], batch.extras["global.mask"][:, 0].flatten(1)
        _, pixels = self._predict(images, mask)
        predictions = F.pad(pixels, (0, 0, 1, 0))  # nothing predicts the first patch
        is_predicted = torch.ones_like(mask)
        is_predicted[:, 0] = False
        shape = self.backbone.patch_size, self.config.is_normalised
        return patch_reconstruction(images, mask, predictions, *shape, is_predicted)

    def _predict(self, images: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens [N, L, D], and pixels of all patches but the first [N, L - 1, p*p*C]."""
        # the mask covers what follows the prefix, so its inverse is the prefix that all tokens see
        tokens = self.backbone.causal_tokens(images, ~mask)[:, self.backbone.num_prefix_tokens :]
        # the last token has no next patch, and no token predicts the first patch, so both ends are left out
        return tokens, self.head(tokens)[:, :-1]


class Head(nn.Module):
    """From tokens to the pixels of the next patch, each token by itself (section 3.2, "MLP prediction heads")."""

    positions: Tensor

    def __init__(self, config: AIM.Config, backbone: TokenBackbone) -> None:
        super().__init__()
        side, width = config.views.size // backbone.patch_size, config.head_width
        self.register_buffer("positions", sincos_positions(side, side, backbone.token_dim, num_prefix=0))
        self.embed = nn.Linear(backbone.token_dim, width, bias=False)
        self.blocks = nn.Sequential(*(HeadBlock(width) for _ in range(config.head_depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pixels = nn.Linear(width, backbone.in_channels * backbone.patch_size**2, bias=False)
        init_linear(self)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return predictions [B, L, p*p*3] for tokens of all patches [B, L, D]."""
        return self.pixels(self.norm(self.blocks(self.embed(tokens + self.positions))))  # type: ignore[no-any-return]


class HeadBlock(nn.Module):
    """A layer norm and an MLP of four times the width without biases, added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.fc1 = nn.Linear(width, 4 * width, bias=False)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map each token separately."""
        return x + self.fc2(self.act(self.fc1(self.norm(x))))  # type: ignore[no-any-return]
