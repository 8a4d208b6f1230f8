"""The grid of patches that a ViT's position embeddings belong to."""

import math
import re
from collections.abc import Mapping

import torch
from torch import Tensor

from raysl.errors import ConfigError


def grid_side(positions: Tensor) -> int:
    """Return the side, in patches, of position embeddings [1, 1 + side*side, D].

    >>> grid_side(torch.zeros(1, 1 + 14 * 14, 8))
    14
    """
    return math.isqrt(positions.shape[1] - 1)


def with_square_positions(tensors: Mapping[str, Tensor], grid: str | None, where: str) -> dict[str, Tensor]:
    """Return a ViT's tensors with position embeddings of the class token and of a square of patches, [1, 1 + s*s, D].

    Positions of registers are added to the registers, and a class token without a position gets one of zeros, which
    leaves the features as they are.

    Args:
        grid: rows and columns of patches, "14x14", where the user gave them.

    Raises:
        ConfigError: if no square fits, or if several readings fit and `grid` does not choose one.
    """
    positions = tensors.get("pos_embed")
    if positions is None:
        return dict(tensors)
    if positions.ndim != 3:
        raise ConfigError(
            f"{where} has position embeddings of shape {list(positions.shape)}; raysl's ViT takes a row for each token"
        )
    num_registers = tensors["reg_token"].shape[1] if "reg_token" in tensors else 0
    num_first = _num_before_patches(tensors, positions.shape[1], num_registers, grid, where)
    first, patches = positions[:, :num_first], positions[:, num_first:]
    start = first[:, :1] if num_first else torch.zeros_like(positions[:, :1])
    square = {**tensors, "pos_embed": torch.cat([start, patches], dim=1)}
    if num_first > 1:
        square["reg_token"] = square["reg_token"] + first[:, 1:]
    return square


def _num_before_patches(
    tensors: Mapping[str, Tensor], num: int, num_registers: int, grid: str | None, where: str
) -> int:
    """Return how many of `num` positions belong to the class token and the registers: 0, 1, or all of these tokens."""
    counts = (1, 0, 1 + num_registers) if num_registers else (1, 0)
    if grid is not None:
        return _num_by_grid(grid, counts, num, where)
    sides = {count: math.isqrt(num - count) for count in counts if num > count}
    squares = {count: side for count, side in sides.items() if side**2 == num - count}
    if not squares:
        raise ConfigError(
            f"{where} has {num} position embeddings, not one for a class token and a square of patches (perhaps a ViT "
            "with a distillation token, or for images that are not square); raysl's ViT takes only those"
        )
    # With registers, timm gives positions to patches alone; without a class token there is none to give one to.
    is_clear = list(squares) != [0] or num_registers > 0 or "cls_token" not in tensors
    if len(squares) == 1 and is_clear:
        return next(iter(squares))
    side = next(iter(squares.values()))
    readings = [f"{side}x{side} patches with {_OWNERS[min(count, 2)]}" for count, side in squares.items()]
    # side^2 positions are also one of a class token and (side + 1) * (side - 1) of patches
    if list(squares) == [0]:
        readings.append(f"images that are not square, such as {side + 1}x{side - 1} patches, with {_OWNERS[1]}")
    choices = " or ".join(f"{side}x{side}" for side in dict.fromkeys(squares.values()))
    raise ConfigError(
        f"{where} has {num} position embeddings, which fit {' and '.join(readings)}; give grid={choices}, on the "
        f"command line --grid {choices}, if that is its grid. raysl's ViT takes squares only"
    )


_OWNERS = ("none for the class token", "one for the class token", "one for the class token and each register")


def _num_by_grid(grid: str, counts: tuple[int, ...], num: int, where: str) -> int:
    match = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", grid)
    if match is None:
        raise ConfigError(f"grid={grid!r}: give rows and columns of patches, such as 14x14")
    rows, columns = int(match[1]), int(match[2])
    if rows != columns:
        raise ConfigError(
            f"grid={grid}: raysl's ViT is trained on square images; read these weights by the library that wrote them"
        )
    if (count := num - rows * columns) not in counts:
        expected = " or ".join(str(rows * columns + count) for count in sorted(counts))
        raise ConfigError(f"grid={grid} has {expected} positions, and {where} has {num}; give its own grid")
    return count
