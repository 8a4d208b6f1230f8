"""DirectCLR: Understanding Dimensional Collapse in Contrastive Self-supervised Learning.

Jing, Vincent, LeCun and Tian 2021, arXiv 2110.09348. A projector keeps the features in front of it from losing
dimensions. Without one, contrast of the first dimensions alone does the same: gradients reach the others through the
last blocks.
"""

from dataclasses import dataclass, field

import torch

from raysl import distributed as dist
from raysl.components import resolve
from raysl.config.ranges import Temperature, Width
from raysl.losses import at_least_fp32, batch_info_nce
from raysl.methods.method import Backbone, Batch, ConfigError, Method, MethodConfig, Setup, Step, StepOutput
from raysl.methods.shared.setup_checks import check_batch, check_two_views
from raysl.nn.collapse import COLLAPSE, batch_collapse
from raysl.transforms.recipes import Crops


class DirectCLR(Method):
    """Contrasts the first dimensions of two views' features."""

    logged = ("contrastive_top1", *COLLAPSE)

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's ImageNet settings."""

        name: str = "directclr"
        dim: Width = 360
        """Dimensions of the features that the loss sees, d0 (section 6, figure 9; the authors' code)."""
        temperature: Temperature = 0.1
        """Divides the cosines (the authors' code)."""
        views: Crops = field(default_factory=Crops)
        """Two crops drawn the same way, SimCLR's."""

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse other numbers of views than two, a batch in which an image has no negative, and more dimensions than
        features."""
        check_batch(setup, "DirectCLR contrasts images")
        check_two_views(setup, "DirectCLR contrasts two views")
        backbone: type[Backbone] = resolve("backbone", setup.config.backbone.name)
        num, dim = backbone.info(setup.config.backbone).feature_dim, setup.method.dim
        if dim > num:
            raise ConfigError(
                f"method.dim is {dim}, and the backbone has {num} features; give at most {num} (paper: 360 of 2048)"
            )

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the mean of both directions: each image picks its other view among those of the whole batch (the
        authors' code)."""
        # Each view is normalised separately, as in the authors' code.
        h = torch.stack([at_least_fp32(self.backbone(view)) for view in batch.views["global"].unbind(1)])  # [2, B, D]
        first, second = h[..., : self.config.dim]  # [B, d0] each
        rows, temperature = dist.own_rows(first), self.config.temperature
        one_way, hits = batch_info_nce(first, dist.all_gather(second), rows, temperature)
        other_way, other_hits = batch_info_nce(second, dist.all_gather(first), rows, temperature)
        metrics = {"contrastive_top1": 50 * (hits + other_hits), **batch_collapse(h.transpose(0, 1))}
        return StepOutput((one_way + other_way) / 2, metrics)
