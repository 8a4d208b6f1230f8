"""A memory bank: one embedding per image of a dataset, the same on every rank."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.losses.precision import at_least_fp32


class MemoryBank(nn.Module):
    """An embedding of length 1 for each sample index (NPID, Wu et al. 2018, arXiv 1805.01978, section 3.1).

    Every rank holds all of it: N * D * 4 bytes, 656 MB for ImageNet at 128 dimensions. It starts uniform in
    +-1/sqrt(D/3) with rows normalised, from torch's generator, which must have the same seed on all ranks.

    >>> bank = MemoryBank(num=100, dim=8)
    >>> bank.update(torch.tensor([3]), torch.ones(1, 8), momentum=0.0)
    >>> bank.rows(torch.tensor([3]))[0, :2]
    tensor([0.3536, 0.3536])

    Attributes:
        bank: [N, D].
    """

    bank: Tensor

    def __init__(self, num: int, dim: int) -> None:
        """Create a bank for sample indices 0 to `num` - 1.

        Raises:
            ValueError: if `num` or `dim` is below 1.
        """
        super().__init__()
        if num < 1 or dim < 1:
            raise ValueError(f"a memory bank of {num} rows of width {dim} is empty; give at least 1 of each")
        bound = 1 / math.sqrt(dim / 3)
        self.register_buffer("bank", F.normalize(torch.empty(num, dim).uniform_(-bound, bound), dim=-1))

    def rows(self, index: Tensor) -> Tensor:
        """Return a copy [..., D] of the embeddings of int64 sample indices [...]."""
        return F.embedding(index, self.bank)

    @torch.no_grad()
    def update(self, index: Tensor, z: Tensor, momentum: float) -> None:
        """Set each row w to normalize(momentum * w + (1 - momentum) * z), with z normalised first.

        In a method: `bank.update(dist.all_gather(batch.index), dist.all_gather(z), 0.5)` in `after_update`. If a sample
        is in the batch twice, its last row counts, mixed with the bank's row from before: the same on every rank and
        device. Nothing is read back from the device.

        Args:
            index: int64 [n], sample indices of the rows of all ranks, in the order of the batch.
            z: their embeddings [n, D].
            momentum: share from 0 to 1.

        Raises:
            ValueError: if the shapes do not fit, or the momentum is outside its range.
        """
        if z.shape != (len(index), self.bank.shape[1]):
            raise ValueError(
                f"embeddings {list(z.shape)} must be [{len(index)}, {self.bank.shape[1]}], a row for each index"
            )
        if not 0 <= momentum <= 1:
            raise ValueError(f"the momentum of a memory bank is {momentum}; give a number in [0, 1]")
        # a stable sort keeps the order of the batch, so the last of equal indices is the sample's last row
        ordered, order = torch.sort(index, stable=True)
        last = order[torch.searchsorted(ordered, index, right=True) - 1]  # [n], last row of the same sample
        w = torch.lerp(F.normalize(at_least_fp32(z[last]), dim=-1).to(self.bank), self.bank[index], momentum)
        self.bank.index_copy_(0, index, F.normalize(w, dim=-1))  # rows of one sample write the same numbers
