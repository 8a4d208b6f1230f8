"""Vision transformers (Dosovitskiy et al. 2020, arXiv 2010.11929) with timm's names, so that its weights load."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.config.ranges import Positive, ViewSide, Width, Within
from raysl.config.schema import BackboneConfig
from raysl.errors import ConfigError
from raysl.nn.backbones.attention import Block
from raysl.nn.backbones.backbone import TokenBackbone, uncovered
from raysl.nn.backbones.init import Init, init_vit
from raysl.nn.backbones.positions import Resize, resize_positions, sincos_positions

SIZES: dict[str, tuple[int, int, int]] = {
    "nano": (96, 4, 3),
    "tiny": (192, 12, 3),
    "small": (384, 12, 6),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
}


class PatchEmbed(nn.Module):
    """Patches of images, each mapped to a token: [B, 3, H, W] to [B, h*w, D]."""

    def __init__(self, width: int, patch_size: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch_size, patch_size)

    def forward(self, images: Tensor) -> Tensor:
        """The tokens, row by row."""
        return self.proj(images).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]


LAST_BLOCKS = (1, 4)
"""Numbers of last blocks whose class tokens the stages `last1` and `last4` have, those of DINOv2 (appendix B.3)."""


class ViT(TokenBackbone):
    """A ViT without its classifier; features are its class token, the mean of its patches, or both.

    Pre-norm blocks and a last layer norm. The tokens are the class token, the registers (arXiv 2309.16588), which have
    no position, and the patches row by row. Without registers the state dict is that of timm's and DeiT's ViTs of the
    same `image_size`, less `head.*`. Images of other sizes than that get interpolated positions.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(BackboneConfig):
        """Settings of a ViT."""

        name: str = "vit"
        size: Literal["nano", "tiny", "small", "base", "large"] = "small"
        """Width, blocks and heads: nano 96, 4, 3 for small images; tiny 192, 12, 3 and small 384, 12, 6 as in DeiT;
        base 768, 12, 12 and large 1024, 24, 16 as in the paper."""
        width: Width | None = None
        """Channels of a token. Default: by size."""
        depth: Annotated[int, Within(1, 1000)] | None = None
        """Blocks. Default: by size."""
        heads: Annotated[int, Within(1, 1024)] | None = None
        """Heads of each attention; they share the width. Default: by size, fewer where they do not divide the width."""
        patch_size: Annotated[int, Within(1, 1024)] = 16
        """Side of a patch in pixels; sides of images are multiples of it."""
        image_size: ViewSide = 224
        """Side of the images that the position embeddings are made for, in pixels; others get them interpolated.
        Follows the size of the method's views unless it is given."""
        position: Literal["learned", "sincos"] = "learned"
        """Position embeddings: weights, or fixed sines and cosines as in MAE."""
        position_resize: Resize = "antialias"
        """How they are resized for images of other sizes, bicubically: with antialiasing, as in timm; plainly without,
        as in MSN; or as in DINO, iBOT and DINOv2, without, and as if the new grid were a tenth of a patch longer."""
        num_registers: Annotated[int, Within(0, 1024)] = 0
        """Tokens beside the class token that stand for no patch."""
        mask_token: bool = False
        """Have a learned token for masked patches; methods that replace patches need it, MAE leaves them out."""
        output: Literal["class", "mean", "class_mean"] = "class"
        """Features: the class token, the mean of the patches, or one behind the other, twice as wide."""
        drop_path: Annotated[float, Within(0, 1, below=True)] = 0.0
        """Rate at which the last block is left out of a sample in training; from 0 at the first it rises linearly."""
        drop_path_uniform: bool = False
        """Leave out all blocks at the rate of the last one (DINOv2)."""
        layer_scale: Positive | None = None
        """First value of a learned factor a channel behind attention and MLP, such as 1e-5. Default: no factors."""
        mlp: Literal["gelu", "swiglu"] = "gelu"
        """What follows attention in a block: two layers with GELU between them, four times as wide inside, or a gated
        one of about as many weights (SwiGLU, arXiv 2002.05202), as in DINOv2 from scratch."""
        init: Init = "timm"
        """Initial weights: those of timm's code, DeiT's and DINO's too, or of the code of the paper that it names; beit
        is SimMIM's and data2vec's."""
        qkv_bias: bool = True
        """Have a bias in queries, keys and values."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        width, depth, heads = _dimensions(config)
        self.patch_size = config.patch_size
        self.token_dim = width
        self.num_heads = heads
        self.num_prefix_tokens = 1 + config.num_registers
        self.feature_dim = 2 * width if config.output == "class_mean" else width
        self.native_size = config.image_size
        side = config.image_size // config.patch_size
        self.native_grid = (side, side)
        self.patch_embed = PatchEmbed(width, config.patch_size)
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        if config.position == "learned":
            self.pos_embed: Tensor = nn.Parameter(torch.empty(1, 1 + side**2, width))
        else:
            self.register_buffer("pos_embed", sincos_positions(side, side, width))
        self.reg_token = nn.Parameter(torch.empty(1, config.num_registers, width)) if config.num_registers else None
        self.mask_token = nn.Parameter(torch.empty(1, 1, width)) if config.mask_token else None
        rates = [config.drop_path * number / max(depth - 1, 1) for number in range(depth)]
        if config.drop_path_uniform:
            rates = [config.drop_path] * depth
        self.blocks = nn.ModuleList(
            Block(width, heads, config.qkv_bias, config.layer_scale, rate, number, config.mlp)
            for number, rate in enumerate(rates)
        )
        self.norm = nn.LayerNorm(width, eps=1e-6)
        init_vit(self, config.init)

    @classmethod
    def check_side(cls, config: Any, side: int) -> None:
        """Refuse images that patches do not cover exactly.

        Raises:
            ConfigError: with sizes that they cover.
        """
        if problem := uncovered(side, config.patch_size):
            raise ConfigError(problem)

    @property
    def stage_widths(self) -> dict[str, int]:
        """Channels of `block1` to the last block, `norm`, `class`, `mean`, `last1` and, from 4 blocks on, `last4`."""
        names = [*(f"block{number + 1}" for number in range(len(self.blocks))), "norm", "class", "mean"]
        widths = {f"last{num}": (num + 1) * self.token_dim for num in LAST_BLOCKS if num <= len(self.blocks)}
        return dict.fromkeys(names, self.token_dim) | widths

    def units(self) -> dict[str, list[nn.Module]]:
        """The blocks `block1` to the last one."""
        return {f"block{number + 1}": [block] for number, block in enumerate(self.blocks)}

    def no_decay(self) -> set[str]:
        """The class, register and mask tokens and the learned position embeddings."""
        return {name for name, _ in self.named_parameters(recurse=False)}

    @property
    def feature_stages(self) -> tuple[str, ...]:
        """What `forward` gives: `class`, `mean` or both."""
        return ("class", "mean") if self.config.output == "class_mean" else (self.config.output,)

    @property
    def num_layers(self) -> int:
        """Blocks; embeddings and tokens are layer 0."""
        return len(self.blocks)

    def layer_of(self, name: str) -> int:
        """0 for `patch_embed`, tokens and positions, i + 1 for `blocks.`i; the last norm is of the last block."""
        part, _, rest = name.partition(".")
        if part == "blocks":
            return int(rest.partition(".")[0]) + 1
        return self.num_layers if part == "norm" else 0

    def forward(self, images: Tensor) -> Tensor:
        """Features [B, feature_dim] of normalised images [B, 3, H, W]."""
        tokens = self.tokens(images)
        return torch.cat([self._pooled(tokens, kind) for kind in self.feature_stages], dim=1)  # [B, feature_dim]

    def tokens(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """All tokens behind the last layer norm [B, num_prefix_tokens + h*w, D], see `TokenBackbone`."""
        return self._encoded(self._placed(images, mask))

    def visible_tokens(self, images: Tensor, keep: Tensor, is_visible: Tensor | None = None) -> Tensor:
        """Tokens of some patches behind the last layer norm [B, num_prefix_tokens + K, D], see `TokenBackbone`."""
        x = self._placed(images)
        patches = x[:, self.num_prefix_tokens :]
        kept = patches.gather(1, keep[:, :, None].expand(-1, -1, self.token_dim))  # [B, K, D]
        is_key = None if is_visible is None else F.pad(is_visible, (self.num_prefix_tokens, 0), value=True)
        return self._encoded(torch.cat([x[:, : self.num_prefix_tokens], kept], dim=1), is_key)

    def stages(self, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """Inner features by name, in the order asked for; nothing is computed beyond the deepest one.

        Args:
            images: normalised images [B, 3, H, W].
            names: of `block1` to the last block, and `norm`, behind the last layer norm: all tokens
                [B, num_prefix_tokens + h*w, D]; `class` and `mean`: the class token and the mean of the patches of
                `norm` [B, D]; `last1` and `last4`: the class tokens of the last 1 or 4 blocks, each behind the last
                layer norm, and `mean`, side by side [B, 2 D] and [B, 5 D], as DINOv2's linear evaluation has them
                (`create_linear_input` of its code).

        Raises:
            ValueError: if a name is no stage of this network; the message lists those that are.
        """
        known = list(self.stage_widths)
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"no stage {unknown[0]!r} in this ViT; its stages: {', '.join(known)}")
        found: dict[str, Tensor] = {}
        deepest = max((known.index(name) for name in names), default=-1)
        x = self._placed(images)
        class_tokens: list[Tensor] = []
        for name, block in zip(known, self.blocks[: deepest + 1], strict=False):
            x = block(x)
            class_tokens.append(x[:, 0])
            if name in names:
                found[name] = x
        if deepest >= len(self.blocks):
            x = self.norm(x)
            found |= {"norm": x, "class": self._pooled(x, "class"), "mean": self._pooled(x, "mean")}
            for num in LAST_BLOCKS:
                if f"last{num}" in names:
                    found[f"last{num}"] = torch.cat([*map(self.norm, class_tokens[-num:]), found["mean"]], dim=1)
        return {name: found[name] for name in names}

    def _placed(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """The tokens that the first block gets [B, num_prefix_tokens + h*w, D]."""
        grid = self.grid(images)
        patches = self.patch_embed(images)  # [B, h*w, D]
        if mask is not None:
            patches = self._masked(patches, mask, grid)
        first = self.cls_token + self.pos_embed[:, :1]
        if self.mask_token is not None:
            first = first + 0 * self.mask_token  # a gradient in steps without a mask too: DDP waits for one
        prefix = [first] if self.reg_token is None else [first, self.reg_token]
        places = resize_positions(self.pos_embed[:, 1:], self.native_grid, grid, self.config.position_resize)
        patches = patches + places
        return torch.cat([*(token.expand(len(images), -1, -1) for token in prefix), patches], dim=1)

    def _masked(self, patches: Tensor, mask: Tensor, grid: tuple[int, int]) -> Tensor:
        if self.mask_token is None:
            raise ValueError("this ViT has no token for masked patches; set backbone.mask_token=true")
        if tuple(mask.shape) != (len(patches), *grid):
            raise ValueError(
                f"mask {list(mask.shape)} is not that of {len(patches)} images of {grid[0]}x{grid[1]} patches"
            )
        return torch.where(mask.flatten(1)[:, :, None], self.mask_token, patches)

    def _encoded(self, x: Tensor, is_key: Tensor | None = None) -> Tensor:
        for block in self.blocks:
            x = block(x, is_key)
        return self.norm(x)  # type: ignore[no-any-return]

    def _pooled(self, tokens: Tensor, kind: str) -> Tensor:
        return tokens[:, 0] if kind == "class" else tokens[:, self.num_prefix_tokens :].mean(dim=1)


def _dimensions(config: ViT.Config) -> tuple[int, int, int]:
    """Width, depth and heads of settings that make a network; ConfigError of others."""
    wide, deep, many = SIZES[config.size]
    width, depth = config.width or wide, config.depth or deep
    heads = config.heads or math.gcd(width, many)
    if width % heads:
        fit = [number for number in range(1, width + 1) if width % number == 0]
        near = min(fit, key=lambda number: abs(number - heads))
        raise ConfigError(f"backbone.width {width} is no multiple of backbone.heads {heads}; try heads={near}")
    if config.image_size % config.patch_size:
        near = max(round(config.image_size / config.patch_size), 1) * config.patch_size
        raise ConfigError(
            f"backbone.image_size {config.image_size} is no multiple of backbone.patch_size {config.patch_size}; "
            f"try image_size={near}"
        )
    if config.position == "sincos" and width % 4:
        raise ConfigError(
            f"backbone.position=sincos needs a width that is a multiple of 4, not {width}; try {width // 4 * 4 + 4}"
        )
    return width, depth, heads
