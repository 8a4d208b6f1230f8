"""Losses on reconstructed pixels of masked patches."""

import torch
from torch import Tensor

from raysl.losses.precision import at_least_fp32


def masked_patch_mse(predictions: Tensor, patches: Tensor, mask: Tensor, is_normalised: bool = True) -> Tensor:
    """Squared error of predicted pixels on masked patches (MAE, He et al. 2021, arXiv 2111.06377, section 3).

    Mean over the values of a patch, the masked patches of an image, and images. MAE masks equally many patches of each
    image, so this is the mean over masked patches. An image without masked patches adds 0.

    >>> patches = torch.tensor([[[1.0, 3.0], [0.0, 0.0]]])
    >>> masked_patch_mse(torch.zeros(1, 2, 2), patches, torch.tensor([[True, False]]), is_normalised=False)
    tensor(5.)

    Args:
        predictions: [B, L, P].
        patches: the pixels from `patchify`, [B, L, P]; no gradient flows into them.
        mask: bool [B, L], True where a patch was masked.
        is_normalised: compare with pixels minus their patch's mean, divided by the root of its (unbiased) variance
            + 1e-6 (section 4.1, table 1d).

    Raises:
        ValueError: if the shapes do not fit, or patches of one value are to be normalised.
    """
    _check_shapes(predictions, patches, mask)
    if is_normalised and patches.shape[2] < 2:
        raise ValueError("a patch of one value has no variance to normalise by; give patches of at least two")
    with torch.autocast(predictions.device.type, enabled=False):
        target = at_least_fp32(patches.detach())
        if is_normalised:
            mean, deviation = _statistics(target)
            target = (target - mean) / deviation
        errors = (at_least_fp32(predictions) - target).square().mean(dim=-1)  # [B, L]
        return _over_masked(errors, mask)


def masked_patch_l1(predictions: Tensor, patches: Tensor, mask: Tensor) -> Tensor:
    """Absolute error of predicted pixels on masked patches (SimMIM, Xie et al. 2021, arXiv 2111.09886, section 3.4).

    Mean over the values of a patch, the masked patches of an image, and images, with the arguments of
    `masked_patch_mse`. Pixels are not normalised.

    >>> patches = torch.tensor([[[1.0, 3.0], [0.0, 0.0]]])
    >>> masked_patch_l1(torch.zeros(1, 2, 2), patches, torch.tensor([[True, False]]))
    tensor(2.)

    Raises:
        ValueError: if the shapes do not fit.
    """
    _check_shapes(predictions, patches, mask)
    with torch.autocast(predictions.device.type, enabled=False):
        errors = (at_least_fp32(predictions) - at_least_fp32(patches.detach())).abs().mean(dim=-1)  # [B, L]
        return _over_masked(errors, mask)


def patchify(images: Tensor, patch_size: int) -> Tensor:
    """Cut images [B, C, H, W] into patches [B, H/p * W/p, p*p*C], whose values are in order of row, column and channel.

    >>> patchify(torch.zeros(2, 3, 224, 224), patch_size=16).shape
    torch.Size([2, 196, 768])

    Raises:
        ValueError: if `patch_size` does not divide both sides.
    """
    batch, channels, height, width = images.shape
    if height % patch_size or width % patch_size:
        raise ValueError(f"patches of {patch_size} pixels do not cover images of {height} x {width}; give a divisor")
    grid = images.reshape(batch, channels, height // patch_size, patch_size, width // patch_size, patch_size)
    return grid.permute(0, 2, 4, 3, 5, 1).reshape(batch, -1, patch_size**2 * channels)  # from [B, C, h, p, w, p]


def unpatchify(patches: Tensor, patch_size: int, height: int, width: int) -> Tensor:
    """Put patches [B, H/p * W/p, p*p*C] together into images [B, C, H, W]; `patchify` cuts them again.

    >>> images = torch.randn(2, 3, 8, 12)
    >>> torch.equal(unpatchify(patchify(images, patch_size=4), patch_size=4, height=8, width=12), images)
    True

    Raises:
        ValueError: if the patches do not cover images of this size.
    """
    batch, num, values = patches.shape
    rows, columns, channels = height // patch_size, width // patch_size, values // patch_size**2
    if (rows * patch_size, columns * patch_size) != (height, width) or rows * columns != num:
        raise ValueError(f"{num} patches of {patch_size} pixels do not cover images of {height} x {width}")
    grid = patches.reshape(batch, rows, columns, patch_size, patch_size, channels)
    return grid.permute(0, 5, 1, 3, 2, 4).reshape(batch, channels, height, width)  # from [B, h, w, p, p, C]


def unnormalise_patches(predictions: Tensor, patches: Tensor) -> Tensor:
    """Give predictions that are normalised by patch the mean and the deviation of the patches [B, L, P], in at least
    fp32; the inverse of what `masked_patch_mse` does to its targets.

    >>> unnormalise_patches(torch.zeros(1, 1, 2), torch.tensor([[[1.0, 3.0]]]))
    tensor([[[2., 2.]]])
    """
    mean, deviation = _statistics(at_least_fp32(patches))
    return at_least_fp32(predictions) * deviation + mean


def _statistics(patches: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of each patch and the root of its unbiased variance + 1e-6, [B, L, 1] each."""
    var, mean = torch.var_mean(patches, dim=-1, correction=1, keepdim=True)
    return mean, (var + 1e-6).sqrt()


def _check_shapes(predictions: Tensor, patches: Tensor, mask: Tensor) -> None:
    if predictions.shape != patches.shape or mask.shape != patches.shape[:2]:
        raise ValueError(
            f"predictions {list(predictions.shape)}, patches {list(patches.shape)} and mask {list(mask.shape)} must be "
            "[B, L, P], [B, L, P] and [B, L]"
        )


def _over_masked(errors: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over images of the mean error [B, L] of masked patches; an image without any adds 0."""
    masked = mask.to(errors.dtype)
    return ((errors * masked).sum(dim=1) / masked.sum(dim=1).clamp(min=1)).mean()
