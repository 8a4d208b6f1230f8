"""Patches that a transformer leaves out in training, for less time: `train.patch_drop`."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from raysl.nn.drop_path import Drawing, draw
from raysl.transforms import device_hash


class NeedsAllPatches(ValueError):
    """Single tokens are asked of a network that leaves patches out."""


class PatchDrop(Drawing):
    """Chooses the patches of each view that training keeps, uniformly (FLIP, Li et al. 2023, arXiv 2212.00794, section
    3; PatchDropout, Liu et al. 2023, arXiv 2208.07220, section 3.2).

    It chooses inside `dropping_patches` alone, in training mode, and never in a teacher. A kept patch has its own
    position, and other tokens always stay. The numbers of a view belong to its sample, as those of `Dropout`: on any
    number of ranks, and after a restart, a view keeps the same patches.

    >>> import torch
    >>> drop = PatchDrop(slot=0)
    >>> with dropping_patches(0.75):
    ...     drop(torch.zeros(2, 3, 32, 32), num_patches=16).shape
    torch.Size([2, 4])

    Args:
        slot: number of this module in its network, see `Drawing`.
    """

    def __init__(self, slot: int) -> None:
        super().__init__()
        self.slot = slot
        self.is_settled = False

    @property
    def is_dropping(self) -> bool:
        """Whether the next pass leaves patches out."""
        return _share > 0 and self.training and not self.is_settled

    @property
    def slots(self) -> tuple[int, ...]:
        """The slot, while patches are left out."""
        return (self.slot,) if self.is_dropping else ()

    def settle(self) -> None:
        """Keep all patches from now on."""
        self.is_settled = True

    def forward(self, images: Tensor, num_patches: int) -> Tensor:
        """Return the indices of the kept patches of images [B, ...], int64 [B, K], ascending."""
        keys = (draw(images, self.slot).double() * 2.0**53).long()  # [B], whole numbers
        numbers = device_hash.drawn(keys, 0, num_patches)  # [B, N]
        order = numbers.argsort(dim=1, stable=True)
        return order[:, : num_kept(num_patches, _share)].sort(dim=1).values

    def check_features(self) -> None:
        """Refuse to give the tokens of all patches, or of chosen ones, while training leaves some out.

        Raises:
            NeedsAllPatches: if patches are left out.
        """
        if self.is_dropping:
            raise NeedsAllPatches(
                "train.patch_drop leaves out patches of whole views, and this step reads single tokens; leave it out"
            )

    def extra_repr(self) -> str:
        """Return the slot, for printing."""
        return f"slot={self.slot}"


def num_kept(num_patches: int, share: float) -> int:
    """Return the number of patches that stay when a share of them is left out, at least one.

    >>> num_kept(196, 0.5), num_kept(9, 0.5), num_kept(4, 0.99)
    (98, 5, 1)
    """
    return max(1, num_patches - round(num_patches * share))


@contextmanager
def dropping_patches(share: float) -> Iterator[None]:
    """Leave out a share of the patches, in [0, 1), in each pass of a network in training while it is open."""
    global _share
    before, _share = _share, share
    try:
        yield
    finally:
        _share = before


_share = 0.0
