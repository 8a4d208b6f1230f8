"""VICReg: Variance-Invariance-Covariance Regularization for Self-Supervised Learning.

Bardes, Ponce and LeCun 2022, arXiv 2105.04906. Embeddings of two views of an image agree. In each view, every dimension
must vary over the batch, and no two dimensions together, which prevents collapse.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from torch import Tensor, nn

from raysl.config.ranges import Amount, Within
from raysl.losses import VICRegLoss, at_least_fp32, vicreg
from raysl.methods.method import Backbone, Batch, Method, MethodConfig, Setup, Step, StepOutput
from raysl.nn import COLLAPSE, ViewNorm, batch_collapse, covariances, features_of_views, mlp
from raysl.transforms.recipes import AsymmetricCrops


class VICReg(Method):
    """Agreement of views whose dimensions vary independently."""

    logged = ("invariance", "variance", "covariance", *COLLAPSE)
    why_two_views = "VICReg compares two views"
    why_several_images = "one image has no variance"

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's ImageNet settings."""

        name: str = "vicreg"
        invariance: Amount = 25.0
        """Weight lambda of the mean squared difference of the views (eq. 5 and 6, section 4.2), a mean over images and
        dimensions as in algorithm 1."""
        variance: Amount = 12.5
        """Weight mu of the hinges of the standard deviations, a mean over dimensions and a sum over both views (eq. 1
        and 6). The paper has 25 (section 4.2); the authors' code and lightly have 25 for half the sum."""
        covariance: Amount = 1.0
        """Weight nu of the squared covariances (eq. 4 and 6, section 4.2)."""
        target_std: Annotated[float, Within(0, 1e6, above=True)] = 1.0
        """Standard deviation gamma above which a dimension costs nothing (eq. 1, section 4.2)."""
        eps: Annotated[float, Within(1e-12, 1)] = 1e-4
        """Added to a variance before its root (eq. 2, section 4.2)."""
        dim: Annotated[int, Within(2, 65_536)] = 8192
        """Width of the expander's three layers (section 4.2)."""
        batch_norm: ViewNorm = "per_view"
        """Batch normalisation of backbone and expander: over the images of each view separately, as in the authors'
        code, or over those of both views."""
        views: AsymmetricCrops = field(default_factory=AsymmetricCrops)
        """Two crops as in BYOL (authors' code); the paper draws both alike, blurred by half and solarised by a
        tenth (appendix C.1)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        dim = self.config.dim
        self.expander = mlp([backbone.feature_dim, dim, dim, dim], norm=True, last_bias=False)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return eq. 6 on this rank's images, with variances and covariances of the whole global batch."""
        config, views = self.config, batch.views["global"]  # [B, 2, C, H, W]
        network = nn.Sequential(self.backbone, self.expander)
        z = at_least_fp32(features_of_views(network, views, config.batch_norm))  # [B, 2, D]
        out = self._loss(z, covariances(z))
        metrics = {
            "invariance": out.invariance.detach(),
            "variance": out.variance.detach(),
            "covariance": out.covariance.detach(),
            **batch_collapse(z[:, 0]),
        }
        return StepOutput(out.loss, metrics)

    def _loss(self, z: Tensor, covariances: Sequence[Tensor]) -> VICRegLoss:
        """Return eq. 6 for embeddings [B, 2, D] and the covariances of both views, [D, D] each."""
        config = self.config
        weights = config.invariance, config.variance, config.covariance
        return vicreg(z, covariances, *weights, config.target_std, config.eps)
