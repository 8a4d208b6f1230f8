"""NEPA: Next-Embedding Prediction Makes Strong Vision Learners.

Xu, Ma, Chai, Chen, Jin, Chai, Xie and Yu 2025, arXiv 2512.16922. A ViT reads an image's patches row by row, each with
those before it, and predicts the embedding of the next one: what its own first layer makes of that patch. There is no
head, no second network and no mask.
"""

from dataclasses import dataclass, field

import torch

from raysl.losses import negative_cosine
from raysl.methods.method import Backbone, Batch, MethodConfig, Setup, Step, StepOutput
from raysl.methods.shared.patches import PatchMethod, grid_side
from raysl.nn.collapse import COLLAPSE, batch_collapse
from raysl.transforms.recipes import Crops


class NEPA(PatchMethod):
    """Predicts the embedding of each patch from the patches before it."""

    logged = ("target_std", *COLLAPSE)

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's settings."""

        name: str = "nepa"
        views: Crops = field(default_factory=lambda: Crops(num=1, jitter_p=0.0, grayscale_p=0.0, blur_p=0.0))
        """One crop, mirrored with probability 1/2, without colours (authors' code)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse backbones without patches, and patches that do not cover a view."""
        grid_side(setup, "NEPA")

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the negative cosine of predictions and embeddings, over all patches (the paper's algorithm 1).

        The class token predicts the first patch, each patch the next one. Targets are the patches' embeddings without
        positions, and get no gradient.
        """
        images = batch.views["global"].flatten(0, 1)  # [B*V, C, H, W]
        with torch.no_grad():
            targets = self.backbone.patch_embed(images)  # [B*V, L, D]
        # no patch is seen by all tokens, so attention is causal from the first patch on
        no_prefix = torch.zeros(targets.shape[:2], dtype=torch.bool, device=images.device)  # [B*V, L]
        tokens = self.backbone.causal_tokens(images, no_prefix)  # [B*V, P + L, D]
        num_prefix = self.backbone.num_prefix_tokens
        predictions = tokens[:, num_prefix - 1 : -1]  # [B*V, L, D]
        loss = negative_cosine(predictions.flatten(0, 1), targets.flatten(0, 1))
        h = tokens.detach()[:, num_prefix:].mean(dim=1).view(*batch.views["global"].shape[:2], -1)  # [B, V, D]
        return StepOutput(loss, {"target_std": targets.std(dim=(0, 1)).mean(), **batch_collapse(h)})
