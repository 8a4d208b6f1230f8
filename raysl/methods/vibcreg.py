"""VIbCReg: Variance-Invariance-better-Covariance Regularization.

Lee and Aune 2021, arXiv 2109.00783. VICReg with two changes: covariances are those of dimensions brought to one
scale, so that their weight does not depend on it, and embeddings are whitened by iterative normalisation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from torch import Tensor, nn

from raysl.config.ranges import Amount, Count, Within
from raysl.losses import VICRegLoss, vibcreg
from raysl.methods.method import Backbone, ConfigError, Setup
from raysl.methods.vicreg import VICReg
from raysl.nn import IterNorm, mlp
from raysl.transforms.recipes import AsymmetricCrops


class VIbCReg(VICReg):
    """VICReg with correlations, and whitened embeddings."""

    @dataclass(frozen=True, kw_only=True)
    class Config(VICReg.Config):
        """solo-learn's settings for ImageNet-100."""

        name: str = "vibcreg"
        variance: Amount = 25.0
        """Weight mu of the hinges of the standard deviations, a mean over dimensions and a sum over both views."""
        covariance: Amount = 200.0
        """Weight nu of the squared correlations, a mean over pairs of dimensions and a sum over both views."""
        dim: Annotated[int, Within(2, 65_536)] = 2048
        """Width of the expander's three layers."""
        num_groups: Count | None = 64
        """Groups of embeddings that iterative normalisation whitens apart; null leaves it out."""
        views: AsymmetricCrops = field(
            default_factory=lambda: AsymmetricCrops(
                min_scale=0.2, blur_p=0.5, second_blur_p=0.5, solarize_p=0.1, second_solarize_p=0.1
            )
        )
        """Two crops drawn alike."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        dim = self.config.dim
        self.expander = mlp([backbone.feature_dim, dim, dim, dim], norm=True, activation=nn.GELU, last_bias=False)
        if self.config.num_groups is not None:
            self.expander.append(IterNorm(dim, self.config.num_groups))

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse what VICReg refuses, and groups of unequal size."""
        super().check(setup)
        dim, num = setup.method.dim, setup.method.num_groups
        if num is not None and dim % num:
            raise ConfigError(
                f"method.num_groups is {num}, which does not divide method.dim {dim}; give a divisor, or null"
            )

    def _loss(self, z: Tensor, covariances: Sequence[Tensor]) -> VICRegLoss:
        config = self.config
        weights = config.invariance, config.variance, config.covariance
        return vibcreg(z, covariances, *weights, config.target_std, config.eps)
