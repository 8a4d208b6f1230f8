"""Position embeddings of patches: fixed ones, and resizing to another grid."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Resize = Literal["antialias", "plain", "dino"]
"""Rules of `resize_positions`."""


def sincos_positions(height: int, width: int, dim: int, num_prefix: int = 1) -> Tensor:
    """Return sines and cosines of patch positions [1, num_prefix + height*width, dim], as in MAE (arXiv 2111.06377).

    The first half of the channels encodes the column, the second half the row: dim / 4 sines, then as many cosines, of
    position / 10000^(i / (dim / 4)). Prefix tokens (the class token, in MAE) get zeros.

    >>> sincos_positions(14, 14, dim=192).shape
    torch.Size([1, 197, 192])

    Raises:
        ValueError: if `dim` is not a multiple of 4.
    """
    if dim % 4:
        raise ValueError(
            f"{dim} channels do not divide into sines and cosines of rows and columns; give a multiple of 4"
        )
    quarter = dim // 4
    rates = 10000.0 ** (-torch.arange(quarter, dtype=torch.float64, device="cpu") / quarter)  # [dim / 4]

    def waves(num: int) -> Tensor:
        angles = torch.arange(num, dtype=torch.float64, device="cpu")[:, None] * rates  # [num, dim / 4]
        return torch.cat([angles.sin(), angles.cos()], dim=1)  # [num, dim / 2]

    columns = waves(width)[None].expand(height, -1, -1)
    rows = waves(height)[:, None].expand(-1, width, -1)
    positions = torch.cat([columns, rows], dim=2).reshape(1, height * width, dim)
    return F.pad(positions, (0, 0, num_prefix, 0)).float()


def resize_positions(
    places: Tensor, old: tuple[int, int], new: tuple[int, int], resize: Resize = "antialias"
) -> Tensor:
    """Resize position embeddings to another grid [1, h'*w', D], bicubically, in at least fp32.

    >>> resize_positions(torch.zeros(1, 196, 192), (14, 14), (7, 7)).shape
    torch.Size([1, 49, 192])

    Args:
        places: [1, h*w, D], row by row.
        old: their grid (h, w).
        new: the grid (h', w') of the result; the old grid returns `places` itself.
        resize: "antialias" as in timm, and in DINOv2 with registers; "plain" without antialiasing, as in MSN; "dino"
            plain, as if the new grid were a tenth of a patch longer, as in DINO, iBOT and DINOv2.
    """
    if old == new:
        return places
    with torch.autocast(places.device.type, enabled=False):
        wide = places.to(torch.promote_types(places.dtype, torch.float32))
        image = wide.view(1, *old, -1).permute(0, 3, 1, 2)  # [1, D, h, w]
        if resize == "dino":
            factors = [(new_side + 0.1) / old_side for new_side, old_side in zip(new, old, strict=True)]
            resized = F.interpolate(image, scale_factor=factors, mode="bicubic", align_corners=False)
        else:
            is_smooth = resize == "antialias"
            resized = F.interpolate(image, size=new, mode="bicubic", antialias=is_smooth, align_corners=False)
    return resized.flatten(2).transpose(1, 2).to(places.dtype)
