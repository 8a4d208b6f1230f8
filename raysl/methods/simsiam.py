"""SimSiam: Exploring Simple Siamese Representation Learning.

Chen and He 2020, arXiv 2011.10566. One network sees both views of an image, and a predictor on one side must match
the projection on the other, through which no gradient flows. This stop alone prevents collapse: there are no negatives
and no slow copy.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from raysl.config.ranges import NotEmpty, Width
from raysl.losses import negative_cosine
from raysl.methods.method import Backbone, Batch, Method, MethodConfig, OptimConfig, Setup, Step, StepOutput
from raysl.nn import COLLAPSE, batch_collapse, mlp
from raysl.optim.groups import split_groups
from raysl.transforms.recipes import Crops


class SimSiam(Method):
    """Predicts the other view's projection, through which no gradient flows."""

    logged: ClassVar[tuple[str, ...]] = ("agreement", *COLLAPSE)
    why_two_views = "SimSiam compares two views"
    why_several_images = "the projector normalises over the batch"

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's ImageNet settings."""

        name: str = "simsiam"
        hidden_dims: Annotated[tuple[Width, ...], NotEmpty()] = (2048, 2048)
        """Widths of the projector's hidden layers (section 3, "Baseline settings"); [2048] on CIFAR (appendix D)."""
        output_dim: Width = 2048
        """Width of projections and predictions (section 3)."""
        predictor_dim: Width = 512
        """Width of the predictor's hidden layer, a bottleneck (section 3; section 4.3 and appendix B)."""
        constant_predictor_lr: bool = True
        """Keep the predictor's learning rate at its peak, while all others fall (section 4.2, table 1c)."""
        views: Crops = field(default_factory=lambda: Crops(min_scale=0.2, jitter=(0.4, 0.4, 0.4, 0.1)))
        """Two crops drawn the same way (appendix A, "Data augmentation")."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        config = self.config
        dims = [backbone.feature_dim, *config.hidden_dims, config.output_dim]
        self.projector = mlp(dims, norm=True, output_norm="plain")
        self.predictor = mlp([config.output_dim, config.predictor_dim, config.output_dim], norm=True)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return eq. 4: the mean of both directions, each without a gradient into its target (algorithm 1)."""
        first, second = batch.views["global"].unbind(1)  # [B, C, H, W] each
        z_first, z_second = self.project(first), self.project(second)  # [B, D]
        p_first, p_second = self.predictor(z_first), self.predictor(z_second)  # [B, D]
        one_way = negative_cosine(p_first, z_second.detach())  # eq. 3
        other_way = negative_cosine(p_second, z_first.detach())
        loss = one_way / 2 + other_way / 2
        return StepOutput(loss, {"agreement": -loss.detach(), **batch_collapse(z_first)})

    def param_groups(self, optim: OptimConfig) -> list[dict[str, Any]]:
        """Return the usual groups, each split into the predictor's parameters, whose rate is constant, and others."""
        groups = split_groups(self, optim)
        if not self.config.constant_predictor_lr:
            return groups
        predictor = {id(parameter) for parameter in self.predictor.parameters()}
        parts = []
        for group in groups:
            for is_constant in (False, True):
                params = [parameter for parameter in group["params"] if (id(parameter) in predictor) == is_constant]
                parts.append({**group, "params": params, "is_lr_constant": is_constant})
        return [group for group in parts if group["params"]]
