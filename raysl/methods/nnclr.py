"""NNCLR: With a Little Help from My Friends, Nearest-Neighbor Contrastive Learning of Visual Representations.

Dwibedi, Aytar, Tompson, Sermanet and Zisserman 2021, arXiv 2104.14548. Instead of a view's own embedding, its nearest
neighbour among earlier images must find the other view, so that positives are other images of the same kind.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.ranges import QueueSize, Temperature, Width
from raysl.losses import at_least_fp32
from raysl.methods.method import Backbone, Batch, Method, MethodConfig, Setup, Step, StepOutput
from raysl.nn import COLLAPSE, Queue, batch_collapse, mlp
from raysl.transforms.recipes import AsymmetricCrops


class NNCLR(Method):
    """Contrasts nearest neighbours from a support set with the whole global batch."""

    logged = ("contrastive_top1", "neighbor_cosine", *COLLAPSE)
    why_two_views = "NNCLR contrasts two views"
    why_several_images = "NNCLR contrasts images"
    why_full_queue = "embeddings would leave before they were anybody's neighbour"

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's ImageNet settings."""

        name: str = "nnclr"
        temperature: Temperature = 0.1
        """Divides the cosines (section 3)."""
        queue_size: QueueSize = 98304
        """Number of embeddings in the support set (section 3, "Implementation details")."""
        hidden_dims: tuple[Width, ...] = (2048, 2048)
        """Widths of the projector's hidden layers (section 3, "Implementation details")."""
        output_dim: Width = 256
        """Width of embeddings and predictions (section 3)."""
        predictor_dim: Width = 4096
        """Width of the predictor's hidden layer (section 3)."""
        views: AsymmetricCrops = field(default_factory=AsymmetricCrops)
        """Two crops, distorted as in BYOL."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        config = self.config
        dims = [backbone.feature_dim, *config.hidden_dims, config.output_dim]
        self.projector = mlp(dims, norm=True, output_norm="affine")
        self.predictor = mlp([config.output_dim, config.predictor_dim, config.output_dim], norm=True)
        self.queue = Queue(config.queue_size, config.output_dim)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the mean of eq. 3 for each view's neighbours against the predictions from the other view."""
        first, second = batch.views["global"].unbind(1)  # [B, C, H, W] each
        z_first, z_second = self.project(first), self.project(second)  # [B, D]
        p_first, p_second = self.predictor(z_first), self.predictor(z_second)  # [B, D]
        nn_first, nn_second = self.queue.nearest(z_first), self.queue.nearest(z_second)  # [B, D], without gradients
        one_way, top1 = self._contrast(nn_first, p_second)
        other_way, other_top1 = self._contrast(nn_second, p_first)
        z = at_least_fp32(z_first.detach())
        metrics = {
            "contrastive_top1": 50 * (top1 + other_top1),
            "neighbor_cosine": F.cosine_similarity(nn_first, z, dim=-1).mean(),
            **batch_collapse(z),
        }
        return StepOutput(one_way / 2 + other_way / 2, metrics, {"z": z})

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Put the first views of all ranks into the support set."""
        self.queue.push(dist.all_gather(carry["z"]))

    def _contrast(self, neighbors: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        """Return eq. 3, mean over this rank's neighbours, which must pick their image's prediction among all of the
        batch; and the share of those that do."""
        everyone, rows = dist.all_gather(at_least_fp32(p)), dist.own_rows(p)  # [N, D], [B]
        with torch.autocast(p.device.type, enabled=False):
            logits = neighbors.to(everyone.dtype) @ F.normalize(everyone, dim=-1).T / self.config.temperature  # [B, N]
            hits = logits.detach().argmax(dim=1) == rows
            return F.cross_entropy(logits, rows), hits.float().mean()
