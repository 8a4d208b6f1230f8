"""Relative position biases: a learned number for each offset between two patches, added to attention's logits."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.nn.backbones.positions import Resize, resize_positions

NUM_CLASS = 3
"""Last rows of a table: from the class token to a patch, from a patch to the class token, and to itself."""


class RelativePositions(nn.Module):
    """A table that all blocks share [offsets + 3, heads], with BEiT's name; it starts at 0."""

    def __init__(self, grid: tuple[int, int], heads: int) -> None:
        super().__init__()
        self.relative_position_bias_table = relative_table(grid, heads)


class Offsets(NamedTuple):
    """Where the tokens of images stand to each other, alike for the tables of all blocks.

    Args:
        rows: indices of a table for their grid, int64 [n, T, T], queries first; n is the number of images, or 1.
        grid: patches (h, w) of the images.
        native: patches that tables are made for.
    """

    rows: Tensor
    grid: tuple[int, int]
    native: tuple[int, int]
    resize: Resize

    def bias(self, table: Tensor) -> Tensor:
        """Return a table's numbers for each head and pair of tokens [n, heads, T, T]."""
        resized = resize_table(table, self.native, self.grid, self.resize)
        return F.embedding(self.rows, resized).permute(0, 3, 1, 2)


def relative_table(grid: tuple[int, int], heads: int) -> nn.Parameter:
    """Return a table of zeros [(2h - 1) * (2w - 1) + 3, heads] for h x w patches.

    >>> relative_table((14, 14), heads=12).shape
    torch.Size([732, 12])
    """
    return nn.Parameter(torch.zeros(_num_offsets(grid) + NUM_CLASS, heads))


def relative_index(grid: tuple[int, int], num_prefix: int = 1, device: torch.device | None = None) -> Tensor:
    """Return the row of a table for each pair of tokens, int64 [T, T], queries first (Bao et al. 2021, arXiv
    2106.08254; the rows are those of its code).

    Row (dy + h - 1) * (2w - 1) + dx + w - 1 is for a query dy patches below and dx to the right of its key. Three rows
    follow: from the class token to patches, from patches to the class token, and from the class token to itself.
    Registers count as the class token.

    >>> relative_index((1, 2))
    tensor([[5, 3, 3],
            [4, 1, 0],
            [4, 2, 1]])

    Args:
        grid: patches (h, w).
        num_prefix: tokens in front of the patches.
    """
    height, width = grid
    rows, columns = torch.arange(height, device=device), torch.arange(width, device=device)
    # numbered as in rows of 2w - 1 cells, so that each offset gives another difference of two numbers
    cells = (rows[:, None] * (2 * width - 1) + columns).flatten()  # [h*w]
    centre, num = (height - 1) * (2 * width - 1) + width - 1, _num_offsets(grid)
    patches = F.pad(cells[:, None] - cells + centre, (num_prefix, 0), value=num + 1)  # [h*w, T]
    first = F.pad(patches.new_full((num_prefix, num_prefix), num + 2), (0, len(cells)), value=num)
    return torch.cat([first, patches])


def resize_table(table: Tensor, old: tuple[int, int], new: tuple[int, int], resize: Resize = "antialias") -> Tensor:
    """Resize a table for another grid, bicubically: its offsets are an image of (2h - 1) x (2w - 1), from the offset
    of the whole grid one way to that of the whole grid the other way. The rows of the class token stay.

    >>> resize_table(torch.zeros(732, 12), (14, 14), (7, 7)).shape
    torch.Size([172, 12])

    Args:
        table: [(2h - 1) * (2w - 1) + 3, heads].
        old: old grid (h, w).
        new: the grid (h', w') of the result; the old grid returns `table` itself.
        resize: see `resize_positions`.
    """
    if old == new:
        return table
    offsets, classes = table[:-NUM_CLASS], table[-NUM_CLASS:]
    sides = [(2 * height - 1, 2 * width - 1) for height, width in (old, new)]
    return torch.cat([resize_positions(offsets[None], sides[0], sides[1], resize)[0], classes])


def _num_offsets(grid: tuple[int, int]) -> int:
    return (2 * grid[0] - 1) * (2 * grid[1] - 1)
