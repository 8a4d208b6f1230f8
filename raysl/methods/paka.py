"""PaKA: Patch-Level Kernel Alignment for Dense Self-Supervised Learning.

Yeo, Jang and Kim 2025, arXiv 2509.05606. A trained ViT goes on with the losses of DINOv2 and one of relations between
patches. The student sees a small view, the teacher the large view around it in its own colours. Each gives a kernel:
the products of all pairs of the small view's patches. The loss is one minus their centred kernel alignment (CKA).
lightly-train has this method as DINOv3.1. A setting marked as lightly-train's has the value of its code.
"""

from dataclasses import dataclass, replace
from typing import Annotated, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.config.ranges import Amount, Areas, Width, Within
from raysl.losses import at_least_fp32, cka
from raysl.methods.dino_v2 import DINOv2
from raysl.methods.method import Backbone, Batch, ConfigError, Setup, TokenBackbone
from raysl.methods.shared.patches import patch_side
from raysl.nn import COLLAPSE, Teacher, mlp
from raysl.nn.places import place_centres
from raysl.schedule import Step
from raysl.transforms import HorizontalFlip, VerticalFlip, View, ViewRecipe
from raysl.transforms.recipes import AsymmetricMultiCrop

SAMPLES = 2
"""Points along each side of a student's patch at which the teacher's map is read, as in RoIAlign."""


class PaKA(DINOv2):
    """DINOv2, with an alignment of the relations between patches of a small view in student and teacher."""

    title = "PaKA"
    logged = ("class_loss", "patch_loss", "koleo", "paka", "teacher_entropy", *COLLAPSE)

    @dataclass(frozen=True, kw_only=True)
    class Config(DINOv2.Config):
        """The settings of DINOv2, with those of the paper's loss."""

        name: str = "paka"
        paka_weight: Amount = 1.0
        """Factor of the loss of relations (lightly-train's)."""
        num_paka: Annotated[int, Within(1, 64)] = 8
        """Small views whose patches are related, each inside a large one, in turn (lightly-train's); they are beside
        those of `views`."""
        paka_scale: Areas = (0.05, 0.4)
        """Areas of these as shares of the large view around them. They lie wholly in it, where the paper takes an
        overlap of 0.9 or more (section 4, "Global-Local Intersection Maximization"; shares are lightly-train's)."""
        paka_hidden_dim: Width = 2048
        """Width of the two inner layers of the projector of related patches (lightly-train's)."""
        paka_dim: Width = 256
        """Width of its third layer, the last one (appendix D.1 has three layers; the width is lightly-train's)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        hidden, dim = self.config.paka_hidden_dim, self.config.paka_dim
        self.paka_head = mlp([self.backbone.token_dim, hidden, hidden, dim], activation=nn.GELU)
        self.teacher_paka_head = Teacher(self.paka_head)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse what DINOv2 refuses, views that are turned, and small views of a single patch."""
        super().check(setup)
        views, patch_size = setup.method.views, patch_side(setup, cls.title)
        if views.affine_p > 0:
            raise ConfigError(
                f"method.views.affine_p is {views.affine_p:g}, and PaKA has to know where the patches of a view lie in "
                "the image; set method.views.affine_p=0"
            )
        if views.local_size % patch_size or views.local_size < 2 * patch_size:
            raise ConfigError(
                f"method.views.local_size is {views.local_size}, and PaKA relates patches of {patch_size} pixels, at "
                "least two along each side; set method.views.local_size="
                f"{max(views.local_size // patch_size, 2) * patch_size}"
            )

    @classmethod
    def views(cls, setup: Setup) -> ViewRecipe:
        """Return DINOv2's views; "clean", the large ones in their own colours; and "paka", small ones inside these."""
        config = setup.method
        groups = super().views(setup).groups
        clean = tuple(_plain(view, number) for number, view in enumerate(groups["global"]))
        crops: AsymmetricMultiCrop = replace(config.views, num_local=config.num_paka, local_scale=config.paka_scale)
        small = crops.recipe().groups["local"]
        inner = tuple(replace(view, inside=number % len(clean), box=True) for number, view in enumerate(small))
        return ViewRecipe(groups | {"clean": clean, "paka": inner})

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Let the teacher follow, its projector of related patches too."""
        super().after_update(step, batch, carry)
        self.teacher_paka_head.update(self.paka_head, self.teacher_momentum(step))

    def _more_of_patches(self, batch: Batch, patches: Tensor, step: Step) -> tuple[Tensor | float, dict[str, Tensor]]:
        """Return the loss of relations, a mean over small views (section 3)."""
        small, clean = batch.views["paka"], batch.views["clean"]  # [B, L, C, h, w], [B, G, C, H, W]
        images = small.flatten(0, 1)
        height, width = self.backbone.grid(images)
        tokens = self.backbone.tokens(images)[:, self.backbone.num_prefix_tokens :]  # [B*L, N, D]
        num = small.shape[1]
        with torch.no_grad():
            maps = _in_turn(self._teacher_maps(clean), num).flatten(0, 1)  # [B*L, D, Y, X]
            outer = _in_turn(batch.extras["clean.box"], num).flatten(0, 1)  # [B*L, 6]
            aligned = aligned_patches(maps, outer, batch.extras["paka.box"].flatten(0, 1), height, width)
            targets = self.teacher_paka_head(aligned)  # [B*L, N, E]
        loss = cka(self.paka_head(tokens), targets)
        return self.config.paka_weight * loss, {"paka": loss.detach()}

    def _teacher_maps(self, images: Tensor) -> Tensor:
        """Return the teacher's patches of views [B, G, C, H, W] as maps [B, G, D, Y, X]."""
        network = cast(TokenBackbone, self.teacher.module)
        flat = images.flatten(0, 1)
        tokens = network.tokens(flat)[:, network.num_prefix_tokens :]  # [B*G, Y*X, D]
        return tokens.mT.reshape(*images.shape[:2], -1, *network.grid(flat))


def aligned_patches(maps: Tensor, outer: Tensor, inner: Tensor, height: int, width: int) -> Tensor:
    """Return what maps of views show at the patches of other views that lie in them: RoIAlign (He et al. 2017).

    The map is read bilinearly at `SAMPLES` x `SAMPLES` points of each patch, whose mean is taken. Boxes say which views
    are mirrored.

    >>> box = torch.tensor([[0.0, 0.0, 4.0, 4.0, 4.0, 4.0]])  # all of an image of 4x4 pixels
    >>> mirrored = torch.tensor([[0.0, 4.0, 4.0, 0.0, 4.0, 4.0]])
    >>> aligned_patches(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), box, mirrored, 1, 2).flatten()
    tensor([2.8750, 2.1250])

    Args:
        maps: [n, D, Y, X].
        outer: boxes of the maps' views, [n, 6], as from `batch.extras["clean.box"]`.
        inner: boxes of the other views, [n, 6].
        height, width: patches along each side of the other views.

    Returns:
        [n, height * width, D], at least float32.
    """
    maps = at_least_fp32(maps)
    outer, inner = outer.to(maps.dtype), inner.to(maps.dtype)
    points = place_centres(inner, SAMPLES * height, SAMPLES * width)  # [n, 2h, 2w, 2], (y, x) in pixels of the image
    corner, opposite = outer[:, None, None, 0:2], outer[:, None, None, 2:4]
    shares = (points - corner) / (opposite - corner)  # in [0, 1] from the first edge of the map to the last
    grid = (2 * shares - 1).flip(-1)  # (x, y) in [-1, 1]
    values = F.grid_sample(maps, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return F.avg_pool2d(values, SAMPLES).flatten(2).mT


def _in_turn(large: Tensor, num: int) -> Tensor:
    """Return those of the large views around small views [B, num, ...], from those of large ones [B, G, ...]."""
    # slices, as a list of numbers would be copied to the device in each step
    return torch.stack([large[:, number % large.shape[1]] for number in range(num)], dim=1)


def _plain(view: View, number: int) -> View:
    """Return large view `number` in its own colours, with its box."""
    flips = tuple(t for t in view.transforms if isinstance(t, (HorizontalFlip, VerticalFlip)))
    return View(view.crop, flips, repeats=number, box=True)
