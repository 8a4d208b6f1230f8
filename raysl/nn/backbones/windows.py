"""Attention in the windows of a map, as in Swin transformers (Liu et al. 2021, arXiv 2103.14030, section 3.2)."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.nn.backbones.attention import Attention, Mlp
from raysl.nn.backbones.relative import relative_index
from raysl.nn.drop_path import DropPath

PADDING = -1
"""Region of places that pad a map to whole windows."""


class Windows(NamedTuple):
    """The windows of a map.

    Args:
        sides: height and width of a window.
        native: side of the windows that tables of relative positions are made for, at least as long.
        padding: rows and columns that are added below and on the right of the map.
        shift: rows and columns by which the map is moved up and to the left, around its ends.
        is_key: bool [B * n or n, T, T], which tokens of a window each one attends to; None for all.
    """

    sides: tuple[int, int]
    native: int
    padding: tuple[int, int]
    shift: tuple[int, int]
    is_key: Tensor | None

    @classmethod
    def of(
        cls, size: tuple[int, int], window: int, has_shift: bool, groups: Tensor | None, device: torch.device
    ) -> "Windows":
        """Return the windows of maps of a size.

        Args:
            window: side of the windows; those of smaller maps are as large as the map.
            has_shift: whether they are shifted by half their side, along axes with several windows.
            groups: group of each place [B, h, w]; None for one group.
        """
        height, width = (min(window, side) for side in size)
        padding = (-size[0] % height, -size[1] % width)
        shift = tuple(
            side // 2 if has_shift and side < whole else 0
            for side, whole in zip((height, width), (size[0] + padding[0], size[1] + padding[1]), strict=True)
        )
        windows = cls((height, width), window, padding, (shift[0], shift[1]), None)
        if groups is None and not any((*padding, *shift)):
            return windows
        regions = windows._regions(size, groups, device)
        labels = windows.cut(regions[..., None], PADDING)[..., 0]  # [B * n, T]
        return windows._replace(is_key=labels[:, :, None] == labels[:, None, :])

    def _regions(self, size: tuple[int, int], groups: Tensor | None, device: torch.device) -> Tensor:
        """Return the region of each place [B or 1, h, w]; places of different regions do not attend to each other."""
        # a shift brings the first rows and columns into the windows of the last ones, from which they are far
        is_row, is_column = (
            torch.arange(side, device=device) < num for side, num in zip(size, self.shift, strict=True)
        )
        ends = 2 * is_row[:, None] + is_column[None].long()  # [h, w]
        return ends[None] if groups is None else 4 * groups.long() + ends

    def cut(self, x: Tensor, fill: float = 0) -> Tensor:
        """Return the windows [B * n, T, C] of a map [B, h, w, C], which is padded with `fill`."""
        if any(self.padding):
            x = F.pad(x, (0, 0, 0, self.padding[1], 0, self.padding[0]), value=fill)
        if any(self.shift):
            x = x.roll((-self.shift[0], -self.shift[1]), dims=(1, 2))
        height, width = self.sides
        batch, rows, columns, channels = x.shape
        grid = x.reshape(batch, rows // height, height, columns // width, width, channels)
        return grid.transpose(2, 3).reshape(-1, height * width, channels)  # from [B, n_h, n_w, t_h, t_w, C]

    def join(self, windows: Tensor, size: tuple[int, int]) -> Tensor:
        """Return the map [B, h, w, C] of its windows [B * n, T, C]."""
        (height, width), (down, right) = self.sides, self.padding
        rows, columns = (size[0] + down) // height, (size[1] + right) // width
        grid = windows.view(-1, rows, columns, height, width, windows.shape[-1]).transpose(2, 3)
        x = grid.flatten(3, 4).flatten(1, 2)  # [B, h + down, w + right, C]
        if any(self.shift):
            x = x.roll(self.shift, dims=(1, 2))
        return x[:, : size[0], : size[1]]

    def bias(self, table: Tensor) -> Tensor:
        """Return a table's numbers for each head and pair of tokens [1, heads, T, T]."""
        (height, width), side = self.sides, self.native
        index = relative_index((side, side), num_prefix=0, device=table.device).view(side, side, side, side)
        rows = index[:height, :width, :height, :width].reshape(height * width, height * width)
        return F.embedding(rows, table).permute(2, 0, 1)[None]


class WindowAttention(Attention):
    """Self-attention in windows, with a table of relative positions [(2s - 1)^2, heads] for windows of side s."""

    relative_position_bias_table: nn.Parameter

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__(width, heads)
        self.relative_position_bias_table = nn.Parameter(torch.empty((2 * window - 1) ** 2, heads))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)


class SwinBlock(nn.Module):
    """Attention in windows and an MLP, each after a layer norm and added to its input: [B, h, w, C] to [B, h, w, C].

    Args:
        width: channels of a token, a multiple of `heads`.
        window: largest side of a window.
        drop_path: rate at which training drops a branch for a sample, drawn for each branch.
        number: number of blocks before it in the network.
    """

    def __init__(self, width: int, heads: int, window: int, drop_path: float = 0.0, number: int = 0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = WindowAttention(width, heads, window)
        self.drop_path1 = DropPath(drop_path, 2 * number)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = Mlp(width)
        self.drop_path2 = DropPath(drop_path, 2 * number + 1)

    def forward(self, x: Tensor, windows: Windows) -> Tensor:
        """Return the block's output for a map and its windows."""
        cut = windows.cut(self.norm1(x))  # [B * n, T, C]
        is_key = windows.is_key
        if is_key is not None and len(is_key) != len(cut):
            is_key = is_key.repeat(len(cut) // len(is_key), 1, 1)
        attended = self.attn(cut, is_key, None, windows.bias(self.attn.relative_position_bias_table))
        x = x + self.drop_path1(windows.join(attended, (x.shape[1], x.shape[2])))
        return x + self.drop_path2(self.mlp(self.norm2(x)))  # type: ignore[no-any-return]
