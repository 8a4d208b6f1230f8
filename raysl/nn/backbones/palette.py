"""Pixels as words: a palette of colours, found by k-means, with an embedding for each colour."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

LEVELS = 64
"""Levels of red, green and blue of the grid that colours are counted and looked up in."""
_DISTANCES_AT_ONCE = 2**24


class PaletteEmbed(nn.Module):
    """Maps each pixel to the embedding of the nearest colour of a palette: [B, 3, H, W] to [B, H*W, D] (iGPT, Chen et
    al. 2020, section 3.2, "Context Reduction").

    A pixel is brought to a grid of 64 levels a channel, and the colour of each point of the grid is looked up, so that
    a pixel has the same colour in any batch. Until `fit`, colours are a coarse grid of their own.

    >>> embed = PaletteEmbed(width=4, num_colors=8)
    >>> embed(torch.zeros(2, 3, 5, 5)).shape
    torch.Size([2, 25, 4])

    Attributes:
        colors: the palette, red, green and blue in [0, 1], float [K, 3].
        table: int64 [64**3], the colour of each point of the grid.
        mean, std: statistics of the normalised images, by channel [3].
    """

    colors: Tensor
    table: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, width: int, num_colors: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_colors, width)
        side = max(side for side in range(1, 65) if side**3 <= num_colors)
        level = torch.arange(LEVELS) * side // LEVELS  # [64]
        self.register_buffer("table", ((level[:, None] * side + level)[:, :, None] * side + level).flatten())
        self.register_buffer("colors", torch.zeros(num_colors, 3))
        self.register_buffer("mean", torch.full((3,), 0.5))
        self.register_buffer("std", torch.full((3,), 0.5))

    def forward(self, images: Tensor) -> Tensor:
        """Return the embeddings of the pixels' colours, row by row."""
        return self.embedding(self.words(images))  # type: ignore[no-any-return]

    @torch.no_grad()
    def words(self, images: Tensor) -> Tensor:
        """Return the number of the colour of each pixel, int64 [B, H*W]."""
        return self.table[self.points(images)]

    @torch.no_grad()
    def points(self, images: Tensor) -> Tensor:
        """Return the point of the grid of each pixel of normalised images, int64 [B, H*W]."""
        values = images.flatten(2) * self.std[:, None] + self.mean[:, None]  # [B, 3, H*W], in [0, 1]
        level = (values * LEVELS).floor().clamp(0, LEVELS - 1).long()
        return (level[:, 0] * LEVELS + level[:, 1]) * LEVELS + level[:, 2]

    @torch.no_grad()
    def set_range(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Say how images are normalised."""
        self.mean.copy_(torch.tensor(mean))
        self.std.copy_(torch.tensor(std))

    @torch.no_grad()
    def fit(self, counts: Tensor, num_iters: int, seed: int) -> None:
        """Make the palette of how often each point of the grid occurs, int64 [64**3], and look all points up.

        The same counts give the same palette on every rank.
        """
        colors = palette(counts.cpu(), len(self.colors), num_iters, seed)
        self.colors.copy_(colors)
        self.table.copy_(_nearest(_grid(), colors))


def palette(counts: Tensor, num_colors: int, num_iters: int, seed: int) -> Tensor:
    """Return colours, float64 [K, 3] in [0, 1], by Lloyd's k-means over the points of the grid, each with its count.

    It starts from different points drawn by their counts. Where there are fewer points than colours, the rest of the
    colours lie out of reach. A colour that no point is nearest to stays where it is.

    >>> counts = torch.zeros(64**3, dtype=torch.int64)
    >>> counts[0], counts[-1] = 3, 1
    >>> palette(counts, num_colors=2, num_iters=2, seed=0).sort(dim=0).values.mean(dim=1)
    tensor([0.0078, 0.9922], dtype=torch.float64)

    Args:
        counts: int64 [64**3] on the CPU.
        num_iters: rounds of assignment and means.
    """
    occurring = counts.nonzero()[:, 0]
    points, weights = _grid()[occurring], counts[occurring].double()  # [n, 3], [n]
    # colours that stay unused lie far outside of [0, 1], so that no point is nearest to them
    colors = torch.full((num_colors, 3), 1e3, dtype=torch.float64)
    num = min(num_colors, len(points))
    if num:
        generator = torch.Generator().manual_seed(seed)
        colors[:num] = points[torch.multinomial(weights, num, generator=generator)]
    for _ in range(num_iters):
        nearest = _nearest(points, colors)
        sums = torch.zeros_like(colors).index_add_(0, nearest, points * weights[:, None])
        sizes = torch.zeros(num_colors, dtype=torch.float64).index_add_(0, nearest, weights)
        colors = torch.where((sizes > 0)[:, None], sums / sizes.clamp(min=1)[:, None], colors)
    return colors


def _grid() -> Tensor:
    """Return red, green and blue of all points of the grid, float64 [64**3, 3]."""
    level = (torch.arange(LEVELS, dtype=torch.float64) + 0.5) / LEVELS
    return torch.cartesian_prod(level, level, level)


def _nearest(points: Tensor, colors: Tensor) -> Tensor:
    """Return the nearest colour of each point, the first of equals, int64 [n]."""
    half = colors.square().sum(dim=1) / 2
    parts = torch.split(points, max(_DISTANCES_AT_ONCE // len(colors), 1))
    return torch.cat([(part @ colors.T - half).argmax(dim=1) for part in parts])
