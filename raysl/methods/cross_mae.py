"""CrossMAE: Rethinking Patch Dependence for Masked Autoencoders.

Fu, Lian, Wang, Shi, Wang, Yala, Darrell, Efros and Goldberg 2024, arXiv 2401.14391. MAE with a decoder in which masked
patches look at visible ones alone, not at each other. So each is predicted by itself, and a part of them suffices for
the loss. Each block of the decoder sees a learned mixture of the outputs of all blocks of the ViT.
"""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor, nn

from raysl.config.ranges import Within
from raysl.losses import masked_patch_mse, patchify
from raysl.methods.method import Batch, ConfigError, MethodConfig, Setup, Step, StepOutput
from raysl.methods.shared.patches import PatchMethod, check_width, grid_side, patch_side
from raysl.methods.shared.reconstruction import Reconstruction, patch_reconstruction, placed
from raysl.nn import COLLAPSE, batch_collapse, init_linear, sincos_positions
from raysl.nn.backbones.attention import CrossBlock
from raysl.nn.backbones.backbone import Backbone, TokenBackbone, visible_places
from raysl.nn.backbones.vit import ViT
from raysl.transforms import Crops, PartMask


class CrossMAE(PatchMethod):
    """Predicts the pixels of a part of the masked patches, each from the visible ones."""

    logged = COLLAPSE

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The settings of the authors' command for ViT-B."""

        name: str = "cross_mae"
        mask_ratio: Annotated[float, Within(0, 1, above=True, below=True)] = 0.75
        """Share of the patches that the backbone does not see (section 3)."""
        predicted_ratio: Annotated[float, Within(0, 1, above=True, below=True)] = 0.25
        """Share of the patches that the decoder predicts, at most `mask_ratio` (section 3.3, "partial reconstruction";
        "kept mask ratio" of the authors' code, which multiplies the learning rate by its share of `mask_ratio`)."""
        decoder_width: Annotated[int, Within(4, 65_536)] = 512
        """Channels of a token in the decoder, a multiple of 4 and of its heads (the authors' code)."""
        decoder_depth: Annotated[int, Within(1, 1000)] = 12
        """Blocks of the decoder (the authors' command)."""
        decoder_heads: Annotated[int, Within(1, 1024)] = 16
        """Heads of each attention in the decoder (the authors' code)."""
        is_normalised: bool = True
        """Predict pixels minus their patch's mean, divided by its standard deviation (the authors' command)."""
        views: Crops = field(
            default_factory=lambda: Crops(num=1, min_scale=0.2, jitter_p=0.0, grayscale_p=0.0, blur_p=0.0)
        )
        """One crop, mirrored with probability 1/2, without colours, as in MAE."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        num_patches, mask = (self.config.views.size // self.backbone.patch_size) ** 2, self.mask(setup)
        self.num_visible = num_patches - mask.num_masked(num_patches)
        self.num_predicted = mask.num_predicted(num_patches)
        num_blocks = sum(name.startswith("block") for name in setup.backbone.stages)
        if isinstance(self.backbone, ViT):
            # Maps come from in front of the final norm, which the authors' network has not: it gets no gradient.
            self.backbone.norm.requires_grad_(False)
        self.decoder = Decoder(self.config, self.backbone, 1 + num_blocks)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse backbones without patches, patches that do not cover a view, are all or none masked or none predicted,
        more predicted than masked ones, and impossible decoders."""
        config, num_patches = setup.method, grid_side(setup, "CrossMAE") ** 2
        if config.predicted_ratio > config.mask_ratio:
            raise ConfigError(
                f"method.predicted_ratio={config.predicted_ratio:g} is above method.mask_ratio={config.mask_ratio:g}; "
                "CrossMAE predicts masked patches: give a smaller one"
            )
        mask = cls.mask(setup)
        if not 0 < mask.num_masked(num_patches) < num_patches or not mask.num_predicted(num_patches):
            raise ConfigError(
                f"method.mask_ratio={config.mask_ratio:g} masks {mask.num_masked(num_patches)} of the {num_patches} "
                f"patches of a view, and method.predicted_ratio={config.predicted_ratio:g} predicts "
                f"{mask.num_predicted(num_patches)} of them; CrossMAE needs visible and predicted ones: change the "
                "ratios, or take smaller patches"
            )
        check_width("decoder", config.decoder_width, config.decoder_heads)

    @classmethod
    def mask(cls, setup: Setup) -> PartMask:
        """Return the mask of each view, with the part of it that is predicted."""
        config, patch_size = setup.method, patch_side(setup, "CrossMAE")
        return PartMask(patch_size=patch_size, ratio=config.mask_ratio, predicted=config.predicted_ratio)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the squared error of the predicted patches' pixels (section 3)."""
        images = batch.views["global"].flatten(0, 1)  # [B*V, C, H, W]
        mask, predicted = (batch.extras[f"global.{name}"].flatten(0, 1) for name in ("mask", "predicted"))
        keep = visible_places(mask, self.num_visible)  # [B*V, K]
        hidden = visible_places(~predicted, self.num_predicted)  # [B*V, M]
        maps = self.backbone.visible_maps(images, keep)  # S of [B*V, P + K, D]
        pixels = self.decoder(maps, hidden)  # [B*V, M, p*p*C]
        patches = patchify(images, self.backbone.patch_size)
        target = patches.gather(1, hidden[:, :, None].expand_as(pixels))
        everything = torch.ones_like(hidden, dtype=torch.bool)
        loss = masked_patch_mse(pixels, target, everything, self.config.is_normalised)
        h = maps[-1].detach()[:, self.backbone.num_prefix_tokens :].mean(dim=1)  # [B*V, D]
        return StepOutput(loss, batch_collapse(h.view(len(batch), -1, h.shape[1])))

    def reconstruct(self, batch: Batch) -> Reconstruction:
        """Return the predictions of all masked patches, of which training predicts a part."""
        images, mask = batch.views["global"][:, 0], batch.extras["global.mask"][:, 0]
        num_patches = mask[0].numel()
        keep, hidden = visible_places(mask, self.num_visible), visible_places(~mask, num_patches - self.num_visible)
        pixels, _ = placed(self.decoder(self.backbone.visible_maps(images, keep), hidden), hidden, num_patches)
        return patch_reconstruction(
            images, mask.flatten(1), pixels, self.backbone.patch_size, self.config.is_normalised
        )


class Decoder(nn.Module):
    """From the maps of visible patches to the pixels of some masked ones (section 3.2 and 3.4)."""

    positions: Tensor

    def __init__(self, config: CrossMAE.Config, backbone: TokenBackbone, num_maps: int) -> None:
        super().__init__()
        width, depth, side = config.decoder_width, config.decoder_depth, config.views.size // backbone.patch_size
        self.mask_token = nn.Parameter(torch.empty(width))
        self.register_buffer("positions", sincos_positions(side, side, width, num_prefix=0))
        # the paper's inter-block attention: each block of the decoder mixes the encoder's maps with its own weights
        self.mixture = nn.Parameter(torch.empty(depth, num_maps))
        self.norms = nn.ModuleList(nn.LayerNorm(backbone.token_dim, eps=1e-6) for _ in range(depth))
        self.blocks = nn.ModuleList(CrossBlock(width, backbone.token_dim, config.decoder_heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pixels = nn.Linear(width, backbone.in_channels * backbone.patch_size**2)
        init_linear(self, "mae")
        nn.init.normal_(self.mask_token, std=0.02)
        nn.init.xavier_uniform_(self.mixture)

    def forward(self, maps: list[Tensor], hidden: Tensor) -> Tensor:
        """Return the pixels of some patches.

        Args:
            maps: tokens of visible patches, of each map [B, T, D].
            hidden: indices of the M predicted patches, int64 [B, M].

        Returns:
            [B, M, p*p*3], a patch's values in the order of `patchify`.
        """
        x = self.mask_token + self.positions[0][hidden]  # [B, M, W]
        mixed = torch.einsum("js,sbtd->jbtd", self.mixture, torch.stack(maps))  # [J, B, T, D]
        for block, norm, tokens in zip(self.blocks, self.norms, mixed, strict=True):
            x = block(x, norm(tokens))
        return self.pixels(self.norm(x))  # type: ignore[no-any-return]
