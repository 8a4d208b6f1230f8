"""From sRGB to CIE L*a*b*, with nothing but sums, products and quotients of whole tensors, and a table.

Vectorised powers may differ in the last bit between the body and the tail of an array, which would let an image depend
on its batch.
"""

import torch
from torch import Tensor

from raysl.transforms.functional import to_uint8

XYZ = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)
"""Rows: X, Y and Z of linear red, green and blue (IEC 61966-2-1)."""
WHITE = tuple(sum(row) for row in XYZ)
"""X, Y and Z of white, D65."""


def to_lab(images: Tensor) -> Tensor:
    """CIE L*a*b* (D65) of sRGB images, in channels that stay inside [0, 1]: L / 100, (a + 128) / 255, (b + 128) / 255.

    Values are taken to the nearest of 256 levels first. Exact to 2e-6 of each channel's range.

    Args:
        images: float [B, 3, H, W] in [0, 1].

    Raises:
        ValueError: if the images do not have three channels.
    """
    if images.shape[1] != 3:
        raise ValueError(f"images of {images.shape[1]} channels have no L*a*b*; give red, green and blue")
    levels = torch.tensor([_linear(level / 255.0) for level in range(256)], dtype=torch.float64)
    table = levels.to(images, non_blocking=True)
    places = to_uint8(images).long()
    red, green, blue = table.index_select(0, places.flatten()).view_as(images).unbind(1)  # [B, H, W] each
    x, y, z = (
        _cube_root_or_line(red * (of_red / white) + green * (of_green / white) + blue * (of_blue / white))
        for (of_red, of_green, of_blue), white in zip(XYZ, WHITE, strict=True)
    )
    lightness = y * 1.16 - 0.16
    a = ((x - y) * 500.0 + 128.0) / 255.0
    b = ((y - z) * 200.0 + 128.0) / 255.0
    return torch.stack((lightness, a, b), dim=1).clamp_(0.0, 1.0)


def _linear(value: float) -> float:
    """Linear light of one sRGB value in [0, 1]."""
    return float(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)


def _cube_root_or_line(values: Tensor) -> Tensor:
    """f of CIE L*a*b* for values in [0, 1]: the cube root from (6 / 29)**3 on, its tangent there below."""
    bound = (6.0 / 29.0) ** 3
    bright = values.clamp_min(bound)
    root = bright * 0.7 + 0.3
    for _ in range(4):  # Halley's method, from within 50 % to the last bits
        cube = root * root * root
        root = root * (cube + bright * 2.0) / (cube * 2.0 + bright)
    return torch.where(values > bound, root, values * (841.0 / 108.0) + 4.0 / 29.0)
