"""TiCo: Transformation Invariance and Covariance Contrast for Self-Supervised Visual Representation Learning.

Zhu, Moraes, Karakulak, Sobol, Canziani and LeCun 2022, arXiv 2206.10698. The embedding of one view agrees with a
teacher's embedding of the other view, and avoids the directions of many recent embeddings: those of a moving average of
their covariance, which replaces the keys in MoCo's queue.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.ranges import Amount, Momentum, Width
from raysl.losses import at_least_fp32, negative_cosine
from raysl.methods.method import Backbone, Batch, Method, MethodConfig, Setup, StepOutput
from raysl.nn import COLLAPSE, Teacher, batch_collapse, mlp, products
from raysl.schedule import Step, cosine
from raysl.transforms.recipes import AsymmetricCrops


class TiCo(Method):
    """Agrees with a teacher, and contrasts with the covariance of past embeddings."""

    logged = ("invariance", "contrast", *COLLAPSE)
    why_several_images = "the projector normalises over the batch"
    why_two_views = "TiCo has a view for the student and one for the teacher"
    covariance: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's ImageNet settings."""

        name: str = "tico"
        rho: Amount = 8.0
        """Weight of the covariance contrast, as in lightly's loss."""
        beta: Momentum = 0.9
        """Share of the past covariance that an update keeps."""
        momentum: Momentum = 0.99
        """Share of the teacher that the first update keeps; it rises to 1 along half a cosine, as in BYOL."""
        hidden_dim: Width = 4096
        """Width of the projector's hidden layer."""
        output_dim: Width = 256
        """Width of the embeddings."""
        views: AsymmetricCrops = field(default_factory=AsymmetricCrops)
        """Two crops as in BYOL, the second for the teacher."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        hidden_dim, output_dim = self.config.hidden_dim, self.config.output_dim
        self.projector = mlp([backbone.feature_dim, hidden_dim, output_dim], norm=True)
        self.teacher = Teacher(self.student())
        self.register_buffer("covariance", torch.zeros(output_dim, output_dim))

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the loss of algorithm 1 on this rank's images, with the covariance of the whole global batch in C."""
        views = batch.views["global"]  # [B, 2, C, H, W]
        z = F.normalize(at_least_fp32(self.projector(self.backbone(views[:, 0]))), dim=-1)  # [B, D]
        target = self.teacher(views[:, 1])  # [B, D], without gradient
        with torch.autocast(z.device.type, enabled=False):
            batch_covariance = self._batch_covariance(z)  # [D, D]
            invariance = 1 + negative_cosine(z, target)
            # The mean of z^T C z over the whole batch, as a sum over C and the batch's covariance: all ranks compute it
            # alike, so that its gradient needs no exchange.
            contrast = (self._next_covariance(batch_covariance) * batch_covariance).sum()
        loss = invariance + self.config.rho * contrast
        metrics = {
            "invariance": invariance.detach(),
            "contrast": contrast.detach(),
            **batch_collapse(z),
        }
        return StepOutput(loss, metrics, {"z": z.detach()})

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Store the step's covariance, and let the teacher follow."""
        self.covariance.copy_(self._next_covariance(self._batch_covariance(carry["z"])))
        self.teacher.update(self.student(), cosine(step.progress, self.config.momentum, 1.0))

    def _batch_covariance(self, z: Tensor) -> Tensor:
        """Return B = z^T z / n, the uncentred covariance of all ranks' embeddings [D, D]."""
        num_rows = dist.planned_num() or dist.all_sum(z.new_full((), len(z)))
        return products(z, z, same_loss=True) / num_rows

    def _next_covariance(self, batch_covariance: Tensor) -> Tensor:
        """Return beta C + (1 - beta) B; gradients flow through B."""
        beta: float = self.config.beta
        return beta * self.covariance + (1 - beta) * batch_covariance
