"""DirectCLR: Understanding Dimensional Collapse in Contrastive Self-supervised Learning.

Jing, Vincent, LeCun and Tian 2021, arXiv 2110.09348. A projector keeps the features in front of it from losing
dimensions. Without one, contrast of the first dimensions alone does the same: gradients reach the others through the
last blocks.
"""

from dataclasses import dataclass, field

from raysl import distributed as dist
from raysl.components import resolve
from raysl.config.ranges import Temperature, Width
from raysl.config.schema import MethodConfig
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import at_least_fp32, contrastive_accuracy, nt_xent
from raysl.methods.checks import check_batch, check_some_views
from raysl.methods.method import Method, StepOutput
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.collapse import COLLAPSE, batch_collapse
from raysl.nn.views import multi_crop
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms.recipes import MultiCrop


class DirectCLR(Method):
    """SimCLR's contrast of the first dimensions of the features."""

    logged = ("contrastive_top1", *COLLAPSE)

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's ImageNet settings."""

        name: str = "directclr"
        dim: Width = 360
        """Dimensions of the features that the loss sees, d0 (section 6, figure 9; the authors' code)."""
        temperature: Temperature = 0.1
        """Divides the cosines (the authors' code)."""
        views: MultiCrop = field(default_factory=lambda: MultiCrop(min_scale=0.08, num_local=0))
        """Two crops drawn the same way, SimCLR's."""

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse a single view, a batch in which an image has no negative, and more dimensions than features."""
        check_batch(setup, "DirectCLR contrasts images")
        check_some_views(setup, "DirectCLR pulls views of an image together")
        backbone: type[Backbone] = resolve("backbone", setup.config.backbone.name)
        num, dim = backbone.info(setup.config.backbone).feature_dim, setup.method.dim
        if dim > num:
            raise ConfigError(
                f"method.dim is {dim}, and the backbone has {num} features; give at most {num} (paper: 360 of 2048)"
            )

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the loss of this rank's images against the whole global batch (section 6)."""
        h = at_least_fp32(multi_crop(self.backbone, batch.views))  # [B, V, D]
        z = h[..., : self.config.dim]  # [B, V, d0]
        z_all, rows = dist.all_gather(z), dist.own_rows(z)  # [N, V, d0], [B]
        metrics = {"contrastive_top1": 100 * contrastive_accuracy(z, z_all, rows), **batch_collapse(h)}
        return StepOutput(nt_xent(z, z_all, rows, self.config.temperature), metrics)
