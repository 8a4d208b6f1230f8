"""What methods that predict pixels see of images and what they predict, for pictures."""

from dataclasses import dataclass

import torch
from torch import Tensor

from raysl.losses import patchify, unnormalise_patches, unpatchify


@dataclass(frozen=True)
class Reconstruction:
    """What a method sees of images and what it predicts of the rest.

    Args:
        images: float [N, C, H, W], normalised as the method gets them.
        seen: pixels that it sees, of the same shape; NaN elsewhere.
        predicted: pixels that it sees, and predictions of others; NaN elsewhere.
    """

    images: Tensor
    seen: Tensor
    predicted: Tensor


def patch_reconstruction(
    images: Tensor,
    mask: Tensor,
    predictions: Tensor,
    patch_size: int,
    is_normalised: bool = False,
    is_predicted: Tensor | None = None,
) -> Reconstruction:
    """Return the reconstruction of images of which patches are hidden.

    Args:
        images: normalised images [N, C, H, W].
        mask: bool [N, L], true where a patch is hidden.
        predictions: pixels of all patches in the order of `patchify` [N, L, p*p*C].
        is_normalised: whether they are normalised by patch; they get the mean and the deviation of the patch itself, as
            in the demonstration of MAE's authors.
        is_predicted: bool [N, L], which of the hidden patches were predicted. Default: all.
    """
    patches = patchify(images, patch_size)
    pixels = unnormalise_patches(predictions, patches) if is_normalised else predictions
    hidden = mask[:, :, None]
    blank = torch.full_like(patches, torch.nan)
    shown = pixels.to(patches.dtype)
    if is_predicted is not None:
        shown = torch.where(is_predicted[:, :, None], shown, blank)
    height, width = images.shape[2:]
    seen, predicted = (
        unpatchify(torch.where(hidden, other, patches), patch_size, height, width) for other in (blank, shown)
    )
    return Reconstruction(images, seen, predicted)


def placed(values: Tensor, index: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """Return predictions of some patches among those of all, and which patches they are of.

    Args:
        values: predictions [N, M, P].
        index: numbers of their patches, int64 [N, M].
        num: number of all patches L.

    Returns:
        [N, L, P], 0 elsewhere, and bool [N, L].
    """
    everything = values.new_zeros(len(values), num, values.shape[2])
    is_placed = torch.zeros(len(values), num, dtype=torch.bool, device=values.device)
    return everything.scatter(1, index[:, :, None].expand_as(values), values), is_placed.scatter(1, index, True)
