"""Swin transformers (Liu et al. 2021, arXiv 2103.14030), also those of MixMAE, with their authors' names."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.config.ranges import NotEmpty, ViewSide, Width, Within
from raysl.config.schema import BackboneConfig
from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.backbones.init import init_linear
from raysl.nn.backbones.positions import resize_positions, sincos_positions
from raysl.nn.backbones.windows import SwinBlock, Windows

SIZES: dict[str, tuple[int, tuple[int, ...]]] = {
    "tiny": (96, (2, 2, 6, 2)),
    "small": (96, (2, 2, 18, 2)),
    "base": (128, (2, 2, 18, 2)),
    "large": (192, (2, 2, 18, 2)),
    "huge": (352, (2, 2, 18, 2)),
}


class Swin(Backbone):
    """A Swin transformer without its classifier: attention inside windows, on maps that halve from stage to stage.

    Patches of `patch_size` pixels become tokens. Each stage but the last ends by merging 2 x 2 tokens into one of twice
    the width. Features are the mean of the last map, after a layer norm. Maps that windows do not cover are padded with
    places that nobody attends to, so images of any size fit; a map smaller than its window is a window of its own.

    >>> swin = Swin(Swin.Config(width=32, depths=(2, 2), windows=(4,), image_size=32))
    >>> swin(torch.zeros(2, 3, 32, 32)).shape, swin.stages(torch.zeros(2, 3, 32, 48), ["norm"])["norm"].shape
    (torch.Size([2, 64]), torch.Size([2, 64, 4, 6]))
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(BackboneConfig):
        """Settings of a Swin; the defaults are those of its paper's Swin-T."""

        name: str = "swin"
        size: Literal["tiny", "small", "base", "large", "huge"] = "tiny"
        """Width of the first stage and blocks of each stage: tiny 96 and 2, 2, 6, 2; small 96, base 128 and large 192
        with 2, 2, 18, 2 as in the paper; huge 352 with as many as in MixMAE."""
        width: Width | None = None
        """Channels of a token in the first stage; each further stage doubles them. Default: by size."""
        depths: Annotated[tuple[Annotated[int, Within(1, 1000)], ...], NotEmpty()] | None = None
        """Blocks of each stage. Default: by size."""
        head_dim: Annotated[int, Within(1, 65_536)] = 32
        """Channels of a head of attention, which divide the width."""
        windows: Annotated[tuple[Annotated[int, Within(1, 1024)], ...], NotEmpty()] = (7,)
        """Side of the windows of each stage, in tokens; one number is for all stages. A window is at most as large as
        the map of images of `image_size`."""
        shift: bool = True
        """Shift the windows of every second block by half their side; MixMAE has large windows and no shift."""
        patch_size: Annotated[int, Within(1, 1024)] = 4
        """Side of a patch in pixels."""
        image_size: ViewSide = 224
        """Side in pixels of the images that windows and positions are made for. Follows the size of the method's views
        unless it is given."""
        position: Literal["none", "sincos"] = "none"
        """Position embeddings beside the relative positions in each window: none, or fixed sines and cosines as in
        MixMAE, which are interpolated for images of other sizes."""
        drop_path: Annotated[float, Within(0, 1, below=True)] = 0.0
        """Rate at which training drops the last block for a sample; it rises linearly from 0 at the first block."""
        init: Literal["timm", "mae"] = "timm"
        """Initial weights of linear layers: normal with deviation 0.02, as in the authors' and timm's code, or Xavier's
        uniform ones, as in MAE's and MixMAE's."""

    map_stride: int
    absolute_pos_embed: Tensor | None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        width, depths, windows = _dimensions(config)
        last = width * 2 ** (len(depths) - 1)
        self.feature_dim, self.native_size = last, config.image_size
        self.map_stride = config.patch_size * 2 ** (len(depths) - 1)
        side = -(-config.image_size // config.patch_size)
        self.native_grid = (side, side)
        self.patch_embed = PatchEmbed(width, config.patch_size, config.in_channels)
        positions = None
        if config.position == "sincos":
            # on the device of the weights, which have no values on the meta device
            positions = sincos_positions(side, side, width, num_prefix=0).to(self.patch_embed.proj.weight.device)
        self.register_buffer("absolute_pos_embed", positions)
        total = sum(depths)
        rates = [config.drop_path * number / max(total - 1, 1) for number in range(total)]
        layers = []
        for number, (depth, window) in enumerate(zip(depths, windows, strict=True)):
            first = sum(depths[:number])
            layers.append(
                SwinStage(
                    width * 2**number,
                    heads=width * 2**number // config.head_dim,
                    # a map of the native size is rounded up where stages before it have odd sides
                    window=min(window, -(-side // 2**number)),
                    rates=rates[first : first + depth],
                    first=first,
                    has_shift=config.shift,
                    is_last=number == len(depths) - 1,
                )
            )
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(last)
        init_linear(self, config.init)

    @property
    def stage_widths(self) -> dict[str, int]:
        """Channels of `stage1` to the last stage, `norm` and `mean`."""
        widths = {name: layer.width for name, layer in self._named_layers().items()}
        return widths | {"norm": self.feature_dim, "mean": self.feature_dim}

    @property
    def feature_stages(self) -> tuple[str, ...]:
        """The stage that `forward` returns: `mean`."""
        return ("mean",)

    def units(self) -> dict[str, list[nn.Module]]:
        """Return the blocks of each stage."""
        return {name: list(layer.blocks) for name, layer in self._named_layers().items()}

    def no_decay(self) -> set[str]:
        """Return the tables of relative positions."""
        return {name for name, _ in self.named_parameters() if name.endswith("relative_position_bias_table")}

    @property
    def num_layers(self) -> int:
        """Number of blocks in all stages; the embedding of patches is layer 0."""
        return sum(len(layer.blocks) for layer in self._named_layers().values())

    def layer_of(self, name: str) -> int:
        """Return 0 for `patch_embed`, i + 1 for the block after i others in all stages, the layer of the next block for
        a merge of tokens (the code of MixMAE), and L + 1 for the final norm, as in a ViT."""
        parts = name.split(".")
        if parts[0] != "layers":
            return self.num_layers + 1 if parts[0] == "norm" else 0
        depths = [len(layer.blocks) for layer in self._named_layers().values()]
        stage = int(parts[1])
        return sum(depths[:stage]) + (int(parts[3]) if parts[2] == "blocks" else depths[stage]) + 1

    def forward(self, images: Tensor) -> Tensor:
        """Return features [B, feature_dim] of normalised images [B, 3, H, W]."""
        return self.stages(images, ["mean"])["mean"]

    def stages(self, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """Return inner features by name, in the order of `names`; nothing is computed beyond the deepest one.

        Args:
            images: normalised images [B, 3, H, W].
            names: `stage1` to the last stage, before tokens are merged, and `norm`, the last one after the final layer
                norm: maps [B, C, h, w]; `mean`: the mean of `norm` over its places [B, C].
        """
        known = self.stages_up_to(names)
        outputs = self._run(images, known[: len(self.layers)]) if known else {}
        if len(known) > len(self.layers):
            x = self.norm(outputs[known[len(self.layers) - 1]])  # [B, h, w, C]
            outputs |= {"norm": x, "mean": x.mean(dim=(1, 2))}
        return {name: outputs[name] if name == "mean" else outputs[name].permute(0, 3, 1, 2) for name in names}

    def grouped_map(self, images: Tensor, groups: Tensor) -> Tensor:
        """Return the map `norm` [B, C, h, w] of images whose squares attend to those of their group alone, see
        `Backbone.grouped_map`."""
        height, width = (side // self.map_stride for side in images.shape[2:])
        is_whole = (height * self.map_stride, width * self.map_stride) == tuple(images.shape[2:])
        if not is_whole or groups.shape != (len(images), height, width):
            raise ValueError(
                f"groups {list(groups.shape)} do not fit images {list(images.shape)}; give one for each square of "
                f"{self.map_stride} pixels, which have to cover the images"
            )
        names = list(self._named_layers())
        return self.norm(self._run(images, names, groups)[names[-1]]).permute(0, 3, 1, 2)  # type: ignore[no-any-return]

    def _named_layers(self) -> "dict[str, SwinStage]":
        return {f"stage{number}": layer for number, layer in enumerate(self.layers, start=1)}  # type: ignore[misc]

    def _run(self, images: Tensor, names: Sequence[str], groups: Tensor | None = None) -> dict[str, Tensor]:
        """Return the outputs of the first stages by name [B, h, w, C]."""
        x = self.patch_embed(images)  # [B, h, w, C]
        if self.absolute_pos_embed is not None:
            grid = (x.shape[1], x.shape[2])
            x = x + resize_positions(self.absolute_pos_embed, self.native_grid, grid).view(1, *grid, -1)
        outputs: dict[str, Tensor] = {}
        for name, layer in zip(names, self._named_layers().values(), strict=False):
            outputs[name] = layer(x, groups)
            if name != names[-1]:
                x = layer.downsample(outputs[name])
        return outputs


class PatchEmbed(nn.Module):
    """Maps each patch of an image to a normalised token: [B, C, H, W] to [B, h, w, D]; zeros pad the images to whole
    patches."""

    def __init__(self, width: int, patch_size: int, in_channels: int = 3) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_channels, width, patch_size, patch_size)
        self.norm = nn.LayerNorm(width)

    def forward(self, images: Tensor) -> Tensor:
        """Return the tokens of each place."""
        down, right = (-side % self.patch_size for side in images.shape[2:])
        padded = F.pad(images, (0, right, 0, down)) if down or right else images
        return self.norm(self.proj(padded).permute(0, 2, 3, 1))  # type: ignore[no-any-return]


class PatchMerging(nn.Module):
    """Merges 2 x 2 tokens into one of twice the width: [B, h, w, C] to [B, h/2, w/2, 2 C], rounded up."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the merged tokens."""
        down, right = x.shape[1] % 2, x.shape[2] % 2
        x = F.pad(x, (0, 0, 0, right, 0, down)) if down or right else x
        # first the left two of the four tokens, from above
        four = torch.cat([x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)], dim=3)
        return self.reduction(self.norm(four))  # type: ignore[no-any-return]


class SwinStage(nn.Module):
    """Blocks on maps of one size [B, h, w, C], and behind them `downsample`, the merge of tokens for the next stage.

    Args:
        width: channels of a token.
        window: largest side of a window.
        rates: rates of drop path, one for each block.
        first: number of blocks in earlier stages.
        has_shift: whether every second block shifts its windows.
        is_last: whether no tokens are merged.
    """

    def __init__(
        self, width: int, heads: int, window: int, rates: Sequence[float], first: int, has_shift: bool, is_last: bool
    ) -> None:
        super().__init__()
        self.width, self.window, self.has_shift = width, window, has_shift
        self.blocks = nn.ModuleList(
            SwinBlock(width, heads, window, rate, first + number) for number, rate in enumerate(rates)
        )
        self.downsample = nn.Identity() if is_last else PatchMerging(width)

    def forward(self, x: Tensor, groups: Tensor | None = None) -> Tensor:
        """Return the map behind the last block; places attend to those of their group alone.

        Args:
            x: map [B, h, w, C].
            groups: group of each square of the map, [B, h', w'], of which h and w are multiples. Default: one group.
        """
        size = (x.shape[1], x.shape[2])
        if groups is not None:
            cells = [side // num for side, num in zip(size, groups.shape[1:], strict=True)]
            groups = groups.repeat_interleave(cells[0], dim=1).repeat_interleave(cells[1], dim=2)  # [B, h, w]
        plain = Windows.of(size, self.window, False, groups, x.device)
        shifted = Windows.of(size, self.window, True, groups, x.device) if self.has_shift else plain
        for number, block in enumerate(self.blocks):
            x = block(x, shifted if number % 2 else plain)
        return x


def _dimensions(config: Swin.Config) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return the first width, the blocks and the windows of each stage; raise ConfigError if they do not fit."""
    wide, deep = SIZES[config.size]
    width, depths = config.width or wide, config.depths or deep
    if width % config.head_dim:
        near = max(round(width / config.head_dim), 1) * config.head_dim
        raise ConfigError(
            f"backbone.width {width} is not a multiple of backbone.head_dim {config.head_dim}; try width={near}"
        )
    if config.position == "sincos" and width % 4:
        raise ConfigError(
            f"backbone.position=sincos needs a width that is a multiple of 4, not {width}; try {width // 4 * 4 + 4}"
        )
    windows = config.windows * len(depths) if len(config.windows) == 1 else config.windows
    if len(windows) != len(depths):
        raise ConfigError(
            f"backbone.windows has {len(windows)} sides for {len(depths)} stages (backbone.depths); give one for each, "
            "or one for all"
        )
    return width, depths, windows
