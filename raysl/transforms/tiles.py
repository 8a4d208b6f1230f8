"""Tiles of an image, in order or shuffled, for Jigsaw and PIRL, and tables of permutations to shuffle them by."""

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, permutations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysl.hashing import hash_words
from raysl.transforms.device import to_device
from raysl.transforms.random import Ints, SampleRandom

MAX_TILES = 9  # whose 362,880 permutations can all be compared


@dataclass(frozen=True, kw_only=True, eq=False)
class Tiles:
    """One square tile from each cell of a grid, at a random position in its cell.

    Cells are counted down the first column, then down the second: cell i * grid + j is the j-th from the top of the
    i-th column from the left. Jigsaw (Noroozi and Favaro 2016) takes tiles of 64 pixels from 3x3 cells of 85.

    >>> tiles = Tiles(grid=2, size=8, jitter=1, order="fixed")
    >>> params = tiles.draw(SampleRandom(seed=0, epoch=0, index=np.arange(5), view=0), (16, 16))
    >>> tiles.cut(torch.zeros(5, 3, 16, 16), params).shape
    torch.Size([5, 4, 3, 8, 8])
    """

    grid: int = 3
    """Cells along each side."""
    size: int = 64
    """Side of a tile, in pixels."""
    jitter: int = 21
    """Number of positions of a tile along each axis: offsets of 0 to jitter - 1 pixels from its cell's corner."""
    order: str | Ints = "random"
    """`fixed` is the order of the cells, `random` a random order for each image (PIRL); a table int64 [num, grid**2]
    from `permutation_table` gives each image one of its rows, whose number is the label (Jigsaw)."""

    def __post_init__(self) -> None:
        if min(self.grid, self.size, self.jitter) < 1:
            raise ValueError(f"grid={self.grid}, size={self.size} and jitter={self.jitter} must be at least 1")
        if isinstance(self.order, str):
            if self.order not in ("fixed", "random"):
                raise ValueError(f"order={self.order!r} must be 'fixed', 'random' or a table of permutations")
            return
        rows = np.asarray(self.order)
        if rows.ndim != 2 or len(rows) == 0 or rows.shape[1] != self.num_tiles:
            raise ValueError(f"order of shape {rows.shape} must be a table [num, {self.num_tiles}]")
        if not np.array_equal(np.sort(rows, axis=1), np.broadcast_to(np.arange(self.num_tiles), rows.shape)):
            raise ValueError(f"order has rows that are not permutations of 0 to {self.num_tiles - 1}; count from 0")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tiles):
            return NotImplemented
        return self._settings() == other._settings() and np.array_equal(self.order, other.order)

    def __hash__(self) -> int:
        return hash(self._settings())

    def _settings(self) -> tuple[int, int, int]:
        return self.grid, self.size, self.jitter

    @property
    def num_tiles(self) -> int:
        """Number of tiles of an image."""
        return self.grid**2

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        """Draw the tiles of `len(random)` images of this height and width.

        Returns:
            `offsets`, int64 [B, T, 2]: pixels to the right and down from the corner of each cell;
            `order`, int64 [B, T]: the cell of each tile;
            `permutation`, int64 [B], if there is a table: the row of the order.

        Raises:
            ValueError: if a tile with its jitter does not fit into its cell.
        """
        self._cell(size)
        num = len(random)
        offsets = (random.uniforms(self.num_tiles * 2) * self.jitter).astype(np.int64).reshape(num, self.num_tiles, 2)
        params = {"offsets": torch.from_numpy(offsets)}
        if isinstance(self.order, str):
            fixed = np.tile(np.arange(self.num_tiles), (num, 1))
            order = fixed if self.order == "fixed" else random.permutation(self.num_tiles)
        else:
            row = random.integers(0, len(self.order))
            order = np.asarray(self.order, dtype=np.int64)[row]
            params["permutation"] = torch.from_numpy(row)
        return {**params, "order": torch.from_numpy(order)}

    def cut(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        """Cut the tiles out.

        Args:
            images: [B, C, H, W] of any type, on any device.
            params: the result of `draw` for images of this size.

        Returns:
            [B, T, C, size, size]: tile k is from cell `order[k]`.
        """
        height, width = self._cell((images.shape[2], images.shape[3]))
        order = params["order"]  # [B, T]
        offsets = params["offsets"].gather(1, order[..., None].expand(-1, -1, 2))
        # cells are numbered down the columns
        x = order // self.grid * width + offsets[..., 0]
        y = order % self.grid * height + offsets[..., 1]
        image = torch.arange(len(order))[:, None]
        # a view of all windows; the indexing below copies the tiles alone
        windows = images.unfold(2, self.size, 1).unfold(3, self.size, 1).permute(0, 2, 3, 1, 4, 5)
        rows = (to_device(indices, images.device) for indices in (image, y, x))
        return windows[tuple(rows)].contiguous()

    def extras(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the label `permutation`, int64 [B], if there is a table."""
        return {"permutation": params["permutation"]} if "permutation" in params else {}

    def _cell(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return height and width of a cell of images of this size."""
        height, width = size[0] // self.grid, size[1] // self.grid
        reach = self.size + self.jitter - 1
        if reach > min(height, width):
            raise ValueError(
                f"tiles of {self.size} pixels with jitter {self.jitter} do not fit into the {height}x{width} cells of "
                f"images of {size[0]}x{size[1]}; give images of at least {reach * self.grid} pixels or less jitter"
            )
        return height, width


@lru_cache(maxsize=8)
def permutation_table(num: int, num_tiles: int = 9, seed: int = 0) -> Ints:
    """Return a set of permutations, each as far as possible from those before it.

    The method of Jigsaw (Noroozi and Favaro 2016, section 4.2): the first is drawn with the seed; each further one has
    the largest average Hamming distance from all before, the lexicographically first of several. A function of its
    arguments alone. 2000 permutations of 9 take about a second.

    >>> permutation_table(3, num_tiles=3).shape
    (3, 3)

    Args:
        num: how many, in [1, num_tiles!].
        num_tiles: length of each, in [1, 9].
        seed: seed of the first permutation.

    Returns:
        int64 [num, num_tiles], read-only, all rows different.

    Raises:
        ValueError: if there are fewer permutations than `num`, or more than 9 tiles.
    """
    if not 1 <= num_tiles <= MAX_TILES:
        raise ValueError(f"num_tiles={num_tiles} must be in [1, {MAX_TILES}]; more tiles have too many permutations")
    if not 1 <= num <= math.factorial(num_tiles):
        raise ValueError(f"num={num} permutations of {num_tiles}: give 1 to {math.factorial(num_tiles)}")
    candidates = _all_permutations(num_tiles)  # [num_tiles, N]
    chosen = hash_words(seed, num_tiles) % candidates.shape[1]
    table = np.empty((num, num_tiles), dtype=np.int64)
    num_equal = np.zeros(candidates.shape[1], dtype=np.int32)  # positions shared with all chosen so far
    shared = np.empty(candidates.shape[1], dtype=np.uint8)
    same = np.empty(candidates.shape[1], dtype=np.bool_)
    for row in range(num):
        table[row] = candidates[:, chosen]
        shared.fill(0)
        for position, tile in enumerate(table[row]):
            np.equal(candidates[position], np.uint8(tile), out=same)
            np.add(shared, same.view(np.uint8), out=shared)
        np.add(num_equal, shared, out=num_equal)
        num_equal[chosen] = np.iinfo(np.int32).max // 2  # never again: far more than num * num_tiles
        chosen = int(num_equal.argmin())
    table.setflags(write=False)
    return table


def _all_permutations(num_tiles: int) -> NDArray[np.uint8]:
    """Return all permutations, uint8 [num_tiles, num_tiles!], in lexicographic order."""
    count = math.factorial(num_tiles) * num_tiles
    flat = np.fromiter(chain.from_iterable(permutations(range(num_tiles))), dtype=np.uint8, count=count)
    return np.ascontiguousarray(flat.reshape(-1, num_tiles).T)
