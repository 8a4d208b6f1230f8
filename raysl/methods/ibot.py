"""iBOT: Image BERT Pre-Training with Online Tokenizer.

Zhou, Wei, Wang, Shen, Xie, Yuille and Kong 2021, arXiv 2111.07832. DINO, and the same for patches: a student that sees
a view with blocks of patches masked predicts what a teacher, which sees it whole, says of each masked patch. With
`patch_loss=all` it predicts that of every patch: iBOT++ of TIPSv2 (Cao et al. 2026, arXiv 2604.12012).
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, cast

import torch
from torch import Tensor

from raysl.config.ranges import Amount, Factors, Length, Momentum, Rising, Share, Temperature
from raysl.losses import ibot
from raysl.methods.method import Backbone, Batch, MethodConfig, Setup, StepOutput, TokenBackbone
from raysl.methods.shared.patches import (
    PatchLoss,
    PatchMethod,
    block_mask,
    check_block_masks,
    learned_places,
    num_learned,
)
from raysl.methods.shared.setup_checks import check_some_views
from raysl.nn import COLLAPSE, Centre, DINOHead, HeadConfig, Teacher, batch_collapse
from raysl.nn.views import at_places, token_crops
from raysl.schedule import Duration, Step, cosine, linear_over
from raysl.transforms import AsymmetricMultiCrop, BlockMask


class IBOT(PatchMethod):
    """Self-distillation of class tokens and of masked patches."""

    # the paper evaluates it
    exports_teacher = True
    logged = ("class_loss", "patch_loss", "teacher_entropy", *COLLAPSE)
    compiles = "step"

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's ImageNet settings."""

        name: str = "ibot"
        class_weight: Amount = 1.0
        """Factor of the loss of class tokens (section 3.2: both losses are summed as they are)."""
        patch_weight: Amount = 1.0
        """Factor of the loss of patches (section 3.2)."""
        patch_loss: PatchLoss = "masked"
        """Patches of a large view that have a loss: the masked ones, or all, a mean over masked and visible ones alike
        (iBOT++)."""
        mask_share: Annotated[tuple[Share, Share], Rising()] = (0.1, 0.5)
        """Range of the masked share of a large view's patches; half of the views stay whole (section
        3.2, "Pre-Training Setup")."""
        mask_aspect: Factors = (0.3, 1 / 0.3)
        """Range of height / width of a masked block, its logarithm drawn uniformly (BEiT's, which the paper takes)."""
        temperature: Temperature = 0.1
        """Divides the student's scores (the authors' code; DINO's)."""
        teacher_temp: Temperature = 0.07
        """Divides the teacher's centred scores of class tokens, after the warm-up (the authors' code)."""
        patch_teacher_temp: Temperature = 0.07
        """The same of patches (the authors' code)."""
        teacher_temp_start: Temperature = 0.04
        """Both values at the first step (the authors' code)."""
        teacher_temp_warmup: Length = field(default=Duration.parse("30ep"))
        """Duration of their linear rise (the authors' code)."""
        momentum: Share = 0.996
        """Share of the teacher that the first update keeps (DINO's)."""
        momentum_end: Share = 1.0
        """That share at the end of the run, reached along half a cosine (DINO's)."""
        centre_momentum: Momentum = 0.9
        """Share of the centre of class tokens that an update keeps (the authors' code)."""
        patch_centre_momentum: Momentum = 0.9
        """The same of patches (the authors' code)."""
        freeze_last_layer: Length = field(default=Duration.parse("1ep"))
        """How long the prototypes stay frozen at their initial values (the authors' code)."""
        shared_head: bool = True
        """One projector for class tokens and patches (section 3.1); else one for each, of
        the same settings."""
        head: HeadConfig = field(default_factory=lambda: HeadConfig(num_prototypes=8192))
        """The projector (section 3.2, "Architecture")."""
        views: AsymmetricMultiCrop = field(
            default_factory=lambda: AsymmetricMultiCrop(min_scale=0.25, num_local=10, local_scale=(0.05, 0.25))
        )
        """Two large crops, masked for the student, and ten small ones (section 3.2; the authors' command)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        config, dim = self.config, self.backbone.token_dim
        self.num_learned = num_learned(setup, "iBOT")
        self.head = DINOHead(dim, config.head)
        self.patch_head = None if config.shared_head else DINOHead(dim, config.head)
        self.teacher, self.teacher_head = Teacher(backbone), Teacher(self.head)
        self.teacher_patch_head = None if self.patch_head is None else Teacher(self.patch_head)
        self.centre, self.patch_centre = (Centre(config.head.num_prototypes) for _ in range(2))

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse backbones without patches or a token for masked ones, a single view, and impossible masks."""
        check_some_views(setup, "iBOT predicts the teacher's scores of one view from another")
        check_block_masks(setup, "iBOT")

    @classmethod
    def mask(cls, setup: Setup) -> BlockMask:
        """Return the mask of each large view."""
        return block_mask(setup, "iBOT")

    @property
    def most_entropy(self) -> float:
        """See `Method.most_entropy`."""
        return math.log(self.config.head.num_prototypes)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Sum the losses of class tokens and of patches (section 3; algorithm 1)."""
        config, mask = self.config, batch.extras["global.mask"]  # [B, G, h, w]
        chosen, is_learned = learned_places(mask, self.num_learned, config.patch_loss)  # [B, G, M]
        h, patches = token_crops(self.backbone, batch.views, mask)  # [B, V, D], [B, G, N, D]
        scores = self.head(h)  # [B, V, K]
        patch_scores = (self.patch_head or self.head)(at_places(patches, chosen))  # [B, G, M, K]

        # the teacher sees whole views and the student masked ones; they are compared patch by patch
        teacher_scores, teacher_patch_scores = self._teacher_scores(batch.views["global"])  # [B, G, K], [B, G, N, K]
        codes = self.centre(teacher_scores, self._warmed(step, config.teacher_temp))
        patch_codes = self.patch_centre(
            at_places(teacher_patch_scores, chosen), self._warmed(step, config.patch_teacher_temp)
        )  # [B, G, M, K]

        weights = config.class_weight, config.patch_weight
        loss, class_loss, patch_loss = ibot(
            scores, codes, patch_scores, patch_codes, is_learned, config.temperature, *weights
        )
        metrics = {
            "class_loss": class_loss.detach(),
            "patch_loss": patch_loss.detach(),
            "teacher_entropy": torch.special.entr(codes).sum(dim=-1).mean(),
            **batch_collapse(h[:, 0]),
        }
        return StepOutput(
            loss, metrics, {"scores": teacher_scores.mean(dim=1), "patch_scores": teacher_patch_scores.mean(dim=(1, 2))}
        )

    def after_backward(self, step: Step) -> None:
        """Freeze the prototypes for a while."""
        if not self.config.freeze_last_layer.is_over(step):
            for head in (self.head, self.patch_head):
                if head is not None:
                    head.hold_last()

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Move the centres of class tokens and of all patches, masked or not, and let the teacher follow."""
        self.centre.update(carry["scores"], self.config.centre_momentum)
        self.patch_centre.update(carry["patch_scores"], self.config.patch_centre_momentum)
        momentum = cosine(step.progress, self.config.momentum, self.config.momentum_end)
        self.teacher.update(self.backbone, momentum)
        self.teacher_head.update(self.head, momentum)
        if self.patch_head is not None and self.teacher_patch_head is not None:
            self.teacher_patch_head.update(self.patch_head, momentum)

    @torch.no_grad()
    def _teacher_scores(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores [B, G, K] and [B, G, N, K] of unmasked large views [B, G, C, H, W]."""
        h, patches = token_crops(cast(TokenBackbone, self.teacher.module), {"global": images})
        return self.teacher_head(h), (self.teacher_patch_head or self.teacher_head)(patches)

    def _warmed(self, step: Step, temperature: float) -> float:
        return linear_over(step, self.config.teacher_temp_warmup, self.config.teacher_temp_start, temperature)
