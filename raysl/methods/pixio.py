"""Pixio: In Pursuit of Pixel Supervision for Visual Pre-training.

Yang, Li, Li, Lei, Wang, Mohamed, Zhao and Xu 2025, arXiv 2512.15715. MAE with a harder task and a stronger decoder:
whole squares of patches are hidden, the decoder is several times as deep, and the backbone has several class tokens,
which are its class token and its registers (`backbone.num_registers`).
"""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import nn

from raysl.config.ranges import Within
from raysl.methods.mae import MAE, Decoder
from raysl.methods.method import ConfigError, Setup, TokenBackbone
from raysl.methods.shared.patches import grid_side, patch_side
from raysl.transforms import Crops, UnitMask


class Pixio(MAE):
    """Predicts the pixels of masked squares of patches from the visible ones."""

    title = "Pixio"

    @dataclass(frozen=True, kw_only=True)
    class Config(MAE.Config):
        """The paper's settings, as in the authors' code."""

        name: str = "pixio"
        mask_ratio: Annotated[float, Within(0, 1, above=True, below=True)] = 0.75
        """Share of the squares that the backbone does not see."""
        mask_block: Annotated[int, Within(1, 1024)] = 4
        """Side of a square in patches, which divides that of a view (figure 2, "larger mask block")."""
        decoder_depth: Annotated[int, Within(1, 1000)] = 32
        """Blocks of the decoder (figure 2, "deeper decoder")."""
        views: Crops = field(
            default_factory=lambda: Crops(num=1, min_scale=0.2, flip=0.0, jitter_p=0.0, grayscale_p=0.0, blur_p=0.0)
        )
        """One crop, without mirroring and colours."""

    def make_decoder(self) -> Decoder:
        """Return MAE's decoder with positions that are trained."""
        return PixioDecoder(self.config, self.backbone)

    @classmethod
    def mask(cls, setup: Setup) -> UnitMask:
        """Return the mask of each view."""
        patch_size, config = patch_side(setup, cls.title), setup.method
        return UnitMask(patch_size=patch_size, unit_size=config.mask_block * patch_size, ratio=config.mask_ratio)

    @classmethod
    def num_masked(cls, setup: Setup) -> int:
        """Return the number of patches that a mask hides."""
        block: int = setup.method.mask_block
        return cls.mask(setup).num_masked((grid_side(setup, cls.title) // block) ** 2) * block**2

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse squares that do not fill a view, and what MAE refuses."""
        side, block = grid_side(setup, cls.title), setup.method.mask_block
        if side % block:
            fits = [str(width) for width in range(1, max(2, side)) if side % width == 0]
            raise ConfigError(
                f"method.mask_block={block} does not divide the {side} patches along a side of a view; give "
                f"{' or '.join(fits)}"
            )
        super().check(setup)


class PixioDecoder(Decoder):
    """MAE's decoder with positions that are trained, also those of class tokens (authors' code)."""

    def __init__(self, config: Pixio.Config, backbone: TokenBackbone) -> None:
        super().__init__(config, backbone)
        shape = self.positions.shape
        del self.positions
        self.positions = nn.Parameter(nn.init.trunc_normal_(torch.empty(shape), std=0.02))
