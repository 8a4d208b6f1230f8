"""Iterative normalisation: whitening of groups of features by matrix products alone."""

import torch
from torch import Tensor, nn

from raysl import distributed as dist
from raysl.losses.precision import at_least_fp32


class IterNorm(nn.Module):
    """Decorrelates the features of each group over the rows of all ranks (Huang et al. 2019, arXiv 1904.03441,
    algorithm 1): Newton's iteration comes near the inverse root of each covariance, without an eigendecomposition.

    In evaluation mode it takes running averages of means and whitening matrices, as batch normalisation does.

    >>> norm = IterNorm(4, num_groups=2)
    >>> norm(torch.randn(8, 4)).shape
    torch.Size([8, 4])

    Attributes:
        running_mean: [G, C], of G groups of C features.
        running_whitening: [G, C, C].
    """

    running_mean: Tensor
    running_whitening: Tensor

    def __init__(
        self, width: int, num_groups: int = 64, num_iters: int = 5, eps: float = 1e-5, momentum: float = 0.1
    ) -> None:
        """Start with a scale of 1 and a shift of 0.

        Args:
            width: number of features.
            num_groups: number of features that are whitened together; must divide `width`.
            num_iters: number of Newton's iterations, T.
            eps: added to the variances.
            momentum: share of a batch in the running averages.

        Raises:
            ValueError: if the groups are not equal.
        """
        super().__init__()
        if num_groups < 1 or width % num_groups:
            raise ValueError(f"{width} features make no {num_groups} equal groups; give a divisor of {width}")
        self.num_iters, self.eps, self.momentum = num_iters, eps, momentum
        size = width // num_groups
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(num_groups, size))
        self.register_buffer("running_whitening", torch.eye(size).repeat(num_groups, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return whitened rows [B, D], at least float32, of this rank's rows [B, D]."""
        with torch.autocast(x.device.type, enabled=False):
            x = at_least_fp32(x)
            rows = x.view(len(x), *self.running_mean.shape)  # [B, G, C]
            mean, whitening = self._statistics(rows) if self.training else (self.running_mean, self.running_whitening)
            out = torch.einsum("bgc,gcd->bgd", rows - mean, whitening).flatten(1)
            return out * self.weight + self.bias

    def _statistics(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean [G, C] and the iterate [G, C, C] of the rows [B, G, C] of all ranks, the same on each."""
        total = dist.all_sum(torch.cat([rows.sum(dim=0).flatten(), rows.new_full((1,), len(rows))]))
        num_rows = total[-1].detach()
        mean = (total[:-1] / num_rows).view_as(self.running_mean)
        rows = rows - mean
        identity = torch.eye(rows.shape[2], dtype=rows.dtype, device=rows.device)
        covariance = dist.all_sum(torch.einsum("bgc,bgd->gcd", rows, rows)) / num_rows + self.eps * identity
        trace = covariance.diagonal(dim1=1, dim2=2).sum(dim=1)[:, None, None]  # [G, 1, 1]
        # divided by its trace a covariance has no eigenvalue above 1, where Newton's iteration converges
        normal, iterate = covariance / trace, identity.expand_as(covariance)
        for _ in range(self.num_iters):
            iterate = 1.5 * iterate - 0.5 * iterate @ iterate @ iterate @ normal
        whitening = iterate * trace.rsqrt()
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_whitening.lerp_(whitening.to(self.running_whitening.dtype), self.momentum)
        return mean, whitening
