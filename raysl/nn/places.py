"""Places of feature maps in the original image, from the boxes of views."""

import torch
from torch import Tensor


def place_centres(box: Tensor, height: int, width: int) -> Tensor:
    """Return where the centres of a feature map's places lie in the original image, (y, x) in its pixels.

    >>> box = torch.tensor([0.0, 8.0, 4.0, 0.0, 4.0, 8.0])  # all of an image of 4x8 pixels, mirrored left to right
    >>> place_centres(box, 1, 2)
    tensor([[[2., 6.],
             [2., 2.]]])

    Args:
        box: corners of views, [..., 6], as from `batch.extras["global.box"]`.
        height, width: number of places along each side of the view.

    Returns:
        [..., height, width, 2], in the type of the boxes and at least float32.
    """
    top, left_edge, bottom, right_edge, _, _ = box.to(torch.promote_types(box.dtype, torch.float32)).unbind(dim=-1)
    y = _along(top, bottom, height)[..., :, None].expand(*top.shape, height, width)
    x = _along(left_edge, right_edge, width)[..., None, :].expand(*top.shape, height, width)
    return torch.stack([y, x], dim=-1)


def grid_cells(box: Tensor, height: int, width: int, grid: int) -> Tensor:
    """Return in which of grid x grid equal cells of the original image each place of a feature map has its centre.

    >>> grid_cells(torch.tensor([0.0, 8.0, 4.0, 0.0, 4.0, 8.0]), 2, 2, grid=2)
    tensor([[1, 0],
            [3, 2]])

    Args:
        box, height, width: arguments of `place_centres`.
        grid: cells along each side of the image.

    Returns:
        int64 [..., height, width], row by row in [0, grid * grid).
    """
    sizes = box[..., 4:].to(torch.promote_types(box.dtype, torch.float32))  # [..., 2]
    cells = place_centres(box, height, width) * (grid / sizes)[..., None, None, :]
    rows, columns = cells.long().clamp(0, grid - 1).unbind(dim=-1)
    return rows * grid + columns


def draw_present(values: Tensor, numbers: Tensor, num: int) -> Tensor:
    """Draw values among those that are there, each equally often however often it is there.

    >>> draw_present(torch.tensor([3, 3, 3, 1]), torch.tensor([0.1, 0.6, 0.9]), num=5)
    tensor([1, 3, 3])

    Args:
        values: int64 [..., P], in [0, num).
        numbers: random, in [0, 1), [..., M].
        num: number of values that there may be.

    Returns:
        int64 [..., M].
    """
    is_there = (values[..., None] == torch.arange(num, device=values.device)).any(dim=-2)  # [..., num]
    up_to = is_there.cumsum(dim=-1)  # how many of the values up to each are there
    nth = torch.minimum((numbers * up_to[..., -1:]).long(), up_to[..., -1:] - 1)  # a product may round up
    return (up_to[..., None, :] <= nth[..., None]).sum(dim=-1)


def _along(first: Tensor, last: Tensor, num: int) -> Tensor:
    """Return the centres of `num` equal parts between two edges [...], [..., num]."""
    shares = (torch.arange(num, device=first.device, dtype=first.dtype) + 0.5) / num
    return first[..., None] + (last - first)[..., None] * shares
