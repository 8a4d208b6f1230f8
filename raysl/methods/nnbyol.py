"""NNBYOL: BYOL whose targets are nearest neighbours.

The idea of NNCLR (Dwibedi, Aytar, Tompson, Sermanet and Zisserman 2021, arXiv 2104.14548, section 3) in BYOL (Grill et
al. 2020, arXiv 2006.07733), as solo-learn has it: the online network predicts, not the target's projection of the other
view, but its nearest neighbour among the target's projections of earlier images.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.ranges import QueueSize
from raysl.losses import at_least_fp32, byol
from raysl.methods.byol import BYOL
from raysl.methods.method import Backbone, Batch, Setup, Step, StepOutput
from raysl.nn import COLLAPSE, Queue, batch_collapse


class NNBYOL(BYOL):
    """Predicts the neighbour of a slow copy's projection of the other view."""

    logged: ClassVar[tuple[str, ...]] = ("agreement", "neighbor_cosine", *COLLAPSE)
    why_full_queue = "projections would leave before they were anybody's neighbour"

    @dataclass(frozen=True, kw_only=True)
    class Config(BYOL.Config):
        """BYOL's ImageNet settings with NNCLR's support set."""

        name: str = "nnbyol"
        queue_size: QueueSize = 98304
        """Number of projections in the support set (NNCLR, section 3, "Implementation details")."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        self.queue = Queue(self.config.queue_size, self.config.output_dim)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Sum BYOL's eq. 2 over both directions, with neighbours as targets."""
        first, second = batch.views["global"].unbind(1)  # [B, C, H, W] each
        z_first, z_second = self.project(first), self.project(second)  # [B, D]
        p_first, p_second = self.predictor(z_first), self.predictor(z_second)  # [B, D]
        target_first, target_second = self.teacher(first), self.teacher(second)  # [B, D], without gradients
        nn_first, nn_second = self.queue.nearest(target_first), self.queue.nearest(target_second)  # [B, D]
        loss = byol(p_first, nn_second) + byol(p_second, nn_first)
        target = at_least_fp32(target_first)
        metrics = {
            "agreement": 1 - loss.detach() / 4,
            "neighbor_cosine": F.cosine_similarity(nn_first, target, dim=-1).mean(),
            **batch_collapse(z_first),
        }
        return StepOutput(loss, metrics, {"z": target})

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Let the target follow, and put its first views of all ranks into the support set."""
        super().after_update(step, batch, carry)
        self.queue.push(dist.all_gather(carry["z"]))
