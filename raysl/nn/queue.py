"""A queue of the newest embeddings, the same on every rank."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.losses.precision import at_least_fp32


class Queue(nn.Module):
    """The newest `length` embeddings of all ranks, first in, first out, each of length 1 (MoCo, arXiv 1911.05722, 3.2).

    It starts with random unit vectors from torch's generator, which ranks must have seeded alike; `is_filled` says
    which places hold pushed rows by now (SwAV waits for all, MoCo does not). Nothing is read back from the device.

    Attributes:
        keys: [length, *shape], in the order of their places: a row stays where it is until it is the oldest.
        pointer: int64 scalar, the place of the oldest row, which the next push overwrites.
        num_filled: int64 scalar, how many rows were pushed and are held.
    """

    keys: Tensor
    pointer: Tensor
    num_filled: Tensor

    def __init__(self, length: int, *shape: int) -> None:
        """A queue of rows of any shape, the last of its sides being the width of an embedding.

        `Queue(65536, 128)` is MoCo's; `Queue(3840, 2, 128)` holds the embeddings of SwAV's two crops side by side.

        Raises:
            ValueError: if it has no length or no shape.
        """
        super().__init__()
        if length < 1 or not shape or min(shape) < 1:
            raise ValueError(f"a queue of {length} rows of shape {list(shape)} holds nothing; give at least one of [1]")
        self.register_buffer("keys", F.normalize(torch.randn(length, *shape), dim=-1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))
        self.register_buffer("num_filled", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def push(self, rows: Tensor) -> None:
        """Put in rows, oldest first, in place of the oldest; of more than `length`, the last are kept.

        In a method: `queue.push(dist.all_gather(z))` in `after_update`. A write inside a training step would change
        numbers that its backward pass reads.

        Args:
            rows: [n, *shape] of all ranks in the order of the batch, with any n, also 0; normalised here.

        Raises:
            ValueError: if the rows have another shape.
        """
        length = len(self.keys)
        if rows.shape[1:] != self.keys.shape[1:]:
            raise ValueError(
                f"rows of shape {list(rows.shape[1:])} cannot enter a queue of {list(self.keys.shape[1:])}"
            )
        num_rows = len(rows)
        dropped = max(num_rows - length, 0)
        newest = F.normalize(at_least_fp32(rows[dropped:]), dim=-1).to(self.keys.dtype)
        places = (self.pointer + torch.arange(dropped, num_rows, device=self.keys.device)) % length
        self.keys.index_copy_(0, places, newest)
        self.pointer.copy_((self.pointer + num_rows) % length)
        self.num_filled.copy_((self.num_filled + num_rows).clamp(max=length))

    def is_filled(self) -> Tensor:
        """Which of `keys` were pushed, bool [length]; the others are still random."""
        return torch.arange(len(self.keys), device=self.keys.device) < self.num_filled
