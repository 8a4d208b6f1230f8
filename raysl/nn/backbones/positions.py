"""Position embeddings of patches: fixed ones, resizing to another grid, and rotations of queries and keys."""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.nn.drop_path import Drawing, draw

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
    positions: Tensor, old: tuple[int, int], new: tuple[int, int], resize: Resize = "antialias"
) -> Tensor:
    """Resize position embeddings to another grid [1, h'*w', D], bicubically, in at least fp32.

    >>> resize_positions(torch.zeros(1, 196, 192), (14, 14), (7, 7)).shape
    torch.Size([1, 49, 192])

    Args:
        positions: [1, h*w, D], row by row.
        old: their grid (h, w).
        new: the grid (h', w') of the result; the old grid returns `positions` itself.
        resize: "antialias" as in timm, and in DINOv2 with registers; "plain" without antialiasing, as in MSN; "dino"
            plain, as if the new grid were a tenth of a patch longer, as in DINO, iBOT and DINOv2.
    """
    if old == new:
        return positions
    with torch.autocast(positions.device.type, enabled=False):
        wide = positions.to(torch.promote_types(positions.dtype, torch.float32))
        image = wide.view(1, *old, -1).permute(0, 3, 1, 2)  # [1, D, h, w]
        if resize == "dino":
            factors = [(new_side + 0.1) / old_side for new_side, old_side in zip(new, old, strict=True)]
            resized = F.interpolate(image, scale_factor=factors, mode="bicubic", align_corners=False)
        else:
            is_smooth = resize == "antialias"
            resized = F.interpolate(image, size=new, mode="bicubic", antialias=is_smooth, align_corners=False)
    return resized.flatten(2).transpose(1, 2).to(positions.dtype)


class RotaryPositions(Drawing):
    """Rotations of queries and keys by the places of their patches (Su et al. 2021, arXiv 2104.09864), as in DINOv3
    (Simeoni et al. 2025, arXiv 2508.10104, section 3.2).

    A place is the centre of a patch, its row and its column each from -1 to 1 over the image, whatever the grid. The
    first half of a head's pairs of channels turns with the row, the second with the column: by pi turns place / period,
    where the dim / 4 periods rise from 1 towards `base` in a geometric row. In training the places of each view are
    moved, stretched along each axis, and scaled, by random amounts of its own, the same in all blocks; DINOv3's code
    draws them for each block and all images of a batch.

    >>> positions = RotaryPositions(16)
    >>> positions(torch.zeros(2, 3, 32, 48), grid=(2, 3)).shape
    torch.Size([2, 1, 6, 16])

    Args:
        dim: channels of a head, a multiple of 4.
        base: base of the periods, above 0.
        shift: largest move along each axis, either way; 0 for none.
        jitter: largest factor of each axis, whose logarithm is drawn evenly; 1 for none.
        rescale: the same of both axes together.
        slot: first of the five numbers of this module in its network, see `Drawing`.
        turns: number of turns of the fastest pair over an image.
    """

    def __init__(
        self,
        dim: int,
        base: float = 100.0,
        shift: float = 0.0,
        jitter: float = 1.0,
        rescale: float = 1.0,
        slot: int = 0,
        turns: float = 2.0,
    ) -> None:
        super().__init__()
        self.dim, self.base, self.turns = dim, base, turns
        self.shift, self.jitter, self.rescale = shift, jitter, rescale
        self.slot = slot

    @property
    def slots(self) -> tuple[int, ...]:
        """Slots of the numbers that training draws: two moves, two stretches, a scale."""
        draws = [self.shift > 0] * 2 + [self.jitter > 1] * 2 + [self.rescale > 1]
        return tuple(self.slot + number for number, is_drawn in enumerate(draws) if is_drawn)

    def settle(self) -> None:
        """Leave the places as they are."""
        self.shift, self.jitter, self.rescale = 0.0, 1.0, 1.0

    def forward(self, images: Tensor, grid: tuple[int, int]) -> Tensor:
        """Return sines and cosines [2, n, h*w, dim] for images [B, ...] of h x w patches, in at least fp32; n is B
        where places are moved, else 1."""
        dtype = torch.promote_types(images.dtype, torch.float32)
        with torch.autocast(images.device.type, enabled=False):
            axes = [(torch.arange(side, device=images.device, dtype=dtype) + 0.5) / side * 2 - 1 for side in grid]
            centres = torch.stack(torch.meshgrid(axes, indexing="ij"), dim=-1).view(1, -1, 2)  # [1, h*w, 2]
            if self.training and self.slots:
                centres = self._moved(centres, images)  # [B, h*w, 2]
            quarter = self.dim // 4
            periods = self.base ** (torch.arange(quarter, device=images.device, dtype=dtype) / quarter)  # [dim / 4]
            angles = (math.pi * self.turns * centres[..., None] / periods).flatten(2).repeat(1, 1, 2)  # [n, h*w, dim]
            return torch.stack([angles.sin(), angles.cos()])

    def extra_repr(self) -> str:
        """Return the settings, for printing."""
        moves = f"shift={self.shift:g}, jitter={self.jitter:g}, rescale={self.rescale:g}"
        return f"dim={self.dim}, base={self.base:g}, turns={self.turns:g}, {moves}"

    def _moved(self, centres: Tensor, images: Tensor) -> Tensor:
        def drawn(first: int, num: int) -> Tensor:
            numbers = [draw(images, self.slot + first + number).to(centres.dtype) for number in range(num)]
            return 2 * torch.stack(numbers, dim=1)[:, None] - 1  # [B, 1, num] in [-1, 1)

        if self.shift > 0:
            centres = centres + self.shift * drawn(0, 2)
        if self.jitter > 1:
            centres = centres * (math.log(self.jitter) * drawn(2, 2)).exp()
        if self.rescale > 1:
            centres = centres * (math.log(self.rescale) * drawn(4, 1)).exp()
        return centres


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn queries or keys of patches, the last tokens, and leave those before them as they are.

    >>> quarter = torch.tensor([1.0, 0.0]).view(2, 1, 1, 1).expand(2, 1, 1, 2)  # sine 1, cosine 0
    >>> rotate(torch.tensor([[[[5.0, 6.0], [1.0, 2.0]]]]), quarter)
    tensor([[[[ 5.,  6.],
              [-2.,  1.]]]])

    Args:
        x: [B, heads, T, d]; channel i and channel i + d / 2 are a pair.
        rotation: sines and cosines [2, n, N, d] of `RotaryPositions`, n is B or 1, N at most T.
    """
    num_first = x.shape[2] - rotation.shape[2]
    first, patches = x[:, :, :num_first], x[:, :, num_first:]
    sines, cosines = rotation[:, :, None]  # [n, 1, N, d]
    low, high = patches.chunk(2, dim=-1)
    turned = patches * cosines + torch.cat([-high, low], dim=-1) * sines
    return torch.cat([first, turned.to(x.dtype)], dim=2)


def rotation_at(rotation: Tensor, index: Tensor) -> Tensor:
    """Return the rotations of some patches [2, B, M, d].

    >>> rotation_at(torch.arange(6.0).view(2, 1, 3, 1), torch.tensor([[2, 0]])).flatten()
    tensor([2., 0., 5., 3.])

    Args:
        rotation: rotation of all patches [2, n, N, d], n is B or 1.
        index: indices of the patches among the N, int64 [B, M].
    """
    rotation = rotation.expand(-1, len(index), -1, -1)
    return rotation.gather(2, index[None, :, :, None].expand(2, -1, -1, rotation.shape[3]))
