"""Small networks on top of a backbone: projectors, predictors and prototypes."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

RELU = partial(nn.ReLU, inplace=True)
OutputNorm = Literal["none", "plain", "scale", "affine"]


def mlp(
    dims: Sequence[int],
    norm: bool | Literal["layer"] = False,
    activation: Callable[[], nn.Module] = RELU,
    output_norm: OutputNorm = "none",
    last_bias: bool = True,
    norm_eps: float = 1e-5,
) -> nn.Sequential:
    """Return linear layers with an activation between them, and none after the last.

    >>> mlp([2048, 2048, 128])
    Sequential(
      (0): Linear(in_features=2048, out_features=2048, bias=True)
      (1): ReLU(inplace=True)
      (2): Linear(in_features=2048, out_features=128, bias=True)
    )

    Args:
        dims: widths from input to output, at least two; [2048, 2048, 128] is SimCLR's projector.
        norm: batch normalisation before every activation; the linear layer before it then has no bias. "layer" is layer
            normalisation, behind linear layers with a bias.
        activation: makes the activation after each layer but the last; default: ReLU.
        output_norm: batch normalisation after the last layer, which then has no bias either; "plain" without scale and
            shift, "scale" with a scale, "affine" with both.
        last_bias: a bias in the last layer; useless for losses that subtract the mean of the embeddings.
        norm_eps: added to the variance by normalisations.

    Raises:
        ValueError: if fewer than two widths are given.
    """
    if len(dims) < 2:
        raise ValueError(f"an MLP needs at least an input and an output width, got {list(dims)}")
    layers: list[nn.Module] = []
    for before, after in pairwise(dims[:-1]):
        layers.append(nn.Linear(before, after, bias=norm is not True))
        if norm:
            layers.append(nn.LayerNorm(after, eps=norm_eps) if norm == "layer" else nn.BatchNorm1d(after, eps=norm_eps))
        layers.append(activation())
    layers.append(nn.Linear(dims[-2], dims[-1], bias=last_bias and output_norm == "none"))
    if output_norm != "none":
        last = nn.BatchNorm1d(dims[-1], eps=norm_eps, affine=output_norm != "plain")
        if output_norm == "scale":
            last.register_parameter("bias", None)
        layers.append(last)
    return nn.Sequential(*layers)


class Prototypes(nn.Linear):
    """Trained cluster centres: scores [..., K] of embeddings [..., D] against K unit vectors (SwAV, Caron et al. 2020,
    arXiv 2006.09882).

    A linear layer without bias. The optimizer moves its rows off the unit sphere: call `normalise` in `after_update`,
    also while the rows are held fixed. Scores are cosines if embeddings have length 1.

    >>> Prototypes(dim=128, num=3000)(torch.zeros(2, 128)).shape
    torch.Size([2, 3000])
    """

    def __init__(self, dim: int, num: int, is_unit_at_start: bool = True) -> None:
        """Draw `num` prototypes of width `dim` as torch draws a linear layer.

        Args:
            dim: D.
            num: K.
            is_unit_at_start: normalise rows at once, as the paper's code before its first step; VISSL does so after the
                first update.
        """
        super().__init__(dim, num, bias=False)
        if is_unit_at_start:
            self.normalise()

    @torch.no_grad()
    def normalise(self) -> None:
        """Scale each row to length 1, in place."""
        self.weight.copy_(F.normalize(self.weight, dim=1))
