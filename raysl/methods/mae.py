"""MAE: Masked Autoencoders Are Scalable Vision Learners.

He, Chen, Xie, Li, Dollar and Girshick 2021, arXiv 2111.06377. A ViT sees a quarter of an image's patches; a small
decoder, discarded later, predicts the pixels of the others from its tokens and their positions.
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from raysl.config.ranges import Within
from raysl.losses import masked_patch_mse, patchify
from raysl.methods.method import Batch, ConfigError, MethodConfig, Setup, Step, StepOutput
from raysl.methods.shared.patches import PatchMethod, check_width, grid_side, patch_side
from raysl.methods.shared.reconstruction import Reconstruction, patch_reconstruction
from raysl.nn import COLLAPSE, batch_collapse, init_linear, sincos_positions
from raysl.nn.backbones.attention import Block
from raysl.nn.backbones.backbone import Backbone, TokenBackbone, visible_places
from raysl.transforms import Crops, RandomMask, UnitMask


class MAE(PatchMethod):
    """Predicts the pixels of masked patches from the visible ones."""

    logged: ClassVar[tuple[str, ...]] = COLLAPSE
    title: ClassVar[str] = "MAE"
    """Name in messages."""

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's ImageNet settings."""

        name: str = "mae"
        mask_ratio: Annotated[float, Within(0, 1, above=True, below=True)] = 0.75
        """Share of the patches that the backbone does not see (section 4.1, "masking ratio", figure 5)."""
        decoder_width: Annotated[int, Within(4, 65_536)] = 512
        """Channels of a token in the decoder, a multiple of 4 and of its heads (table 1b)."""
        decoder_depth: Annotated[int, Within(1, 1000)] = 8
        """Blocks of the decoder (table 1a)."""
        decoder_heads: Annotated[int, Within(1, 1024)] = 16
        """Heads of each attention in the decoder (the authors' code)."""
        is_normalised: bool = True
        """Predict pixels minus their patch's mean, divided by its standard deviation (section 4.1, table 1d)."""
        views: Crops = field(
            default_factory=lambda: Crops(num=1, min_scale=0.2, jitter_p=0.0, grayscale_p=0.0, blur_p=0.0)
        )
        """One crop, mirrored with probability 1/2, without colours (section 4.1, table 1e; appendix, table 8)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        num_patches = (self.config.views.size // self.backbone.patch_size) ** 2
        self.num_visible = num_patches - self.num_masked(setup)
        self.decoder = self.make_decoder()

    def make_decoder(self) -> "Decoder":
        """Return the network from tokens to pixels."""
        return Decoder(self.config, self.backbone)

    @classmethod
    def mask(cls, setup: Setup) -> RandomMask | UnitMask:
        """Return the mask of each view."""
        return RandomMask(patch_size=patch_side(setup, cls.title), ratio=setup.method.mask_ratio)

    @classmethod
    def num_masked(cls, setup: Setup) -> int:
        """Return the number of patches that a mask hides."""
        return cls.mask(setup).num_masked(grid_side(setup, cls.title) ** 2)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse backbones without patches, patches that do not cover a view or are all or none masked, and impossible
        decoders."""
        config, num_patches = setup.method, grid_side(setup, cls.title) ** 2
        num_masked = cls.num_masked(setup)
        if not 0 < num_masked < num_patches:
            raise ConfigError(
                f"method.mask_ratio={config.mask_ratio:g} masks {num_masked} of the {num_patches} patches of a view; "
                f"{cls.title} needs masked and visible ones: take a ratio nearer to 0.5, or smaller patches"
            )
        check_width("decoder", config.decoder_width, config.decoder_heads)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the squared error of the masked patches' pixels (section 3)."""
        tokens, _, loss = self._reconstruct(batch)
        h = tokens.detach()[:, self.backbone.num_prefix_tokens :].mean(dim=1)  # [B*V, D]
        return StepOutput(loss, batch_collapse(h.view(len(batch), -1, h.shape[1])))

    def _reconstruct(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tokens of visible patches [B*V, 1 + K, D], the patches' indices [B*V, K], and the loss."""
        images = batch.views["global"].flatten(0, 1)  # [B*V, C, H, W]
        mask = batch.extras["global.mask"].flatten(0, 1)  # [B*V, h, w]
        tokens, keep, pixels = self._predict(images, mask)
        patches = patchify(images, self.backbone.patch_size)
        return tokens, keep, masked_patch_mse(pixels, patches, mask.flatten(1), self.config.is_normalised)

    def reconstruct(self, batch: Batch) -> Reconstruction:
        """Return the predictions of masked patches among the visible ones."""
        images, mask = batch.views["global"][:, 0], batch.extras["global.mask"][:, 0]
        _, _, pixels = self._predict(images, mask)
        return patch_reconstruction(
            images, mask.flatten(1), pixels, self.backbone.patch_size, self.config.is_normalised
        )

    def _predict(self, images: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tokens of visible patches [N, 1 + K, D], the patches' indices [N, K], and all patches' pixels."""
        keep = visible_places(mask, self.num_visible)  # [N, K]
        tokens = self.backbone.visible_tokens(images, keep)  # [N, 1 + K, D]
        return tokens, keep, self.decoder(tokens, keep)  # [N, L, p*p*C]


class Decoder(nn.Module):
    """From the tokens of visible patches to the pixels of all patches (section 3, "MAE decoder").

    Args:
        depth: number of blocks; default: `decoder_depth` of the settings.
        num_values: number of outputs for each patch; default: that of the patch's pixel values.
    """

    positions: Tensor

    def __init__(
        self, config: MAE.Config, backbone: TokenBackbone, depth: int | None = None, num_values: int | None = None
    ) -> None:
        super().__init__()
        width, side = config.decoder_width, config.views.size // backbone.patch_size
        self.num_prefix = backbone.num_prefix_tokens
        self.embed = nn.Linear(backbone.token_dim, width)
        self.mask_token = nn.Parameter(torch.empty(width))
        self.register_buffer("positions", sincos_positions(side, side, width, self.num_prefix))
        self.blocks = nn.ModuleList(Block(width, config.decoder_heads) for _ in range(depth or config.decoder_depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pixels = nn.Linear(width, num_values or backbone.in_channels * backbone.patch_size**2)
        init_linear(self, "mae")
        nn.init.normal_(self.mask_token, std=0.02)

    def forward(self, tokens: Tensor, keep: Tensor) -> Tensor:
        """Return the pixels of all patches, or what else it predicts of them.

        Args:
            tokens: tokens of the backbone [B, num_prefix_tokens + K, D].
            keep: indices of the K patches among all L, int64 [B, K].

        Returns:
            [B, L, p*p*3], a patch's values in the order of `patchify`; or [B, L, num_values].
        """
        x = self.embed(tokens)  # [B, P + K, W]
        prefix, visible = x[:, : self.num_prefix], x[:, self.num_prefix :]
        num_patches = self.positions.shape[1] - self.num_prefix
        # mask tokens at all places, over which the visible tokens are then written
        hidden = self.mask_token.to(x.dtype).expand(len(x), num_patches, -1)
        patches = hidden.scatter(1, keep[:, :, None].expand_as(visible), visible)  # [B, L, W]
        x = torch.cat([prefix, patches], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.pixels(self.norm(x[:, self.num_prefix :]))  # type: ignore[no-any-return]
