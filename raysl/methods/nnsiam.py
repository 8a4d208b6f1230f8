"""NNSiam: SimSiam whose targets are nearest neighbours.

The idea of NNCLR (Dwibedi, Aytar, Tompson, Sermanet and Zisserman 2021, arXiv 2104.14548, section 3) in SimSiam (Chen
and He 2020, arXiv 2011.10566), as solo-learn has it: a predictor on one side must match, not the projection on the
other, but its nearest neighbour among the projections of earlier images.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.ranges import QueueSize
from raysl.losses import at_least_fp32, negative_cosine
from raysl.methods.method import Backbone, Batch, Setup, Step, StepOutput
from raysl.methods.simsiam import SimSiam
from raysl.nn import COLLAPSE, Queue, batch_collapse


class NNSiam(SimSiam):
    """Predicts the neighbour of the other view's projection."""

    logged: ClassVar[tuple[str, ...]] = ("agreement", "neighbor_cosine", *COLLAPSE)
    why_full_queue = "projections would leave before they were anybody's neighbour"

    @dataclass(frozen=True, kw_only=True)
    class Config(SimSiam.Config):
        """SimSiam's ImageNet settings with solo-learn's support set."""

        name: str = "nnsiam"
        queue_size: QueueSize = 65536
        """Number of projections in the support set (solo-learn's default; NNCLR has 98304)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        self.queue = Queue(self.config.queue_size, self.config.output_dim)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the mean of SimSiam's eq. 3 over both directions, with neighbours as targets."""
        first, second = batch.views["global"].unbind(1)  # [B, C, H, W] each
        z_first, z_second = self.project(first), self.project(second)  # [B, D]
        p_first, p_second = self.predictor(z_first), self.predictor(z_second)  # [B, D]
        nn_first, nn_second = self.queue.nearest(z_first), self.queue.nearest(z_second)  # [B, D], without gradients
        loss = negative_cosine(p_first, nn_second) / 2 + negative_cosine(p_second, nn_first) / 2
        z = at_least_fp32(z_first.detach())
        metrics = {
            "agreement": -loss.detach(),
            "neighbor_cosine": F.cosine_similarity(nn_first, z, dim=-1).mean(),
            **batch_collapse(z),
        }
        return StepOutput(loss, metrics, {"z": z})

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Put the first views' projections of all ranks into the support set."""
        self.queue.push(dist.all_gather(carry["z"]))
