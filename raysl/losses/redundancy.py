"""Losses on covariances: dimensions of an embedding are to tell different things."""

from torch import Tensor


def off_diagonal_squares(matrix: Tensor) -> Tensor:
    """Sum of the squares of all entries of a square matrix that are not on its diagonal."""
    return matrix.square().sum() - matrix.diagonal().square().sum()
