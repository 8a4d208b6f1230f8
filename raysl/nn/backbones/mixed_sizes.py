"""Features of images of different sizes."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def features_of(backbone: Callable[[Tensor], Tensor], images: Sequence[Tensor], batch_size: int = 64) -> Tensor:
    """Return features [N, D] of images of any sizes, in the list's order.

    Images of one size go through the network together. In evaluation mode the result is that of each image alone; in
    training mode, batch statistics are those of the images of one size.

    >>> features_of(lambda images: images.mean(dim=(2, 3)), [torch.zeros(3, 8, 8), torch.ones(3, 4, 6)])
    tensor([[0., 0., 0.],
            [1., 1., 1.]])

    Args:
        backbone: from images [B, 3, H, W] to features [B, D], such as a network or one of its stages.
        images: normalised, [3, H, W] each.
        batch_size: largest number of images per pass.

    Raises:
        ValueError: if there are no images, one is not [3, H, W], or the network cannot take its size.
    """
    if not images:
        raise ValueError("images is empty; give at least one")
    if odd := [list(image.shape) for image in images if image.ndim != 3]:
        raise ValueError(f"an image has the shape {odd[0]}; give each as [3, H, W]")
    by_size: dict[torch.Size, list[int]] = {}
    for number, image in enumerate(images):
        by_size.setdefault(image.shape, []).append(number)
    chunks = [rows[at : at + batch_size] for rows in by_size.values() for at in range(0, len(rows), batch_size)]
    features = torch.cat([backbone(torch.stack([images[row] for row in chunk])) for chunk in chunks])  # [N, D]
    order = torch.tensor([row for chunk in chunks for row in chunk], device=features.device)
    return features[order.argsort()]
