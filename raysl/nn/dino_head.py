"""DINO's projector (Caron et al. 2021, arXiv 2104.14294, section 3.1), which iBOT and DINOv2 took over."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.config.ranges import Count, Width, Within
from raysl.losses.precision import at_least_fp32
from raysl.nn.backbones.init import init_linear


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """Settings of a projector."""

    num_prototypes: Count = 65536
    """Prototypes K, the width of what the loss compares."""
    hidden_dim: Width = 2048
    """Width of the hidden layers."""
    bottleneck_dim: Width = 256
    """Width of the embedding that is brought to length 1."""
    num_layers: Annotated[int, Within(1, 100)] = 3
    """Linear layers up to the bottleneck."""
    norm: bool = False
    """Batch normalisation in front of each GELU; the paper has none with ViTs."""
    norm_last_layer: bool = True
    """Hold the prototypes at length 1; else each has a length that is trained, which starts at 1 (the authors' code:
    better with a ViT-S, unstable with larger ones)."""


class DINOHead(nn.Module):
    """Linear layers with GELU between them, the unit sphere, and scores of K prototypes: [..., D] to [..., K]."""

    def __init__(self, dim: int, config: HeadConfig) -> None:
        """Start as the authors' code does: linear layers of deviation 0.02, prototypes as torch draws a linear layer.

        Args:
            dim: D, width of the features that come in.
            config: the rest.
        """
        super().__init__()
        dims = [dim, *[config.hidden_dim] * (config.num_layers - 1), config.bottleneck_dim]
        layers: list[nn.Module] = []
        for before, after in pairwise(dims[:-1]):
            layers.append(nn.Linear(before, after, bias=not config.norm))
            if config.norm:
                layers.append(nn.BatchNorm1d(after))
            layers.append(nn.GELU())
        self.mlp = nn.Sequential(*layers, nn.Linear(dims[-2], dims[-1]))
        init_linear(self.mlp)
        self.last = WeightNormed(config.bottleneck_dim, config.num_prototypes, is_scaled=not config.norm_last_layer)

    def forward(self, h: Tensor) -> Tensor:
        """Scores [..., K] of features [..., D]."""
        z = F.normalize(at_least_fp32(self.mlp(h.flatten(0, -2))), dim=-1)  # [N, bottleneck_dim]
        scores: Tensor = self.last(z)
        return scores.view(*h.shape[:-1], -1)

    def hold_last(self) -> None:
        """Drop the gradient of the prototypes, after a backward pass: nothing, also no decay, moves them then."""
        for parameter in self.last.parameters():
            parameter.grad = None


class WeightNormed(nn.Linear):
    """A linear layer without bias whose rows are of length 1, or of a trained one (Salimans and Kingma 2016, arXiv
    1602.07868): gradients reach a row's direction alone, and its own length is of no matter."""

    def __init__(self, dim: int, num: int, is_scaled: bool = False) -> None:
        super().__init__(dim, num, bias=False)
        self.scale = nn.Parameter(torch.ones(num, 1)) if is_scaled else None

    def forward(self, x: Tensor) -> Tensor:
        """Scores [..., num] of [..., dim]."""
        rows = F.normalize(self.weight, dim=1)
        return F.linear(x, rows if self.scale is None else self.scale * rows)
