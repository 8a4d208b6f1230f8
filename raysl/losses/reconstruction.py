"""Losses on pixels that a network did not see."""

import torch
from torch import Tensor

from raysl.losses.precision import at_least_fp32


def masked_patch_mse(predictions: Tensor, patches: Tensor, mask: Tensor, is_normalised: bool = True) -> Tensor:
    """Squared error of predicted pixels on masked patches (MAE, He et al. 2021, arXiv 2111.06377, section 3).

    Mean over the values of a patch, the masked patches of an image, and images; as a mask of MAE hides equally many
    patches of each image, that is the mean over masked patches. An image without any adds 0.

    Args:
        predictions: [B, L, P].
        patches: the pixels of `patchify`, [B, L, P]; no gradient flows into them.
        mask: bool [B, L], True where a patch was hidden.
        is_normalised: compare with pixels less the mean of their patch, over the root of its (unbiased) variance
            + 1e-6 (section 4.1, table 1d).

    Raises:
        ValueError: if the shapes do not fit, or a patch has one value and is to be normalised.
    """
    _check_shapes(predictions, patches, mask)
    if is_normalised and patches.shape[2] < 2:
        raise ValueError("a patch of one value has no variance to normalise by; give patches of at least two")
    with torch.autocast(predictions.device.type, enabled=False):
        target = at_least_fp32(patches.detach())
        if is_normalised:
            var, mean = torch.var_mean(target, dim=-1, correction=1, keepdim=True)
            target = (target - mean) / (var + 1e-6).sqrt()
        errors = (at_least_fp32(predictions) - target).square().mean(dim=-1)  # [B, L]
        return _over_masked(errors, mask)


def masked_patch_l1(predictions: Tensor, patches: Tensor, mask: Tensor) -> Tensor:
    """Absolute error of predicted pixels on masked patches (SimMIM, Xie et al. 2021, arXiv 2111.09886, section 3.4).

    Mean over the values of a patch, the masked patches of an image, and images, with the arguments of
    `masked_patch_mse`. Pixels are compared as they are.

    Raises:
        ValueError: if the shapes do not fit.
    """
    _check_shapes(predictions, patches, mask)
    with torch.autocast(predictions.device.type, enabled=False):
        errors = (at_least_fp32(predictions) - at_least_fp32(patches.detach())).abs().mean(dim=-1)  # [B, L]
        return _over_masked(errors, mask)


def patchify(images: Tensor, patch_size: int) -> Tensor:
    """Images [B, C, H, W] as rows of patches [B, H/p * W/p, p*p*C], a patch's values by row, column and channel.

    Raises:
        ValueError: if `patch_size` does not divide both sides.
    """
    batch, channels, height, width = images.shape
    if height % patch_size or width % patch_size:
        raise ValueError(f"patches of {patch_size} pixels do not fill images of {height} x {width}")
    grid = images.reshape(batch, channels, height // patch_size, patch_size, width // patch_size, patch_size)
    return grid.permute(0, 2, 4, 3, 5, 1).reshape(batch, -1, patch_size**2 * channels)  # from [B, C, h, p, w, p]


def _check_shapes(predictions: Tensor, patches: Tensor, mask: Tensor) -> None:
    if predictions.shape != patches.shape or mask.shape != patches.shape[:2]:
        raise ValueError(
            f"predictions {list(predictions.shape)}, patches {list(patches.shape)} and mask {list(mask.shape)} must be "
            "[B, L, P], [B, L, P] and [B, L]"
        )


def _over_masked(errors: Tensor, mask: Tensor) -> Tensor:
    """Mean over images of the mean error [B, L] of the masked patches of each; an image without any adds 0."""
    masked = mask.to(errors.dtype)
    return ((errors * masked).sum(dim=1) / masked.sum(dim=1).clamp(min=1)).mean()
