"""Small methods that hide patches of an image, and batches for them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from raysl.components import resolve
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.methods.method import Method
from raysl.nn.backbones.vit import ViT
from raysl.plan.setup import Setup

NETWORK = ("backbone.width=8", "backbone.heads=2", "backbone.depth=2", "train.batch_size=2")
DECODER = ("method.decoder_width=12", "method.decoder_depth=2", "method.decoder_heads=2")
SETTINGS = {
    "data2vec": ("backbone.depth=3", "method.is_renormalised=false"),
    "mae": (*DECODER, "method.mask_ratio=0.75"),
    "maskfeat": ("method.cell_size=2",),
    "pixio": (*DECODER, "method.mask_ratio=0.25"),
    "simmim": (),
}
HALVES = ((0, 1, 4, 5, 10, 11, 14, 15), (2, 3, 6, 7, 8, 9, 12, 13))
"""Hidden patches of two images, as many of each, of 16."""


def setup_of(name: str, *words: str) -> Setup:
    """The setup of a method on digits with a ViT of 4 x 4 patches."""
    return Setup.of(load_config(f"digits/{name}", [*NETWORK, *SETTINGS[name], *words]), 6)


def small(name: str, *words: str) -> Method:
    """The method of `setup_of` in float64, with the same weights each time."""
    torch.manual_seed(0)
    setup = setup_of(name, *words)
    return resolve("method", name)(setup, ViT(setup.config.backbone)).double()


def batch_of(masked: Sequence[Sequence[int]], images: Tensor | None = None) -> Batch:
    """A batch of one view of each image.

    Args:
        masked: hidden patches of each image.
        images: [B, 1, 3, 16, 16]. Default: the same random ones each time, in float64.
    """
    num = len(masked)
    if images is None:
        images = torch.randn(num, 1, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mask = torch.zeros(num, 16, dtype=torch.bool)
    for image, places in enumerate(masked):
        mask[image, list(places)] = True
    extras = {"global.mask": mask.view(num, 1, 4, 4)}
    return Batch({"global": images}, torch.arange(num), torch.full((num,), -1), extras=extras)
