"""FroSSL: Frobenius Norm Minimization for Efficient Multiview Self-Supervised Learning.

Skean, Dhakal, Jacobs and Giraldo 2023, arXiv 2310.02903. Embeddings of an image's views come near their mean, while the
eigenvalues of each view's covariance, whose sum is fixed, are kept even by a small Frobenius norm.
"""

from dataclasses import dataclass, field

from torch import nn

from raysl.config.ranges import Amount, Width
from raysl.losses import frossl
from raysl.methods.method import Backbone, Batch, Method, MethodConfig, Setup, Step, StepOutput
from raysl.nn import COLLAPSE, ViewNorm, batch_collapse, features_of_views, mlp, products, unit_columns
from raysl.transforms.recipes import AsymmetricCrops


class FroSSL(Method):
    """Even spectra of all views, and views near their mean."""

    logged = ("agreement", *COLLAPSE)
    why_several_views = "FroSSL compares views with their mean"
    why_several_images = "one image has no covariance"

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The authors' ImageNet settings."""

        name: str = "frossl"
        invariance: Amount = 2.0
        """Weight of the distance of the views from their mean (the authors' ImageNet configuration; 1 in eq. 6)."""
        hidden_dim: Width = 2048
        """Width of the projector's two hidden layers."""
        output_dim: Width = 1024
        """Width of the embeddings."""
        batch_norm: ViewNorm = "per_view"
        """Batch normalisation over the images of each view separately, as in the authors' code, or over all views."""
        views: AsymmetricCrops = field(
            default_factory=lambda: AsymmetricCrops(
                blur_p=0.5, second_blur_p=0.5, solarize_p=0.1, second_solarize_p=0.1
            )
        )
        """Two crops, or more, all drawn alike (the authors' configuration, which is solo-learn's of VICReg)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        hidden_dim, output_dim = self.config.hidden_dim, self.config.output_dim
        self.projector = mlp([backbone.feature_dim, hidden_dim, hidden_dim, output_dim], norm=True)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return eq. 6 on this rank's images, with covariances of the whole global batch."""
        network = nn.Sequential(self.backbone, self.projector)
        z = features_of_views(network, batch.views["global"], self.config.batch_norm)  # [B, V, D]
        unit = unit_columns(z)
        matrices = [products(view, view, same_loss=True) for view in unit.unbind(dim=1)]  # [D, D] each
        loss = frossl(unit, matrices, self.config.invariance)
        values = unit.detach()
        spread = (values - values.mean(dim=1, keepdim=True)).square().sum() / values.square().sum().clamp_min(1e-12)
        return StepOutput(loss, {"agreement": 1 - spread, **batch_collapse(z[:, 0])})
