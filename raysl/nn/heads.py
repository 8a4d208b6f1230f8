"""Small networks on top of a backbone: projectors and predictors."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Literal

from torch import nn

RELU = partial(nn.ReLU, inplace=True)
OutputNorm = Literal["none", "plain", "scale", "affine"]


def mlp(
    dims: Sequence[int],
    norm: bool = False,
    activation: Callable[[], nn.Module] = RELU,
    output_norm: OutputNorm = "none",
    last_bias: bool = True,
) -> nn.Sequential:
    """Linear layers with an activation between them, and none after the last.

    Args:
        dims: widths from input to output, at least two; [2048, 2048, 128] is SimCLR's projector.
        norm: batch normalisation before every activation; the linear layer in front of it then has no bias.
        activation: makes what follows each layer but the last; default: ReLU.
        output_norm: batch normalisation after the last layer, which then has no bias either; "plain" without a scale
            and a shift of its own, "scale" with the former, "affine" with both.
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
        layers.append(activation())
    layers.append(nn.Linear(dims[-2], dims[-1], bias=last_bias and output_norm == "none"))
    if output_norm != "none":
        last = nn.BatchNorm1d(dims[-1], affine=output_norm != "plain")
        if output_norm == "scale":
            last.register_parameter("bias", None)
        layers.append(last)
    return nn.Sequential(*layers)
