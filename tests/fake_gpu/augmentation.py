"""Kernels and bytes of augmentation on a GPU, for the views of a batch of ImageNet's size."""

from dataclasses import dataclass

import numpy as np
import torch

from raysl.config.load import load_config
from raysl.transforms.channels import network_input
from tests.fake_gpu.pretended import pretended_gpu
from tests.fake_gpu.watch import CUDA, Event


@dataclass(frozen=True)
class Augmented:
    """What augmenting a batch takes: kernels, bytes that they touch if none are fused, and events."""

    kernels: int
    num_bytes: int
    events: list[Event]


def augmented(name: str, num_images: int) -> Augmented:
    """Augment and normalise black images with the views of a recipe.

    Args:
        name: of the configuration.
        num_images: of the batch.
    """
    config = load_config(name, ["data.path=/nowhere"])
    recipe = config.method.views.recipe()
    with pretended_gpu() as watch:
        crops = {}
        for group, views in recipe.groups.items():
            side = views[0].crop.size
            crops[group] = torch.zeros(num_images, len(views), 3, side, side, dtype=torch.uint8, device=CUDA)
        watch.clear()
        done = recipe.augment(crops, np.arange(num_images), config.seed, 0)
        for views in done.views.values():
            network_input(views, config.data.mean, config.data.std)
        return Augmented(sum(watch.kernels.values()), sum(watch.moved.values()), list(watch.events))
