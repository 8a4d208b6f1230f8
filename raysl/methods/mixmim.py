"""MixMAE: Mixed and Masked Autoencoder for Efficient Pretraining of Hierarchical Vision Transformers, called MixMIM in
its authors' code.

Liu, Huang, Zheng, Liu and Li 2022, arXiv 2205.13137. Squares of one image take the place of the hidden squares of
another. A Swin transformer sees this mixed image, and attention keeps the two apart. A decoder, discarded later,
predicts the hidden pixels of both.

The settings are those of the authors' code.
"""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor, nn

from raysl import distributed as dist
from raysl.components import resolve
from raysl.config.linked import find_size_setting
from raysl.config.ranges import Within
from raysl.losses import masked_patch_mse, patchify
from raysl.methods.method import Backbone, Batch, ConfigError, Method, MethodConfig, Setup, Step, StepOutput
from raysl.methods.shared.patches import check_width
from raysl.methods.shared.reconstruction import Reconstruction, patch_reconstruction
from raysl.nn import COLLAPSE, batch_collapse, init_linear, sincos_positions
from raysl.nn.backbones.attention import Block
from raysl.nn.backbones.positions import resize_positions
from raysl.transforms import Crops, RandomMask

NORM_EPS = 1e-5
"""Number that layer norms of the decoder add to the variance (the authors' code)."""


class MixMIM(Method):
    """Predicts the hidden pixels of two images that lie mixed in one."""

    logged = COLLAPSE

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The authors' ImageNet settings."""

        name: str = "mixmim"
        mask_ratio: Annotated[float, Within(0, 1, above=True, below=True)] = 0.5
        """Share of an image's squares that are replaced by those of another one; a square is as large as one place of
        the backbone's last map."""
        decoder_width: Annotated[int, Within(4, 65_536)] = 512
        """Channels of a token in the decoder, a multiple of 4 and of its heads."""
        decoder_depth: Annotated[int, Within(1, 1000)] = 8
        """Blocks of the decoder."""
        decoder_heads: Annotated[int, Within(1, 1024)] = 16
        """Heads of each attention in the decoder."""
        is_normalised: bool = True
        """Predict pixels minus their square's mean, divided by its standard deviation."""
        views: Crops = field(
            default_factory=lambda: Crops(
                num=1, min_scale=0.2, interpolation="bicubic", jitter_p=0.0, grayscale_p=0.0, blur_p=0.0
            )
        )
        """One crop, mirrored with probability 1/2, without colours."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        self.side = _square_side(setup)
        self.decoder = Decoder(self.config, self.side, backbone)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse backbones that cannot keep images apart, squares that do not cover a view or are all or none replaced,
        impossible decoders, and batches of one image."""
        config, side = setup.method, _square_side(setup)
        num_squares = (config.views.size // side) ** 2
        num_masked = cls.mask(setup).num_masked(num_squares)
        if not 0 < num_masked < num_squares:
            raise ConfigError(
                f"method.mask_ratio={config.mask_ratio:g} replaces {num_masked} of the {num_squares} squares of {side} "
                "pixels of a view; MixMIM needs squares of both images: take a ratio nearer to 0.5, larger views, or a "
                "backbone with fewer stages or smaller patches"
            )
        check_width("decoder", config.decoder_width, config.decoder_heads)
        if setup.plan.batch_size < 2:
            raise ConfigError(f"train.batch_size is {setup.plan.batch_size}; MixMIM mixes images, set it to 2 or more")

    @classmethod
    def mask(cls, setup: Setup) -> RandomMask:
        """Return the mask of each view."""
        return RandomMask(patch_size=_square_side(setup), ratio=setup.method.mask_ratio)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the squared error of the hidden pixels of both images of each mix."""
        views, mask = batch.views["global"], batch.extras["global.mask"].flatten(0, 1)  # [B*V, h, w]
        images, others = views.flatten(0, 1), next_rows(views).flatten(0, 1)  # [B*V, C, H, W]
        h, first, second = self._predict(images, others, mask)
        squares = mask.flatten(1)[:, :, None]  # [B*V, L, 1]
        # a square of the mix is that of one image, and is predicted for the other
        predictions = torch.where(squares, first, second)  # [B*V, L, p*p*C]
        targets = torch.where(squares, patchify(images, self.side), patchify(others, self.side))
        everywhere = torch.ones_like(mask.flatten(1))
        loss = masked_patch_mse(predictions, targets, everywhere, self.config.is_normalised)
        # the squares of the image itself, each of which saw no other image
        means = (h.detach() * ~squares).sum(dim=1) / (~squares).sum(dim=1)  # [B*V, D]
        return StepOutput(loss, batch_collapse(means.view(*views.shape[:2], -1)))

    def reconstruct(self, batch: Batch) -> Reconstruction:
        """Return the predictions of the squares that those of the next image replace."""
        images, mask = batch.views["global"][:, 0], batch.extras["global.mask"][:, 0]
        _, pixels, _ = self._predict(images, images.roll(-1, 0), mask)
        return patch_reconstruction(images, mask.flatten(1), pixels, self.side, self.config.is_normalised)

    def _predict(self, images: Tensor, others: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tokens of the mixes [N, L, D], and pixels of all squares of both images [N, L, p*p*C].

        Args:
            images, others: images [N, C, H, W].
            mask: bool [N, h, w], True where the mix has the other image.
        """
        pixels = mask.repeat_interleave(self.side, dim=1).repeat_interleave(self.side, dim=2)[:, None]  # [N, 1, H, W]
        h = self.backbone.grouped_map(torch.where(pixels, others, images), mask)  # [N, D, h, w]
        tokens = h.flatten(2).transpose(1, 2)  # [N, L, D]
        first, second = self.decoder(tokens, mask).chunk(2)
        return tokens, first, second


class Decoder(nn.Module):
    """From the tokens of mixed images to the pixels of each of the two.

    Args:
        config: settings of the method.
        side: side of a square in pixels.
        backbone: network that the tokens come from.
    """

    positions: Tensor

    def __init__(self, config: MixMIM.Config, side: int, backbone: Backbone) -> None:
        super().__init__()
        width, grid = config.decoder_width, config.views.size // side
        self.grid = (grid, grid)
        self.embed = nn.Linear(backbone.feature_dim, width)
        self.mask_token = nn.Parameter(torch.empty(width))
        self.register_buffer("positions", sincos_positions(grid, grid, width, num_prefix=0))
        self.blocks = nn.ModuleList(
            Block(width, config.decoder_heads, norm_eps=NORM_EPS) for _ in range(config.decoder_depth)
        )
        self.norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.pixels = nn.Linear(width, backbone.in_channels * side**2)
        init_linear(self, "mae")
        nn.init.trunc_normal_(self.mask_token, std=0.02)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the pixels of all squares [2 N, L, p*p*C], in the order of `patchify`: of the N images, then of the
        others that they are mixed with.

        Args:
            tokens: tokens of the mixes [N, L, D].
            mask: bool [N, h, w], True where a token is of the other image.
        """
        x, is_other = self.embed(tokens), mask.flatten(1)[:, :, None]  # [N, L, W], [N, L, 1]
        hidden = self.mask_token.to(x.dtype)
        # each image by itself, with a learned vector in place of the other's tokens
        x = torch.cat([torch.where(is_other, hidden, x), torch.where(is_other, x, hidden)])  # [2 N, L, W]
        x = x + resize_positions(self.positions, self.grid, (mask.shape[1], mask.shape[2]))
        for block in self.blocks:
            x = block(x)
        return self.pixels(self.norm(x))  # type: ignore[no-any-return]


def next_rows(rows: Tensor) -> Tensor:
    """Return the row behind each one in the batch of all ranks, and the first behind the last; without gradients.

    >>> next_rows(torch.tensor([5, 6, 7])).tolist()  # one process
    [6, 7, 5]
    """
    counts, rank = dist.row_shares(rows), dist.rank()
    holders = [number for number, count in enumerate(counts) if count]
    sent, received = [0] * len(counts), [0] * len(counts)
    if counts[rank]:
        at = holders.index(rank)
        # the first row of a rank follows the last one of the rank before it
        sent[holders[at - 1]] = received[holders[(at + 1) % len(holders)]] = 1
    following = dist.exchange_rows(rows[:1], sent, received)
    return torch.cat([rows[1:], following])


def _square_side(setup: Setup) -> int:
    """Return the side in pixels of a square.

    Raises:
        ConfigError: if the backbone cannot keep squares apart, or they do not cover a view.
    """
    backbone, size = setup.config.backbone, setup.method.views.size
    side: int | None = resolve("backbone", backbone.name).without_weights(backbone).map_stride
    if side is None:
        raise ConfigError(
            f"backbone {backbone.name!r} cannot keep two images apart in one, and MixMIM mixes them; set backbone=swin"
        )
    if rest := size % side:
        ways = [str(width) for width in (size - rest, size - rest + side) if width]
        raise ConfigError(
            f"views of {size} pixels are not covered by squares of {side}, a place of the backbone's last map each; "
            f"set {find_size_setting(setup.config, size)}={' or '.join(ways)}, or a backbone with fewer stages "
            "(backbone.depths) or smaller patches"
        )
    return side
