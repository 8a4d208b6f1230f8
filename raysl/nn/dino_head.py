"""DINO's projector and centring (Caron et al. 2021, arXiv 2104.14294, section 3.1), also of iBOT and DINOv2, and
Franca's nested ones."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.ranges import Count, Width, Within
from raysl.losses.precision import at_least_fp32
from raysl.nn.backbones.init import init_linear


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """Settings of a projector."""

    num_prototypes: Count = 65536
    """K, the number of prototypes: the width of the scores that the loss compares."""
    hidden_dim: Width = 2048
    """Width of the hidden layers."""
    bottleneck_dim: Width = 256
    """Width of the embedding, which is normalised to length 1."""
    num_layers: Annotated[int, Within(1, 100)] = 3
    """Linear layers up to the bottleneck."""
    norm: bool = False
    """Batch normalisation before each GELU; the paper has none with ViTs."""
    last_layer: Literal["unit", "weight_norm", "linear"] = "unit"
    """Prototypes of length 1; or of trained lengths that start at 1, of which weight decay changes no direction (DINO's
    code: better with a ViT-S, unstable with larger ones); or a linear layer that decays, as in DINOv3."""


class DINOHead(nn.Module):
    """Linear layers with GELU between them, the unit sphere, and scores of K prototypes: [..., D] to [..., K].

    >>> head = DINOHead(384, HeadConfig(num_prototypes=64, hidden_dim=32, bottleneck_dim=16))
    >>> head(torch.zeros(2, 5, 384)).shape
    torch.Size([2, 5, 64])
    """

    def __init__(self, dim: int, config: HeadConfig) -> None:
        """Initialise as the authors' code: linear layers with deviation 0.02, weight-normed ones with torch's default.

        Args:
            dim: D, width of the features.
            config: all other settings.
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
        self.last: nn.Linear
        if config.last_layer == "linear":
            self.last = nn.Linear(config.bottleneck_dim, config.num_prototypes, bias=False)
            init_linear(self.last)
        else:
            is_scaled = config.last_layer == "weight_norm"
            self.last = WeightNormed(config.bottleneck_dim, config.num_prototypes, is_scaled)

    def forward(self, h: Tensor) -> Tensor:
        """Return scores [..., K] of features [..., D]."""
        z = F.normalize(at_least_fp32(self.mlp(h.flatten(0, -2))), dim=-1)  # [N, bottleneck_dim]
        scores: Tensor = self.last(z)
        return scores.view(*h.shape[:-1], -1)

    def hold_last(self) -> None:
        """Drop the gradients of the prototypes after a backward pass, so that neither gradient nor decay moves them."""
        for parameter in self.last.parameters():
            parameter.grad = None


class NestedHead(nn.Module):
    """Heads that project all D channels to D, to half of D, to a quarter and so on, each with as many fewer prototypes
    (Franca, Venkataramanan et al. 2025, arXiv 2507.14137, the authors' code, mrl_dino_head.py): [..., D] to the scores
    of all prototypes, beginning with those of the smallest width.

    >>> head = NestedHead(64, HeadConfig(num_prototypes=32, hidden_dim=16, bottleneck_dim=8), num_levels=3)
    >>> [tuple(scores.shape) for scores in head.split(head(torch.zeros(2, 64)))]
    [(2, 8), (2, 16), (2, 32)]
    """

    def __init__(self, dim: int, config: HeadConfig, num_levels: int) -> None:
        """Initialise as the authors' code.

        Args:
            dim: D, width of the features.
            config: all other settings, of the widest head.
            num_levels: number of heads; width and number of prototypes are halved, and rounded down, between them.
        """
        super().__init__()
        halvings = [1 << level for level in reversed(range(num_levels))]
        self.sizes = [config.num_prototypes // divisor for divisor in halvings]
        self.levels = nn.ModuleList(
            _Level(dim, dim // divisor, replace(config, num_prototypes=size))
            for divisor, size in zip(halvings, self.sizes, strict=True)
        )

    def forward(self, h: Tensor) -> Tensor:
        """Return scores [..., sum of `sizes`] of features [..., D]."""
        return torch.cat([level(h) for level in self.levels], dim=-1)

    def split(self, scores: Tensor) -> tuple[Tensor, ...]:
        """Return the scores of each head [..., size] out of those of all [..., sum of `sizes`]."""
        return torch.split(scores, self.sizes, dim=-1)

    def hold_last(self) -> None:
        """Drop the gradients of all prototypes after a backward pass."""
        for level in self.levels:
            cast(DINOHead, level).hold_last()


class _Level(DINOHead):
    """A head behind a linear layer from all channels to its width. The bottleneck ends in a GELU, not on the sphere, as
    in Franca's code."""

    def __init__(self, dim: int, width: int, config: HeadConfig) -> None:
        super().__init__(width, config)
        self.projection = nn.Linear(dim, width)
        init_linear(self.projection)

    def forward(self, h: Tensor) -> Tensor:
        """Return scores [..., K] of features [..., D]."""
        rows = self.projection(h.flatten(0, -2))  # [N, width]
        scores: Tensor = self.last(F.gelu(at_least_fp32(self.mlp(rows))))
        return scores.view(*h.shape[:-1], -1)


class WeightNormed(nn.Linear):
    """A linear layer without bias whose rows have length 1, or a trained length (Salimans and Kingma 2016, arXiv
    1602.07868): gradients change only a row's direction, and the length of the parameter does not matter."""

    def __init__(self, dim: int, num: int, is_scaled: bool = False) -> None:
        super().__init__(dim, num, bias=False)
        self.scale = nn.Parameter(torch.ones(num, 1)) if is_scaled else None

    def forward(self, x: Tensor) -> Tensor:
        """Return scores [..., num] of [..., dim]."""
        rows = F.normalize(self.weight, dim=1)
        return F.linear(x, rows if self.scale is None else self.scale * rows)


class Centre(nn.Module):
    """Running mean of a teacher's scores [K], subtracted so that no prototype wins for all images; the low temperature
    keeps the scores from becoming uniform (DINO, Caron et al. 2021, arXiv 2104.14294, section 3.1).

    It starts at 0.

    >>> Centre(2)(torch.tensor([[1.0, 1.0]]), temperature=0.1)
    tensor([[0.5000, 0.5000]])
    """

    value: Tensor

    def __init__(self, num: int) -> None:
        super().__init__()
        self.register_buffer("value", torch.zeros(num))

    @torch.no_grad()
    def forward(self, scores: Tensor, temperature: float) -> Tensor:
        """Return the teacher's assignments [..., K] for scores [..., K]; each sums to 1."""
        with torch.autocast(scores.device.type, enabled=False):
            return torch.softmax((at_least_fp32(scores) - self.value) / temperature, dim=-1)

    @torch.no_grad()
    def update(self, scores: Tensor, momentum: float) -> None:
        """Move to momentum * centre + (1 - momentum) * mean over the rows of all ranks (eq. 4), the same on every rank.

        Args:
            scores: this rank's [n, K], with any n on each rank.
            momentum: share of the centre that is kept.
        """
        rows = at_least_fp32(scores)
        sums = dist.all_sum(torch.cat([rows.sum(dim=0), rows.new_full((1,), len(rows))]))  # [K + 1]
        self.value.lerp_((sums[:-1] / sums[-1]).to(self.value.dtype), 1 - momentum)
