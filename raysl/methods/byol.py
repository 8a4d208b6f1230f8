"""BYOL: Bootstrap Your Own Latent, A New Approach to Self-Supervised Learning.

Grill, Strub, Altché, Tallec, Richemond et al. 2020, arXiv 2006.07733. From one view of an image the online network
predicts the target network's projection of the other view. The target is a slow average of the online network; there
are no negatives.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from raysl.config.ranges import Momentum, Share, Width
from raysl.losses import byol
from raysl.methods.method import Backbone, Batch, ConfigError, Method, MethodConfig, Setup, StepOutput
from raysl.nn import COLLAPSE, Teacher, batch_collapse, mlp
from raysl.schedule import Step, cosine
from raysl.transforms.recipes import AsymmetricCrops


class BYOL(Method):
    """Predicts a slow copy's projection of the other view."""

    logged: ClassVar[tuple[str, ...]] = ("agreement", *COLLAPSE)
    why_two_views = "BYOL predicts one view from another"
    why_several_images = "the projector normalises over the batch"

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's ImageNet settings."""

        name: str = "byol"
        hidden_dim: Width = 4096
        """Width of the hidden layers of projector and predictor (section 3.2)."""
        output_dim: Width = 256
        """Width of projections and predictions (section 3.2)."""
        last_bias: bool = False
        """A bias in the last layer of projector and predictor; the authors' code has none."""
        momentum: Momentum = 0.996
        """Share of the target that the first update keeps, tau base (section 3.2; 0.99 for 300 epochs and fewer)."""
        final_momentum: Share = 1.0
        """That share at the end of the run, approached along half a cosine (section 3.2)."""
        views: AsymmetricCrops = field(default_factory=AsymmetricCrops)
        """Two crops, the first always blurred, the second rarely blurred and sometimes solarised (appendix B, table
        6)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        hidden_dim, output_dim = self.config.hidden_dim, self.config.output_dim
        last_bias = self.config.last_bias
        self.projector = mlp([backbone.feature_dim, hidden_dim, output_dim], norm=True, last_bias=last_bias)
        self.predictor = mlp([output_dim, hidden_dim, output_dim], norm=True, last_bias=last_bias)
        self.teacher = Teacher(self.student())

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse numbers of views other than two, a batch too small for statistics, and a target that speeds up."""
        super().check(setup)
        method = setup.method
        if method.final_momentum < method.momentum:
            raise ConfigError(
                f"method.final_momentum is {method.final_momentum} and method.momentum {method.momentum}: the target "
                f"must slow down; give {method.momentum} or more, 1 in the paper"
            )

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Sum eq. 2 over both directions of prediction."""
        first, second = batch.views["global"].unbind(1)  # [B, C, H, W] each
        z_first, z_second = self.project(first), self.project(second)  # [B, D]
        p_first, p_second = self.predictor(z_first), self.predictor(z_second)  # [B, D]
        target_first, target_second = self.teacher(first), self.teacher(second)  # [B, D], without gradients
        loss = byol(p_first, target_second) + byol(p_second, target_first)
        metrics = {"agreement": 1 - loss.detach() / 4, **batch_collapse(z_first)}
        return StepOutput(loss, metrics)

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Eq. 1: let the target follow, more and more slowly."""
        momentum = cosine(step.progress, self.config.momentum, self.config.final_momentum)
        self.teacher.update(self.student(), momentum)
