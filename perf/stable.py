"""SimCLR's two views by stable-pretraining, for `python -m perf pipeline`; extra `peers`.

Its transforms are torchvision's v2 on a dict of a sample, in the workers of a DataLoader: what its documentation shows
for machines whose views are made on CPUs. Its batched augmentation is for GPUs.
"""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any


def is_installed() -> bool:
    """Whether stable-pretraining can be imported."""
    return find_spec("stable_pretraining") is not None


def simclr_transform(size: int, mean: Sequence[float], std: Sequence[float]) -> Callable[[Any], Any]:
    """Return the transform of a PIL image to two views: `{"views": [{"image": float32 [3, size, size], ...}, ...]}`.

    Args:
        size: side of the views.
        mean, std: of the normalisation, for values in [0, 1].
    """
    from stable_pretraining.data import transforms

    def view() -> Any:
        return transforms.Compose(
            transforms.RandomResizedCrop((size, size), scale=(0.08, 1.0)),
            transforms.RandomHorizontalFlip(p=0.5),
            transforms.ColorJitter(0.8, 0.8, 0.8, 0.2, p=0.8),
            transforms.RandomGrayscale(p=0.2),
            transforms.PILGaussianBlur(sigma=[0.1, 2.0], p=0.5),
            transforms.ToImage(mean=list(mean), std=list(std)),
        )

    views = transforms.MultiViewTransform([view(), view()])
    return lambda image: views({"image": image})
