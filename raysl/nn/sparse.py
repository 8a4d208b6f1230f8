"""Convolutional networks that see some squares of an image alone, as sparse convolutions would.

Dense convolutions would carry visible values into hidden squares, layer by layer, and the statistics of batch
normalisation would count the zeros there (SparK, Tian et al. 2023, arXiv 2301.03580, section 3.2). So hidden squares
are set to 0 behind every layer that writes into them, and normalisation takes visible values alone: the submanifold
sparse convolution, computed by dense ones.
"""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from raysl.nn.backbones.backbone import visible_places
from raysl.nn.drop_path import Drawing

_WRITE = nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d
_NORMALISE = _BatchNorm, nn.GroupNorm
_ACTIVATIONS = nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Hardswish, nn.LeakyReLU, nn.ELU
_KEEP = *_ACTIVATIONS, nn.Identity, nn.Dropout, Drawing
"""Layers that leave 0 as it is."""


class Sparse:
    """Hides squares of images from networks, and from all of their layers, while `show` is in force.

    It adds hooks to the layers; names of modules and of parameters stay, and without `show` networks compute as before.

    >>> import torch
    >>> convolution = nn.Conv2d(1, 1, 3, padding=1)
    >>> sparse = Sparse([convolution])
    >>> sparse.show(torch.tensor([[[False, True]]]), num_visible=1)  # of an image's two squares the first
    >>> convolution(torch.ones(1, 1, 2, 4))[..., 2:].abs().sum()
    tensor(0., grad_fn=<SumBackward0>)
    >>> sparse.show_all()

    A layer of another kind than convolutions, pools, batch and group normalisation, and activations that leave 0 as it
    is, raises a ValueError when it runs on a map with hidden squares.

    Args:
        networks: convolutional networks, or parts of them.
    """

    def __init__(self, networks: Iterable[nn.Module]) -> None:
        self._visible: Tensor | None = None
        self._keep: Tensor | None = None
        for network in networks:
            for layer in network.modules():
                self._attach(layer)

    def show(self, mask: Tensor, num_visible: int) -> None:
        """Hide squares from the next passes, until `show_all` or another mask.

        Args:
            mask: bool [B, h, w], True for the hidden squares; sides of all maps are multiples of h and w.
            num_visible: number K of visible squares of each image, the same for all.
        """
        self._visible = mask.logical_not()[:, None]  # [B, 1, h, w]
        self._keep = visible_places(mask, num_visible)  # [B, K]

    def show_all(self) -> None:
        """Hide nothing from the next passes."""
        self._visible = self._keep = None

    def hide(self, x: Tensor) -> Tensor:
        """Return maps or images [B, C, H, W] with 0 in the hidden squares."""
        return x * self.spread(x).to(x.dtype)

    def spread(self, x: Tensor) -> Tensor:
        """Return which places of maps [B, C, H, W] are seen, bool [B, 1, H, W].

        Raises:
            ValueError: if the squares do not divide the map.
        """
        assert self._visible is not None
        tall, wide = self._cell(x)
        return self._visible.repeat_interleave(tall, dim=2).repeat_interleave(wide, dim=3)

    def _attach(self, layer: nn.Module) -> None:
        if isinstance(layer, _WRITE):
            layer.register_forward_hook(self._hide_output)
        elif isinstance(layer, _NORMALISE):
            layer.register_forward_pre_hook(self._gather_input)
            layer.register_forward_hook(self._scatter_output)
        elif not isinstance(layer, _KEEP) and next(layer.children(), None) is None:
            layer.register_forward_pre_hook(self._refuse)

    def _refuse(self, layer: nn.Module, args: Any) -> None:
        if self._keep is not None:
            raise ValueError(
                f"{type(layer).__name__} is none of the layers that can leave out hidden squares: convolutions, pools, "
                "batch and group normalisation, and activations that leave 0 as it is"
            )

    def _hide_output(self, layer: nn.Module, args: Any, out: Tensor) -> Tensor:
        return out if self._visible is None else self.hide(out)

    def _gather_input(self, layer: nn.Module, args: tuple[Tensor]) -> Tensor | None:
        """Replace maps [B, C, H, W] by their visible values [B, C, K * tall, wide]."""
        if self._keep is None:
            return None
        (x,) = args
        tall, wide = self._cell(x)
        squares = _cut(x, tall, wide)  # [B, L, C * tall * wide]
        shown = squares.gather(1, self._keep[:, :, None].expand(-1, -1, squares.shape[2]))  # [B, K, C * tall * wide]
        cells = shown.view(len(x), -1, x.shape[1], tall, wide)  # [B, K, C, tall, wide]
        return cells.transpose(1, 2).flatten(2, 3)

    def _scatter_output(self, layer: nn.Module, args: Any, out: Tensor) -> Tensor:
        """Put visible values [B, C, K * tall, wide] back into maps [B, C, H, W] of zeros."""
        if self._keep is None or self._visible is None:
            return out
        num, channels, _, wide = out.shape
        height, width = self._visible.shape[2:]
        num_visible = self._keep.shape[1]
        tall = out.shape[2] // num_visible
        squares = out.reshape(num, channels, num_visible, tall, wide).transpose(1, 2)  # [B, K, C, tall, wide]
        empty = out.new_zeros(num, height * width, channels * tall * wide)
        places = self._keep[:, :, None].expand(-1, -1, empty.shape[2])
        filled = empty.scatter(1, places, squares.flatten(2)).view(num, height, width, channels, tall, wide)
        return filled.permute(0, 3, 1, 4, 2, 5).reshape(num, channels, height * tall, width * wide)

    def _cell(self, x: Tensor) -> tuple[int, int]:
        """Return the height and width of a square in a map [B, C, H, W]."""
        assert self._visible is not None
        (height, width), (h, w) = x.shape[-2:], self._visible.shape[2:]
        if x.ndim != 4 or height % h or width % w or height < h or width < w:
            raise ValueError(
                f"a layer gives {list(x.shape)}, where {h} x {w} squares cannot be hidden; networks with layers over "
                "whole maps, such as squeeze and excitation, cannot be sparse"
            )
        return height // h, width // w


def _cut(x: Tensor, tall: int, wide: int) -> Tensor:
    """Cut maps [B, C, H, W] into squares [B, L, C * tall * wide], row by row."""
    num, channels, height, width = x.shape
    grid = x.reshape(num, channels, height // tall, tall, width // wide, wide)
    return grid.permute(0, 2, 4, 1, 3, 5).reshape(num, -1, channels * tall * wide)
