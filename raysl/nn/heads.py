"""Small networks on top of a backbone: projectors and predictors."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def mlp(dims: Sequence[int], norm: bool = False, last_bias: bool = True) -> nn.Sequential:
    """Linear layers with ReLU between them; the last one is plain.

    Args:
        dims: widths from input to output, at least two; [2048, 2048, 128] is SimCLR's projector.
        norm: batch normalisation before every ReLU; the linear layer in front of it then has no bias.
        last_bias: a bias in the last layer; of no use to losses that take the mean of the embeddings off.

    Raises:
        ValueError: if fewer than two widths are given.
    """
    if len(dims) < 2:
        raise ValueError(f"an MLP needs at least an input and an output width, got {list(dims)}")
    layers: list[nn.Module] = []
    for before, after in pairwise(dims[:-1]):
        layers.append(nn.Linear(before, after, bias=not norm))
        if norm:
            layers.append(nn.BatchNorm1d(after))
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers, nn.Linear(dims[-2], dims[-1], bias=last_bias))
