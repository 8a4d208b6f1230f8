"""LeJEPA: Provable and Scalable Self-Supervised Learning Without the Heuristics.

Balestriero and LeCun 2025, arXiv 2511.08544. Embeddings of all views of an image agree with the mean of its large
views. SIGReg (sketched isotropic Gaussian regularisation) keeps them from collapsing: on random directions, the
embeddings of a batch must look like a standard normal distribution. There is no teacher, no predictor and no schedule.
"""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.ranges import Amount, Area, Areas, LocalSide, Share, Width, Within
from raysl.losses import at_least_fp32, characteristic_sums, epps_pulley
from raysl.methods.method import Backbone, Batch, Method, MethodConfig, Setup, Step, StepOutput
from raysl.nn import COLLAPSE, batch_collapse, mlp, multi_crop
from raysl.transforms.recipes import MultiCrop


@dataclass(frozen=True, kw_only=True)
class LeJEPAViews(MultiCrop):
    """Large and small crops with the same colours, blur and solarisation (the authors' README, "Data augmentation and
    views").

    >>> {name: len(views) for name, views in LeJEPAViews().recipe().groups.items()}
    {'global': 2, 'local': 6}
    """

    min_scale: Area = 0.3
    """Smallest area of a large view as a share of the image."""
    local_size: LocalSide = 98
    """Side of a small view in pixels; follows `size` in proportion unless it is given."""
    local_scale: Areas = (0.05, 0.3)
    """Areas of small views as shares of the image."""
    jitter: tuple[Amount, Amount, Amount, Annotated[float, Within(0, 0.5)]] = (0.4, 0.4, 0.2, 0.1)
    """Colour jitter of brightness, contrast, saturation and hue at strength 1."""
    solarize_p: Share = 0.2
    """Probability of inverting the values above a half."""


class LeJEPA(Method):
    """Agreement of all views, and embeddings that are normal in every direction."""

    compiles = "no"
    logged = ("invariance", "sigreg", *COLLAPSE)
    why_several_views = "LeJEPA compares views of an image"
    why_several_images = "one image has no distribution"
    t: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's ImageNet settings."""

        name: str = "lejepa"
        sigreg: Share = 0.05
        """Weight lambda of SIGReg; the agreement of views has 1 - lambda (algorithm 2)."""
        num_slices: Annotated[int, Within(1, 65_536)] = 1024
        """Random directions that a step tests (algorithm 1; the authors' README)."""
        num_points: Annotated[int, Within(2, 1024)] = 17
        """Points in [0, `max_t`] of the integral over frequencies (the authors' code)."""
        max_t: Annotated[float, Within(0, 100, above=True)] = 3.0
        """Largest frequency of the integral (the authors' code; algorithm 1 goes from -5 to 5 in 17 points, which
        `num_points=9` and 5.0 are)."""
        hidden_dim: Width = 2048
        """Width of the projector's two hidden layers (the authors' minimal example)."""
        output_dim: Width = 512
        """Width of the embeddings."""
        views: LeJEPAViews = field(default_factory=LeJEPAViews)
        """Two large crops and six small ones (the authors' README)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        hidden_dim, output_dim = self.config.hidden_dim, self.config.output_dim
        self.projector = mlp([backbone.feature_dim, hidden_dim, hidden_dim, output_dim], norm=True)
        t = torch.linspace(0, self.config.max_t, self.config.num_points)
        self.register_buffer("t", t, persistent=False)  # [T]

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return algorithm 2 on this rank's images, with SIGReg over the whole global batch."""
        h = multi_crop(self.backbone, batch.views)  # [B, V, D]
        z = at_least_fp32(self.projector(h.flatten(0, 1))).view(*h.shape[:2], -1)  # [B, V, E]
        num_large = batch.views["global"].shape[1]
        centres = z[:, :num_large].mean(dim=1, keepdim=True)  # [B, 1, E]
        invariance = F.mse_loss(z, centres.expand_as(z))
        sigreg = self._sigreg(z, batch)
        loss = (1 - self.config.sigreg) * invariance + self.config.sigreg * sigreg
        metrics = {"invariance": invariance.detach(), "sigreg": sigreg.detach()}
        return StepOutput(loss, metrics | batch_collapse(z[:, 0]))

    def _sigreg(self, z: Tensor, batch: Batch) -> Tensor:
        """Return the mean over views of algorithm 1; all ranks test the same directions, drawn anew in each step."""
        num_slices, width = self.config.num_slices, z.shape[-1]
        normal = batch.shared("slices").normals_on(z.device, width * num_slices).view(width, num_slices)
        slices = F.normalize(normal, dim=0).to(z.dtype)  # [E, S]
        with torch.autocast(z.device.type, enabled=False):
            sums = characteristic_sums(z @ slices, self.t)  # [2, V, S, T]
        num_rows = dist.planned_num() or dist.all_sum(z.new_full((), len(z)))
        return epps_pulley(dist.all_sum(sums, same_loss=True), num_rows, self.t).mean()
