"""Barlow Twins: Self-Supervised Learning via Redundancy Reduction.

Zbontar, Jing, Misra, LeCun and Deny 2021, arXiv 2103.03230. Over a batch, each dimension of the embedding of one view
must be fully correlated with itself in the other view, and not at all with any other dimension.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from raysl.config.ranges import Amount, Positive, Within
from raysl.losses import barlow_twins
from raysl.methods.method import Backbone, Batch, Method, MethodConfig, Setup, Step, StepOutput
from raysl.nn import COLLAPSE, ViewNorm, batch_collapse, cross_correlation, features_of_views, mlp
from raysl.transforms.recipes import AsymmetricCrops


class BarlowTwins(Method):
    """Brings the cross-correlation of two views to the identity."""

    logged = ("correlation", "redundancy", *COLLAPSE)
    why_two_views = "Barlow Twins correlates two views"
    why_several_images = "one image has no correlation"

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The authors' ImageNet settings."""

        name: str = "barlow_twins"
        redundancy: Amount = 0.0051
        """Weight lambda of the squared correlations of different dimensions (eq. 1; section 2.2 has it rounded)."""
        scale: Positive = 0.024
        """Factor of the loss in the authors' code. LARS ignores it except for biases and normalisation, which thereby
        get the paper's learning rate, 0.0048 while weights have 0.2 (section 2.2)."""
        normalize: Literal["per_view", "joint"] = "per_view"
        """Mean and variance that normalise embeddings: over the images of each view (eq. 2), or over those of both
        views together, as in VISSL."""
        eps: Annotated[float, Within(1e-12, 1)] = 1e-5
        """Added to a variance before its root, as in batch normalisation."""
        dim: Annotated[int, Within(2, 65_536)] = 8192
        """Width of the projector's three layers (section 2.2)."""
        batch_norm: ViewNorm = "per_view"
        """Batch normalisation of backbone and projector: over the images of each view separately, as in the authors'
        code, or over those of both views."""
        views: AsymmetricCrops = field(default_factory=AsymmetricCrops)
        """Two crops as in BYOL (section 2.2, appendix A)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        dim = self.config.dim
        self.projector = mlp([backbone.feature_dim, dim, dim, dim], norm=True, last_bias=False)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return eq. 1 of the whole global batch, the same number on every rank."""
        views = batch.views["global"]  # [B, 2, C, H, W]
        z = features_of_views(self.student(), views, self.config.batch_norm)  # [B, 2, D]
        correlation = cross_correlation(z, self.config.eps, is_joint=self.config.normalize == "joint")  # [D, D]
        loss, _, redundancy = barlow_twins(correlation, self.config.redundancy, self.config.scale)
        # logged is the root mean square correlation off the diagonal; rounding may make the sum of squares negative
        num_others = correlation.numel() - len(correlation)
        metrics = {
            "correlation": correlation.detach().diagonal().mean(),
            "redundancy": (redundancy.detach() / num_others).clamp(min=0).sqrt(),
            **batch_collapse(z[:, 0]),
        }
        return StepOutput(loss, metrics)
