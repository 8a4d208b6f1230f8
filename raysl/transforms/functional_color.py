"""Colour operations of AutoAugment, PIRL and Colorization on a batch, beside those of `raysl.transforms.functional`.

Images are float [B, C, H, W] in [0, 1]; parameters are tensors [B] that may stay on the CPU. Operations on the 256
levels of uint8 images (`posterize`, `equalize`, `to_lab`) first round each value to its nearest level.
"""

import torch
from torch import Tensor

from raysl.transforms.device import to_device, to_type_of
from raysl.transforms.functional import change_where, to_float, to_uint8

XYZ = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)
"""Rows: X, Y and Z of linear red, green and blue (IEC 61966-2-1)."""
WHITE = tuple(sum(row) for row in XYZ)
"""X, Y and Z of white, D65."""


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the `bits` [B] highest of the 8 bits of each value, integers in [0, 8]; 8 is the image itself.

    Equal to torchvision's `posterize` of the uint8 image.
    """

    def keep_high_bits(chosen: Tensor, bits: Tensor) -> Tensor:
        kept = (0xFF << (8 - bits)) & 0xFF
        return to_float(to_uint8(chosen) & _column(kept.to(torch.uint8), chosen.device)).to(chosen.dtype)

    return change_where(bits < 8, images, keep_high_bits, bits)


def adjust_sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Move away from the smoothed image by `factor` [B] >= 0: 0 is smooth, 1 the image itself, 2 sharp.

    Equal to torchvision's `adjust_sharpness` of the float image within 1e-6. The smoothed image is the mean of 3x3
    neighbours in which the centre counts five times; the outermost pixels stay as they are.
    """
    if min(images.shape[-2:]) <= 2:
        return images

    def sharpen(chosen: Tensor, factor: Tensor) -> Tensor:
        out = chosen.clone()
        centre = out[..., 1:-1, 1:-1]
        columns = chosen[..., :-2] + chosen[..., 1:-1] + chosen[..., 2:]
        smooth = columns[..., :-2, :] + columns[..., 1:-1, :] + columns[..., 2:, :]
        # the centre counts once in the nine and four times more, which makes weights of 13 in all
        smooth.add_(centre.mul(4.0)).mul_(1.0 / 13.0)
        smooth.sub_(centre).mul_(_column((1.0 - factor).to(chosen.dtype), chosen.device))
        centre.add_(smooth)
        return out.clamp_(0.0, 1.0)

    return change_where(factor != 1.0, images, sharpen, factor)


def autocontrast(images: Tensor, mask: Tensor) -> Tensor:
    """Stretch each channel to [0, 1] where `mask`, bool [B], is true; a channel of one value stays as it is.

    Equal to torchvision's `autocontrast` of the float image, to the last bit.
    """

    def stretch(chosen: Tensor) -> Tensor:
        low, high = chosen.amin(dim=(-2, -1), keepdim=True), chosen.amax(dim=(-2, -1), keepdim=True)
        is_flat = low == high
        shift, scale = low.masked_fill(is_flat, 0.0), (high - low).masked_fill(is_flat, 1.0)
        return (chosen - shift).div_(scale).clamp_(0.0, 1.0)

    return change_where(mask, images, stretch)


def equalize(images: Tensor, mask: Tensor) -> Tensor:
    """Spread the 256 levels of each channel evenly where `mask`, bool [B], is true, by Pillow's rule.

    Equal to torchvision's `equalize` of the uint8 image. A channel with too few pixels below its highest level (fewer
    than 255) stays as it is.
    """

    def spread(chosen: Tensor) -> Tensor:
        levels = to_uint8(chosen).flatten(2).long()  # [B, C, H*W]
        counts = levels.new_zeros(*levels.shape[:2], 256)
        counts.scatter_add_(2, levels, torch.ones_like(levels))
        num_highest = counts.gather(2, levels.amax(dim=2, keepdim=True))
        step = (levels.shape[2] - num_highest) // 255  # [B, C, 1]
        num_below = counts.cumsum(dim=2) - counts
        table = ((num_below + step // 2) // step.clamp_min(1)).clamp_max(255)
        spread_out = to_float(table.gather(2, levels).to(torch.uint8)).view_as(chosen).to(chosen.dtype)
        return torch.where(step[..., None] > 0, spread_out, chosen)

    return change_where(mask, images, spread)


def invert(images: Tensor, mask: Tensor) -> Tensor:
    """The negative, 1 - x, where `mask`, bool [B], is true. Equal to torchvision's `invert`, to the last bit."""
    return change_where(mask, images, lambda chosen: 1.0 - chosen)


def _column(values: Tensor, device: torch.device) -> Tensor:
    """Values [B] as [B, 1, 1, 1] on a device."""
    return to_device(values, device)[:, None, None, None]


def to_lab(images: Tensor) -> Tensor:
    """Convert sRGB images to CIE `L*a*b*` (D65), scaled to [0, 1]: L / 100, (a + 128) / 255, (b + 128) / 255.

    Exact to 2e-6 of each channel's range.

    >>> to_lab(torch.zeros(1, 3, 1, 1)).flatten()  # black
    tensor([0.0000, 0.5020, 0.5020])

    Args:
        images: float [B, 3, H, W] in [0, 1].

    Raises:
        ValueError: if the images do not have three channels.
    """
    if images.shape[1] != 3:
        raise ValueError(f"images of {images.shape[1]} channels have no L*a*b*; give red, green and blue")
    linear = torch.tensor([_linear(level / 255.0) for level in range(256)], dtype=torch.float64)
    table = to_type_of(linear, images)
    levels = to_uint8(images).long()
    red, green, blue = table.index_select(0, levels.flatten()).view_as(images).unbind(1)  # [B, H, W] each
    x, y, z = (
        _cube_root_or_line(red * (of_red / white) + green * (of_green / white) + blue * (of_blue / white))
        for (of_red, of_green, of_blue), white in zip(XYZ, WHITE, strict=True)
    )
    lightness = y * 1.16 - 0.16
    a = ((x - y) * 500.0 + 128.0) / 255.0
    b = ((y - z) * 200.0 + 128.0) / 255.0
    return torch.stack((lightness, a, b), dim=1).clamp_(0.0, 1.0)


def from_lab(lab: Tensor) -> Tensor:
    """Convert CIE `L*a*b*` as `to_lab` returns it to sRGB images in [0, 1]; colours outside of sRGB are cut to it.

    >>> from_lab(to_lab(torch.tensor([1.0, 0.2, 0.0]).view(1, 3, 1, 1))).flatten()
    tensor([1.0000, 0.2000, 0.0000])

    Args:
        lab: float [B, 3, H, W] in [0, 1].
    """
    lightness, a, b = lab.unbind(1)  # [B, H, W] each
    middle = (lightness + 0.16) / 1.16
    roots = (middle + (a * 255.0 - 128.0) / 500.0, middle, middle - (b * 255.0 - 128.0) / 200.0)
    shares = [torch.where(root > 6.0 / 29.0, root**3, (root - 4.0 / 29.0) * (108.0 / 841.0)) for root in roots]
    xyz = torch.stack([share * white for share, white in zip(shares, WHITE, strict=True)], dim=1)  # [B, 3, H, W]
    to_linear = torch.linalg.inv(torch.tensor(XYZ, dtype=torch.float64)).to(lab)
    linear = torch.einsum("rc,bchw->brhw", to_linear, xyz).clamp(0.0, 1.0)
    return torch.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear.clamp(min=1e-9) ** (1 / 2.4) - 0.055)


def _linear(value: float) -> float:
    """Return the linear light of an sRGB value in [0, 1]."""
    return float(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)


def _cube_root_or_line(values: Tensor) -> Tensor:
    """Return f of CIE `L*a*b*` for values in [0, 1]: the cube root above (6 / 29)**3, a line below."""
    bound = (6.0 / 29.0) ** 3
    bright = values.clamp_min(bound)
    root = bright * 0.7 + 0.3
    for _ in range(4):  # Halley's method, from within 50 % to the last bits
        cube = root * root * root
        root = root * (cube + bright * 2.0) / (cube * 2.0 + bright)
    return torch.where(values > bound, root, values * (841.0 / 108.0) + 4.0 / 29.0)
