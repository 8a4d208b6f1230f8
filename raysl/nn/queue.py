"""A queue of the newest embeddings, the same on every rank."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.losses.precision import at_least_fp32


class Queue(nn.Module):
    """The newest `length` embeddings of all ranks, first in, first out, each of length 1 (MoCo, arXiv 1911.05722, 3.2).

    It starts with random unit vectors from torch's generator, which must have the same seed on all ranks; `is_filled`
    tells which rows were pushed (SwAV waits for all, MoCo does not). Nothing is read back from the device.

    >>> queue = Queue(4, 2)
    >>> queue.push(torch.tensor([[3.0, 4.0]]))
    >>> queue.keys[0], queue.is_filled()
    (tensor([0.6000, 0.8000]), tensor([ True, False, False, False]))

    Attributes:
        keys: [length, *shape]; a row keeps its position until it is overwritten as the oldest.
        pointer: int64 scalar, position of the oldest row, which the next push overwrites.
        num_filled: int64 scalar, number of pushed rows in the queue.
    """

    keys: Tensor
    pointer: Tensor
    num_filled: Tensor

    def __init__(self, length: int, *shape: int) -> None:
        """Create a queue of rows of any shape, whose last side is the width of an embedding.

        `Queue(65536, 128)` is MoCo's; `Queue(3840, 2, 128)` holds the embeddings of SwAV's two crops side by side.

        Raises:
            ValueError: if `length` or `shape` is empty.
        """
        super().__init__()
        if length < 1 or not shape or min(shape) < 1:
            raise ValueError(f"a queue of {length} rows of shape {list(shape)} is empty; give at least one of [1]")
        self.register_buffer("keys", F.normalize(torch.randn(length, *shape), dim=-1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))
        self.register_buffer("num_filled", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def push(self, rows: Tensor) -> None:
        """Replace the oldest rows by new ones, oldest first; if there are more than `length`, the last ones stay.

        In a method: `queue.push(dist.all_gather(z))` in `after_update`. Inside a training step it would overwrite
        numbers that the backward pass reads.

        Args:
            rows: [n, *shape] of all ranks in the order of the batch, any n, also 0; normalised here.

        Raises:
            ValueError: if the rows have another shape.
        """
        length = len(self.keys)
        if rows.shape[1:] != self.keys.shape[1:]:
            raise ValueError(f"rows of shape {list(rows.shape[1:])} do not fit a queue of {list(self.keys.shape[1:])}")
        num_rows = len(rows)
        dropped = max(num_rows - length, 0)
        newest = F.normalize(at_least_fp32(rows[dropped:]), dim=-1).to(self.keys.dtype)
        positions = (self.pointer + torch.arange(dropped, num_rows, device=self.keys.device)) % length
        self.keys.index_copy_(0, positions, newest)
        self.pointer.copy_((self.pointer + num_rows) % length)
        self.num_filled.copy_((self.num_filled + num_rows).clamp(max=length))

    @torch.no_grad()
    def nearest(self, z: Tensor) -> Tensor:
        """Return the row of `keys` with the largest cosine for each embedding, [B, D], of length 1 (NNCLR, Dwibedi et
        al. 2021, arXiv 2104.14548, eq. 4)."""
        with torch.autocast(z.device.type, enabled=False):
            z = at_least_fp32(z)
            return self.keys.index_select(0, (z @ self.keys.to(z.dtype).T).argmax(dim=1))

    @torch.no_grad()
    def several_nearest(self, z: Tensor, num: int) -> Tensor:
        """Return the `num` rows of `keys` with the largest cosines for each embedding, [B, num, D], of length 1, the
        nearest first (All4One, Estepa et al. 2023, arXiv 2303.09417).

        >>> queue = Queue(3, 2)
        >>> queue.push(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
        >>> queue.several_nearest(torch.tensor([[1.0, 2.0]]), num=2)
        tensor([[[0., 1.],
                 [1., 0.]]])

        Args:
            z: embeddings [B, D] of any length.
            num: number of rows, from 1 to `length`.
        """
        with torch.autocast(z.device.type, enabled=False):
            z = at_least_fp32(z)
            nearest = (z @ self.keys.to(z.dtype).T).topk(num, dim=1).indices  # [B, num]
            return self.keys.index_select(0, nearest.flatten()).view(*nearest.shape, -1)

    def is_filled(self) -> Tensor:
        """Return which of `keys` were pushed, bool [length]; the others are still random."""
        return torch.arange(len(self.keys), device=self.keys.device) < self.num_filled
