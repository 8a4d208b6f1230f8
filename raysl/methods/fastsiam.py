"""FastSiam: Resource-Efficient Self-supervised Learning on a Single GPU.

Pototzky, Sultan and Schmidt-Thieme 2022, DAGM GCPR, LNCS 13485. SimSiam (Chen and He 2020, arXiv 2011.10566) whose
predictor must match the mean of the projections of all other views: with several views a target hardly depends on what
one crop happens to show, so that little data, small batches and few epochs are enough.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from raysl.losses import at_least_fp32, negative_cosine
from raysl.methods.method import Batch, ConfigError, Setup, Step, StepOutput
from raysl.methods.shared.setup_checks import check_batch
from raysl.methods.simsiam import SimSiam
from raysl.nn.collapse import COLLAPSE, batch_collapse
from raysl.transforms.recipes import Crops


class FastSiam(SimSiam):
    """Predicts the mean of the other views' projections, through which no gradient flows."""

    logged: ClassVar[tuple[str, ...]] = ("agreement", *COLLAPSE)

    @dataclass(frozen=True, kw_only=True)
    class Config(SimSiam.Config):
        """SimSiam's ImageNet settings with several views."""

        name: str = "fastsiam"
        views: Crops = field(default_factory=lambda: Crops(num=4, min_scale=0.2, jitter=(0.4, 0.4, 0.4, 0.1)))
        """Four crops drawn the same way, as SimSiam draws two: a prediction and three for its target."""

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse a single view, and a batch too small for statistics."""
        check_batch(setup, "the projector normalises over the batch")
        num = setup.method.views.num
        if num < 2:
            raise ConfigError(f"method.views.num is {num}; FastSiam predicts a view from the others: set it to 4")

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the mean over views of SimSiam's eq. 3 with the mean of the other views' projections as target."""
        views = batch.views["global"].unbind(1)  # [B, C, H, W] each
        z = [self.project(view) for view in views]  # [B, D] each
        p = [self.predictor(rows) for rows in z]
        targets = at_least_fp32(torch.stack(z).detach())  # [V, B, D]
        # the sum of all views minus the view itself: the mean of its other views, for all views at once
        others = (targets.sum(dim=0) - targets) / (len(views) - 1)
        losses = [negative_cosine(rows, target) for rows, target in zip(p, others, strict=True)]
        loss = torch.stack(losses).mean()
        return StepOutput(loss, {"agreement": -loss.detach(), **batch_collapse(z[0])})
