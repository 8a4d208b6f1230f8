"""Rectangles of pixels, one for each image."""

import torch
from torch import Tensor


def inside_boxes(boxes: Tensor, size: tuple[int, int], device: torch.device) -> Tensor:
    """Which pixels lie in each image's box.

    Args:
        boxes: int64 [B, 4]: top, left, height and width; a height or width of 0 is an empty box.
        size: height and width of the images.
        device: where the result is wanted.

    Returns:
        bool [B, 1, H, W].
    """
    top, left, height, width = boxes.to(device, non_blocking=True)[:, :, None].unbind(1)  # [B, 1] each
    rows = torch.arange(size[0], device=device)
    columns = torch.arange(size[1], device=device)
    in_rows = (rows >= top) & (rows < top + height)
    in_columns = (columns >= left) & (columns < left + width)
    return (in_rows[:, :, None] & in_columns[:, None, :])[:, None]
