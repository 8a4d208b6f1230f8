"""Vision transformers (Dosovitskiy et al. 2020, arXiv 2010.11929) with timm's names, so that its weights load."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.config.ranges import Amount, Positive, ViewSide, Width, Within
from raysl.config.schema import BackboneConfig
from raysl.errors import ConfigError
from raysl.nn.backbones.attention import Block
from raysl.nn.backbones.backbone import TokenBackbone, uncovered
from raysl.nn.backbones.init import Init, init_vit
from raysl.nn.backbones.palette import PaletteEmbed
from raysl.nn.backbones.positions import (
    Resize,
    RotaryPositions,
    resize_positions,
    rotation_at,
    sincos_positions,
)
from raysl.nn.backbones.relative import Offsets, RelativePositions, relative_index
from raysl.nn.patch_drop import PatchDrop

SIZES: dict[str, tuple[int, int, int]] = {
    "nano": (96, 4, 3),
    "tiny": (192, 12, 3),
    "small": (384, 12, 6),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
}
Layout = tuple[Tensor | None, Offsets | Tensor | None]
"""Rotations and offsets of tokens, the last arguments of a block."""
LAST_BLOCKS = (1, 4)
"""Numbers of last blocks whose class tokens form the stages `last1` and `last4` (DINOv2, appendix B.3)."""


class PatchEmbed(nn.Module):
    """Maps each patch of an image to a token: [B, C, H, W] to [B, h*w, D]."""

    def __init__(self, width: int, patch_size: int, in_channels: int = 3) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, width, patch_size, patch_size)

    def forward(self, images: Tensor) -> Tensor:
        """Return the tokens, row by row."""
        return self.proj(images).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]


class ViT(TokenBackbone):
    """A ViT without its classifier; features are its class token, the mean of its patches, or both.

    Pre-norm blocks and a final layer norm. The tokens are the class token, the registers (arXiv 2309.16588), which have
    no position, and the patches row by row. Without registers the state dict is that of timm's and DeiT's ViTs of the
    same `image_size`, without `head.*`. Images of other sizes get interpolated positions.

    >>> vit = ViT(ViT.Config(size="nano", patch_size=8, image_size=32))
    >>> vit(torch.zeros(2, 3, 32, 32)).shape, vit.tokens(torch.zeros(2, 3, 32, 48)).shape
    (torch.Size([2, 96]), torch.Size([2, 25, 96]))
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
        """Heads of each attention, which share the width. Default: by size, fewer if they do not divide the width."""
        patch_size: Annotated[int, Within(1, 1024)] = 16
        """Side of a patch in pixels; sides of images are multiples of it."""
        image_size: ViewSide = 224
        """Side in pixels of the images that position embeddings are made for; they are interpolated for others. Follows
        the size of the method's views unless it is given."""
        position: Literal["learned", "sincos", "rope", "relative"] = "learned"
        """Position embeddings: trained; fixed sines and cosines as in MAE; or none, and queries and keys turned by the
        place of their patch instead, as in DINOv3 and CAPI; or none, and trained numbers for each offset between two
        patches added to the logits of attention, as in BEiT, data2vec and SimMIM."""
        relative_shared: bool = False
        """Have one table of these numbers for all blocks, as those papers pre-train, instead of one in each, as they
        fine-tune."""
        rope_base: Annotated[float, Within(1, 1e6)] = 100.0
        """Base of the periods of these rotations."""
        rope_turns: Positive = 2.0
        """Turns of the fastest of these rotations over an image; 7 in CAPI."""
        rope_shift: Amount = 0.0
        """Largest random move of a view's places along each axis in training, where the image goes from -1 to 1."""
        rope_jitter: Annotated[float, Within(1, 100)] = 1.0
        """Largest random factor of each axis of these places in training, up or down."""
        rope_rescale: Annotated[float, Within(1, 100)] = 1.0
        """Largest random factor of both axes together, up or down; 2 in DINOv3, whose code draws it for each block and
        all images of a batch."""
        position_resize: Resize = "antialias"
        """How they are resized for images of other sizes, bicubically: with antialiasing, as in timm; plain, as in MSN;
        or plain as if the new grid were a tenth of a patch longer, as in DINO, iBOT and DINOv2."""
        num_registers: Annotated[int, Within(0, 1024)] = 0
        """Number of extra tokens beside the class token and the patches."""
        mask_token: bool = False
        """Have a learned token for masked patches, for methods that replace them; MAE drops them instead."""
        output: Literal["class", "mean", "class_mean", "classes"] = "class"
        """Features: the class token, the mean of the patches, both concatenated, twice as wide, or the mean of the
        class token and the registers, which are class tokens too in Pixio."""
        drop_path: Annotated[float, Within(0, 1, below=True)] = 0.0
        """Rate at which training drops the last block for a sample; it rises linearly from 0 at the first block."""
        drop_path_uniform: bool = False
        """Drop all blocks at the rate of the last one (DINOv2)."""
        layer_scale: Positive | None = None
        """Initial value of a learned factor per channel after attention and MLP, such as 1e-5. Default: no factors."""
        mlp: Literal["gelu", "swiglu"] = "gelu"
        """MLP of a block: two layers with GELU between them and four times the width, or a gated one with about as many
        weights (SwiGLU, arXiv 2002.05202), as in DINOv2 from scratch."""
        init: Init = "timm"
        """Initial weights: those of timm's code, also DeiT's and DINO's, or of the named paper's code; beit is also
        SimMIM's and data2vec's."""
        qkv_bias: bool = True
        """Have a bias in queries, keys and values."""
        qk_norm: bool = False
        """Normalise each head's queries and keys to mean 0 and variance 1 before they are compared, as in NEPA."""
        palette: Annotated[int, Within(2, 65_536)] | None = None
        """Number of colours, each with an embedding, in place of the linear map of patches: a pixel is a token of its
        colour, as in iGPT, which finds the colours; patches are of 1 pixel. Default: no palette."""
        causal: bool = False
        """Have each token see itself and those before it alone, in training and in use, as in iGPT."""
        norm_eps: Positive = 1e-6
        """Added to the variance by layer norms; 1e-5 in DINOv3's published networks."""

    pos_embed: Tensor | None
    rope: RotaryPositions | None
    rel_pos_bias: RelativePositions | None

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
        self.patch_embed: nn.Module = (
            PatchEmbed(width, config.patch_size, config.in_channels)
            if config.palette is None
            else PaletteEmbed(width, config.palette)
        )
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        self.rope, self.rel_pos_bias, own_grid = None, None, None
        if config.position == "learned":
            self.pos_embed = nn.Parameter(torch.empty(1, 1 + side**2, width))
        elif config.position == "sincos":
            self.register_buffer("pos_embed", sincos_positions(side, side, width))
        elif config.position == "relative":
            self.pos_embed = None
            if config.relative_shared:
                self.rel_pos_bias = RelativePositions(self.native_grid, heads)
            else:
                own_grid = self.native_grid
        else:
            self.pos_embed = None
            moves = config.rope_shift, config.rope_jitter, config.rope_rescale
            self.rope = RotaryPositions(
                width // heads, config.rope_base, *moves, slot=2 * depth, turns=config.rope_turns
            )
        self.reg_token = nn.Parameter(torch.empty(1, config.num_registers, width)) if config.num_registers else None
        self.mask_token = nn.Parameter(torch.empty(1, 1, width)) if config.mask_token else None
        rates = [config.drop_path * number / max(depth - 1, 1) for number in range(depth)]
        if config.drop_path_uniform:
            rates = [config.drop_path] * depth
        kind = config.mlp, config.norm_eps, own_grid, config.qk_norm
        self.blocks = nn.ModuleList(
            Block(width, heads, config.qkv_bias, config.layer_scale, rate, number, *kind)
            for number, rate in enumerate(rates)
        )
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        # behind the slots of the blocks, 2 for each, and the 5 of the rotations
        self.patch_drop = PatchDrop(slot=2 * depth + 5)
        init_vit(self, config.init)

    @classmethod
    def check_side(cls, config: Any, side: int) -> None:
        """Refuse images that patches do not cover exactly."""
        if problem := uncovered(side, config.patch_size):
            raise ConfigError(problem)

    @property
    def stage_widths(self) -> dict[str, int]:
        """Channels of `block1` to the last block, `norm`, `class`, `mean`, `last1`, from 4 blocks on `last4`, and
        `classes` where it is the output."""
        names = [*(f"block{number + 1}" for number in range(len(self.blocks))), "norm", "class", "mean"]
        widths = {f"last{num}": (num + 1) * self.token_dim for num in LAST_BLOCKS if num <= len(self.blocks)}
        also = ["classes"] if self.config.output == "classes" else []
        return dict.fromkeys(names, self.token_dim) | widths | dict.fromkeys(also, self.token_dim)

    def units(self) -> dict[str, list[nn.Module]]:
        """Return the blocks, from `block1` to the last one."""
        return {f"block{number + 1}": [block] for number, block in enumerate(self.blocks)}

    def no_decay(self) -> set[str]:
        """Return class, register and mask tokens, learned position embeddings and tables of relative positions."""
        tables = {name for name, _ in self.named_parameters() if name.endswith("relative_position_bias_table")}
        return tables | {name for name, _ in self.named_parameters(recurse=False)}

    @property
    def feature_stages(self) -> tuple[str, ...]:
        """Stages that `forward` returns: `class`, `mean` or both, or `classes`."""
        return ("class", "mean") if self.config.output == "class_mean" else (self.config.output,)

    @property
    def map_stage(self) -> str:
        """The tokens of which `forward` takes some or a mean, whatever the output is."""
        return "norm"

    @property
    def num_layers(self) -> int:
        """Number of blocks; embeddings and tokens are layer 0."""
        return len(self.blocks)

    def layer_of(self, name: str) -> int:
        """Return 0 for `patch_embed`, tokens and positions, i + 1 for `blocks.`i, and L + 1 for the final norm and a
        table of relative positions for all blocks: they learn at the rate of the heads (the code of BEiT, MAE, DINOv2
        and DINOv3)."""
        part, _, rest = name.partition(".")
        if part == "blocks":
            return int(rest.partition(".")[0]) + 1
        return self.num_layers + 1 if part in ("norm", "rel_pos_bias") else 0

    def forward(self, images: Tensor) -> Tensor:
        """Return features [B, feature_dim] of normalised images [B, 3, H, W], of some patches inside
        `dropping_patches`."""
        keep = self.patch_drop(images, math.prod(self.grid(images))) if self.patch_drop.is_dropping else None
        x = self._embed(images)
        tokens = self._encode(x if keep is None else self._kept(x, keep), self._layout(images, keep))
        return torch.cat([self._pool(tokens, kind) for kind in self.feature_stages], dim=1)  # [B, feature_dim]

    def tokens(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return all tokens after the final layer norm [B, num_prefix_tokens + h*w, D], see `TokenBackbone`."""
        self.patch_drop.check_features()
        return self._encode(self._embed(images, mask), self._layout(images))

    def visible_tokens(self, images: Tensor, keep: Tensor, is_visible: Tensor | None = None) -> Tensor:
        """Return tokens of some patches after the final layer norm [B, num_prefix_tokens + K, D]."""
        self.patch_drop.check_features()
        is_key = None if is_visible is None else F.pad(is_visible, (self.num_prefix_tokens, 0), value=True)
        return self._encode(self._kept(self._embed(images), keep), self._layout(images, keep), is_key)

    def visible_maps(self, images: Tensor, keep: Tensor) -> list[Tensor]:
        """Return tokens of some patches in front of the blocks and behind each of them, see `TokenBackbone`."""
        self.patch_drop.check_features()
        maps, layout = [self._kept(self._embed(images), keep)], self._layout(images, keep)
        for block in self.blocks:
            maps.append(block(maps[-1], None, *layout))
        return maps

    def causal_tokens(self, images: Tensor, is_prefix: Tensor) -> Tensor:
        """Return all tokens after the final layer norm, each of those before it, see `TokenBackbone`."""
        self.patch_drop.check_features()
        x = self._embed(images)
        num_tokens = x.shape[1]
        is_before = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=x.device).tril()
        is_seen = F.pad(is_prefix, (self.num_prefix_tokens, 0), value=True)  # [B, T]
        return self._encode(x, self._layout(images), is_before | is_seen[:, None, :])

    def stages(self, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """Return inner features by name, in the order of `names`; nothing is computed beyond the deepest one.

        Args:
            images: normalised images [B, 3, H, W].
            names: `block1` to the last block, and `norm`, after the final layer norm: all tokens
                [B, num_prefix_tokens + h*w, D]; `class` and `mean`: the class token and the mean of the patches of
                `norm` [B, D]; `last1` and `last4`: the class tokens of the last 1 or 4 blocks, each after the final
                layer norm, and `mean`, concatenated [B, 2 D] and [B, 5 D], as in DINOv2's linear evaluation
                (`create_linear_input` of its code); `classes`, where it is the output: the mean of the class token and
                the registers [B, D].
        """
        self.patch_drop.check_features()
        known = self.stages_up_to(names)
        outputs: dict[str, Tensor] = {}
        x, layout = self._embed(images), self._layout(images)
        class_tokens: list[Tensor] = []
        for name, block in zip(known, self.blocks[: len(known)], strict=False):
            x = block(x, self._visible(x), *layout)
            class_tokens.append(x[:, 0])
            if name in names:
                outputs[name] = x
        if len(known) > len(self.blocks):
            x = self.norm(x)
            outputs |= {"norm": x, "class": self._pool(x, "class"), "mean": self._pool(x, "mean")}
            if "classes" in names:
                outputs["classes"] = self._pool(x, "classes")
            for num in LAST_BLOCKS:
                if f"last{num}" in names:
                    outputs[f"last{num}"] = torch.cat([*map(self.norm, class_tokens[-num:]), outputs["mean"]], dim=1)
        return {name: outputs[name] for name in names}

    def _embed(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the input tokens of the first block [B, num_prefix_tokens + h*w, D]."""
        grid = self.grid(images)
        patches = self.patch_embed(images)  # [B, h*w, D]
        if mask is not None:
            patches = self._replace_masked(patches, mask, grid)
        first: Tensor = self.cls_token
        if self.pos_embed is not None:
            first = first + self.pos_embed[:, :1]
        if self.mask_token is not None:
            # A gradient also in steps without a mask: DDP waits for one.
            first = first + 0 * self.mask_token
        prefix = [first] if self.reg_token is None else [first, self.reg_token]
        if self.pos_embed is not None:
            positions = self.pos_embed[:, 1:]
            patches = patches + resize_positions(positions, self.native_grid, grid, self.config.position_resize)
        return torch.cat([*(token.expand(len(images), -1, -1) for token in prefix), patches], dim=1)

    def _kept(self, x: Tensor, keep: Tensor) -> Tensor:
        """Return the tokens of some patches [B, num_prefix_tokens + K, D] of all tokens, behind the other ones."""
        patches = x[:, self.num_prefix_tokens :]
        visible = patches.gather(1, keep[:, :, None].expand(-1, -1, self.token_dim))  # [B, K, D]
        return torch.cat([x[:, : self.num_prefix_tokens], visible], dim=1)

    def _layout(self, images: Tensor, keep: Tensor | None = None) -> Layout:
        """Return the rotations and offsets of all patches, or of those in `keep` int64 [B, K]."""
        return self._rotation(images, keep), self._offsets(images, keep)

    def _offsets(self, images: Tensor, keep: Tensor | None) -> Offsets | Tensor | None:
        """Return the relative positions of tokens, or the bias that is the same in all blocks [n, heads, T, T]."""
        if self.config.position != "relative":
            return None
        grid, num_prefix = self.grid(images), self.num_prefix_tokens
        index = relative_index(grid, num_prefix, images.device)[None]  # [1, T, T]
        if keep is not None:
            prefix = torch.arange(num_prefix, device=keep.device).expand(len(keep), -1)
            tokens = torch.cat([prefix, keep + num_prefix], dim=1)  # [B, P + K]
            index = index[0][tokens[:, :, None], tokens[:, None, :]]  # [B, P + K, P + K]
        offsets = Offsets(index, grid, self.native_grid, self.config.position_resize)
        return offsets if self.rel_pos_bias is None else offsets.bias(self.rel_pos_bias.relative_position_bias_table)

    def _rotation(self, images: Tensor, keep: Tensor | None = None) -> Tensor | None:
        """Return the rotations of patches, or of those in `keep` int64 [B, K], see `RotaryPositions`."""
        if self.rope is None:
            return None
        rotation: Tensor = self.rope(images, self.grid(images))  # [2, n, h*w, d]
        return rotation if keep is None else rotation_at(rotation, keep)  # [2, B, K, d]

    def _replace_masked(self, patches: Tensor, mask: Tensor, grid: tuple[int, int]) -> Tensor:
        if self.mask_token is None:
            raise ValueError("this ViT has no token for masked patches; set backbone.mask_token=true")
        if tuple(mask.shape) != (len(patches), *grid):
            raise ValueError(
                f"mask {list(mask.shape)} does not fit {len(patches)} images of {grid[0]}x{grid[1]} patches"
            )
        return torch.where(mask.flatten(1)[:, :, None], self.mask_token, patches)

    def _visible(self, x: Tensor) -> Tensor | None:
        """Return which tokens each token of a causal network sees, bool [1, T, T]; else None."""
        if not self.config.causal:
            return None
        return torch.ones(1, x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()

    def _encode(self, x: Tensor, layout: Layout, is_key: Tensor | None = None) -> Tensor:
        is_key = self._visible(x) if is_key is None else is_key
        for block in self.blocks:
            x = block(x, is_key, *layout)
        return self.norm(x)  # type: ignore[no-any-return]

    def _pool(self, tokens: Tensor, kind: str) -> Tensor:
        if kind == "class":
            return tokens[:, 0]
        num = self.num_prefix_tokens
        return (tokens[:, :num] if kind == "classes" else tokens[:, num:]).mean(dim=1)


def _dimensions(config: ViT.Config) -> tuple[int, int, int]:
    """Return width, depth and heads; raise ConfigError if they do not fit together."""
    wide, deep, many = SIZES[config.size]
    width, depth = config.width or wide, config.depth or deep
    heads = config.heads or math.gcd(width, many)
    if width % heads:
        fit = [number for number in range(1, width + 1) if width % number == 0]
        near = min(fit, key=lambda number: abs(number - heads))
        raise ConfigError(f"backbone.width {width} is not a multiple of backbone.heads {heads}; try heads={near}")
    if config.image_size % config.patch_size:
        near = max(round(config.image_size / config.patch_size), 1) * config.patch_size
        raise ConfigError(
            f"backbone.image_size {config.image_size} is not a multiple of backbone.patch_size {config.patch_size}; "
            f"try image_size={near}"
        )
    if config.palette is not None and config.patch_size != 1:
        raise ConfigError(
            f"backbone.palette is {config.palette} and backbone.patch_size {config.patch_size}; a colour is that of a "
            "pixel: set patch_size=1"
        )
    if config.palette is not None and config.in_channels != 3:
        raise ConfigError(
            f"backbone.palette is {config.palette} and backbone.in_channels {config.in_channels}; colours are red, "
            "green and blue: set in_channels=3, or leave the palette out"
        )
    if config.position == "rope" and width // heads % 4:
        raise ConfigError(
            f"backbone.position=rope needs heads of a multiple of 4 channels, not width {width} / heads {heads}; try "
            f"width={max(round(width / heads / 4), 1) * 4 * heads}"
        )
    if config.position == "sincos" and width % 4:
        raise ConfigError(
            f"backbone.position=sincos needs a width that is a multiple of 4, not {width}; try {width // 4 * 4 + 4}"
        )
    return width, depth, heads
