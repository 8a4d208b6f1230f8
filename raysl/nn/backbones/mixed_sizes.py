"""Features of images of different sizes."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def features_of(backbone: Callable[[Tensor], Tensor], images: Sequence[Tensor], batch_size: int = 64) -> Tensor:
    """Features [N, D] of images of any sizes, in the list's order.

    Images of one size go through the network together. In evaluation mode that gives what each would give alone; in
    training mode the statistics of a batch are those of the images of one size.

    Args:
        backbone: from images [B, 3, H, W] to features [B, D]; its `stages` of one name are as good.
        images: normalised, [3, H, W] each.
        batch_size: images that go through it at a time, at most.

    Raises:
        ValueError: if there are no images, one is no [3, H, W], or the network takes none of such a size.
    """
    if not images:
        raise ValueError("there are no images to give features of; give at least one")
    if odd := [list(image.shape) for image in images if image.ndim != 3]:
        raise ValueError(f"an image has the shape {odd[0]}; give each as [3, H, W]")
    places: dict[torch.Size, list[int]] = {}
    for place, image in enumerate(images):
        places.setdefault(image.shape, []).append(place)
    chunks = [found[at : at + batch_size] for found in places.values() for at in range(0, len(found), batch_size)]
    features = torch.cat([backbone(torch.stack([images[place] for place in chunk])) for chunk in chunks])  # [N, D]
    order = torch.tensor([place for chunk in chunks for place in chunk], device=features.device)
    return features[order.argsort()]
