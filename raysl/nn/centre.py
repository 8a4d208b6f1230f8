"""The centre of a teacher's scores."""

import torch
from torch import Tensor, nn

from raysl import distributed as dist
from raysl.losses.precision import at_least_fp32


class Centre(nn.Module):
    """Running mean of a teacher's scores [K], taken off them so that no prototype wins for all images; the low
    temperature keeps them from being all alike (DINO, Caron et al. 2021, arXiv 2104.14294, section 3.1).

    It starts at 0.
    """

    value: Tensor

    def __init__(self, num: int) -> None:
        super().__init__()
        self.register_buffer("value", torch.zeros(num))

    @torch.no_grad()
    def forward(self, scores: Tensor, temperature: float) -> Tensor:
        """What the teacher assigns, each summing to 1, [..., K] of scores [..., K]."""
        with torch.autocast(scores.device.type, enabled=False):
            return torch.softmax((at_least_fp32(scores) - self.value) / temperature, dim=-1)

    @torch.no_grad()
    def update(self, scores: Tensor, momentum: float) -> None:
        """Move to momentum * centre + (1 - momentum) * mean over the rows of all ranks (eq. 4), alike on every rank.

        Args:
            scores: of this rank [n, K], any n on each rank.
            momentum: share of the centre that stays.
        """
        rows = at_least_fp32(scores)
        sums = dist.all_sum(torch.cat([rows.sum(dim=0), rows.new_full((1,), len(rows))]))  # [K + 1]
        self.value.lerp_((sums[:-1] / sums[-1]).to(self.value.dtype), 1 - momentum)
