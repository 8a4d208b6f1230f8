"""MMCR: Learning Efficient Coding of Natural Images with Maximum Manifold Capacity Representations.

Yerxa, Kuang, Simoncelli and Chung 2023, arXiv 2303.03307. The mean of the views of an image is its centroid. The
nuclear norm of the centroids of a batch grows as views agree, which makes centroids long, and as images differ, which
makes them orthogonal.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.ranges import Amount, Share, Width
from raysl.losses import at_least_fp32, mmcr
from raysl.methods.method import Backbone, Batch, Method, MethodConfig, Setup, Step, StepOutput
from raysl.nn import COLLAPSE, Teacher, batch_collapse, features_of_views, mlp
from raysl.transforms.recipes import AsymmetricCrops


class MMCR(Method):
    """Raises the nuclear norm of the centroids of the whole global batch."""

    logged = ("centroid_length", *COLLAPSE)
    why_several_views = "MMCR takes the mean of views of an image"
    why_several_images = "one centroid has no capacity"

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The authors' ImageNet settings."""

        name: str = "mmcr"
        hidden_dim: Width = 8192
        """Width of the projector's two hidden layers (section 3.2)."""
        output_dim: Width = 512
        """Width of the embeddings (section 3.2)."""
        local_weight: Amount = 0.0
        """Weight lambda of the nuclear norm of each image's views (eq. 2); the authors' recipe has none."""
        momentum: Share | None = 0.99
        """Share of a teacher that an update keeps. Its embeddings count as further views of the centroids (the authors'
        code); null: no teacher, as in eq. 2."""
        views: AsymmetricCrops = field(default_factory=lambda: AsymmetricCrops(num=8))
        """Eight crops, in turn as the first and the second of BYOL (the authors' code)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        hidden_dim, output_dim = self.config.hidden_dim, self.config.output_dim
        self.projector = mlp([backbone.feature_dim, hidden_dim, hidden_dim, output_dim], norm=True, last_bias=False)
        if self.config.momentum is not None:
            self.teacher = Teacher(self.student())

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return eq. 2 with the centroids of the whole global batch."""
        views = batch.views["global"]  # [B, V, C, H, W]
        z = self._embed(self.student(), views)  # [B, V, D]
        centroids = z.mean(dim=1)  # [B, D]
        if self.config.momentum is not None:
            centroids = (centroids + self._embed(self.teacher, views).mean(dim=1)) / 2
        everyone = dist.all_gather(centroids, same_loss=True)  # [N, D]
        loss = mmcr(z, everyone, self.config.local_weight)
        length = centroids.detach().norm(dim=-1).mean()
        return StepOutput(loss, {"centroid_length": length, **batch_collapse(z)})

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Let the teacher follow."""
        if self.config.momentum is not None:
            self.teacher.update(self.student(), self.config.momentum)

    def _embed(self, network: nn.Module, views: Tensor) -> Tensor:
        """Return embeddings of all views, of length 1, at least float32 [B, V, D]."""
        z = features_of_views(network, views, "joint")
        with torch.autocast(z.device.type, enabled=False):
            return F.normalize(at_least_fp32(z), dim=-1)
