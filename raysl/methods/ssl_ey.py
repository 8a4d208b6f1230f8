"""SSL-EY: Efficient Algorithms for the CCA Family, Unconstrained Objectives with Unbiased Gradients.

Chapman, Aguila and Wells 2023, arXiv 2310.01012. Canonical correlation analysis looks for dimensions of two views that
vary together. The inequality of Eckart and Young makes of it a loss without constraints: covariances between views
grow, and the squares of those within views hold them back.
"""

from dataclasses import dataclass, field
from typing import Annotated

from raysl.config.ranges import Within
from raysl.losses import at_least_fp32, ssl_ey
from raysl.methods.method import Backbone, Batch, Method, MethodConfig, Setup, Step, StepOutput
from raysl.nn import COLLAPSE, ViewNorm, batch_collapse, covariances, features_of_views, mlp, total_cross_covariance
from raysl.transforms.recipes import AsymmetricCrops


class SSLEY(Method):
    """Dimensions vary together between views, and apart within them."""

    logged = ("reward", "penalty", *COLLAPSE)
    why_two_views = "SSL-EY correlates two views"
    why_several_images = "one image has no covariance"

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The settings of the authors' code for ImageNet, which are VICReg's."""

        name: str = "ssl_ey"
        dim: Annotated[int, Within(1, 65_536)] = 8192
        """Width of the projector's three layers."""
        batch_norm: ViewNorm = "per_view"
        """Batch normalisation of backbone and projector: over the images of each view separately, as in the authors'
        code, or over those of both views."""
        views: AsymmetricCrops = field(default_factory=AsymmetricCrops)
        """Two crops as in BYOL."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        dim = self.config.dim
        self.projector = mlp([backbone.feature_dim, dim, dim, dim], norm=True, last_bias=False)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the loss of the covariances over the whole global batch."""
        z = at_least_fp32(features_of_views(self.student(), batch.views["global"], self.config.batch_norm))  # [B, 2, D]
        reward = total_cross_covariance(z)
        loss = ssl_ey(reward, covariances(z))
        metrics = {"reward": reward.detach(), "penalty": loss.detach() + 4 * reward.detach(), **batch_collapse(z[:, 0])}
        return StepOutput(loss, metrics)
