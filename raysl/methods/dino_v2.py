"""DINOv2: Learning Robust Visual Features without Supervision.

Oquab et al. 2023, arXiv 2304.07193. DINO on class tokens and iBOT on masked patches, each with its own projector;
assignments are balanced over the batch by Sinkhorn-Knopp instead of centred, and KoLeo spreads the class tokens.
With `patch_loss=all` every patch is predicted, as in iBOT++ of TIPSv2 (Cao et al. 2026, arXiv 2604.12012).
Registers (Darcet, Oquab, Mairal and Bojanowski 2024, arXiv 2309.16588) are those of the backbone.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, cast

import torch
from torch import Tensor, nn

from raysl import distributed as dist
from raysl.config.ranges import Amount, Count, Factors, Length, Rising, Share, Temperature, Within
from raysl.losses import dino, koleo, masked_prediction
from raysl.methods.method import Backbone, Batch, ConfigError, MethodConfig, Setup, StepOutput, TokenBackbone
from raysl.methods.shared.patches import (
    PatchLoss,
    PatchMethod,
    block_mask,
    check_block_masks,
    learned_places,
    num_learned,
)
from raysl.methods.shared.setup_checks import check_some_views
from raysl.nn import COLLAPSE, DINOHead, HeadConfig, NestedHead, Teacher, batch_collapse
from raysl.nn.sinkhorn import sinkhorn
from raysl.nn.views import at_places, token_crops
from raysl.schedule import Duration, Step, cosine, linear_over
from raysl.transforms import AsymmetricMultiCrop, Mask


class DINOv2(PatchMethod):
    """Predicts a teacher's balanced assignments of class tokens and masked patches."""

    # the paper evaluates it
    exports_teacher = True
    logged: ClassVar[tuple[str, ...] | None] = ("class_loss", "patch_loss", "koleo", "teacher_entropy", *COLLAPSE)
    compiles = "step"

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's settings of a ViT-L/14 trained from scratch, or those of the authors' code where the paper names
        none."""

        name: str = "dino_v2"
        class_weight: Amount = 1.0
        """Factor of the loss of class tokens (the authors' code)."""
        patch_weight: Amount = 1.0
        """Factor of the loss of patches (the authors' code)."""
        patch_loss: PatchLoss = "masked"
        """Patches of a large view that have a loss: the masked ones, or all, a mean over masked and visible ones alike
        (iBOT++). All of them take memory: each has as many scores as there are prototypes."""
        koleo_weight: Amount = 0.1
        """Factor of KoLeo, which is summed over the large views (the authors' code)."""
        mask_share: Annotated[tuple[Share, Share], Rising()] = (0.1, 0.5)
        """Range of the masked share of a large view's patches; half of the views stay whole (the authors' code)."""
        mask_aspect: Factors = (0.3, 1 / 0.3)
        """Range of height / width of a masked block, its logarithm drawn uniformly (iBOT's)."""
        mask_min_block: Count | None = None
        """Patches of the smallest masked block; 4 in the authors' code. Default: a ninth of a view's, as in iBOT."""
        sinkhorn_iters: Annotated[int, Within(0, 1000)] = 3
        """Rounds of balancing assignments (section 4, "Sinkhorn-Knopp centering"); 0 leaves a softmax."""
        temperature: Temperature = 0.1
        """Divides the student's scores (the authors' code; DINO's)."""
        teacher_temp: Temperature = 0.07
        """Divides the teacher's scores, after its warm-up (the authors' code)."""
        teacher_temp_start: Temperature = 0.04
        """That value at the first step (the authors' code)."""
        teacher_temp_warmup: Length = field(default=Duration.parse("37500st"))
        """Duration of its linear rise (the authors' code: 30 epochs of 1250 updates)."""
        momentum: Share = 0.994
        """Share of the teacher that the first update keeps (the authors' code)."""
        momentum_end: Share = 1.0
        """That share at the end of the run, reached along half a cosine (the authors' code)."""
        freeze_last_layer: Length = field(default=Duration.parse("1250st"))
        """How long the prototypes stay frozen at their initial values (the authors' code)."""
        head: HeadConfig = field(
            default_factory=lambda: HeadConfig(num_prototypes=131_072, bottleneck_dim=384, last_layer="weight_norm")
        )
        """The projector of class tokens (the authors' code)."""
        patch_head: HeadConfig = field(
            default_factory=lambda: HeadConfig(num_prototypes=131_072, last_layer="weight_norm")
        )
        """The projector of patches (section 4, "Untying head weights between both objectives")."""
        views: AsymmetricMultiCrop = field(
            default_factory=lambda: AsymmetricMultiCrop(min_scale=0.32, local_size=98, local_scale=(0.05, 0.32))
        )
        """Two large crops, masked for the student, and eight small ones (the authors' code)."""

    title: ClassVar[str] = "DINOv2"
    """Name of the paper, for messages."""
    hides_patches = True
    """Whether the student sees the token of masked patches in their place."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        dim = self.backbone.token_dim
        self.num_learned = num_learned(setup, self.title)
        self.head, self.patch_head = self._head(dim, self.config.head), self._head(dim, self.config.patch_head)
        self.teacher = Teacher(backbone)
        self.teacher_head, self.teacher_patch_head = Teacher(self.head), Teacher(self.patch_head)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse backbones without patches or a token for masked ones, a single view, impossible masks, and a batch
        of a single image."""
        check_some_views(setup, f"{cls.title} predicts the teacher's scores of one view from another")
        check_block_masks(setup, cls.title)
        if setup.plan.batch_size < 2:
            raise ConfigError(
                f"train.batch_size is {setup.plan.batch_size}; KoLeo takes the distance to another image, and "
                f"{cls.title} balances assignments over the batch: at least 2, better 1024"
            )

    @classmethod
    def mask(cls, setup: Setup) -> Mask:
        """Return the mask of each large view."""
        return block_mask(setup, cls.title, setup.method.mask_min_block)

    @property
    def most_entropy(self) -> float:
        """See `Method.most_entropy`."""
        return math.log(self.config.head.num_prototypes)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """The image-level and the patch-level objective, and KoLeo over the whole global batch (section 4)."""
        config, large = self.config, batch.views["global"]  # [B, G, C, H, W]
        mask = batch.extras["global.mask"]  # [B, G, h, w]
        chosen, is_learned = learned_places(mask, self.num_learned, config.patch_loss)  # [B, G, M]
        seen = mask if self.hides_patches else None
        h, patches = token_crops(self.backbone, batch.views, seen)  # [B, V, D], [B, G, N, D]
        scores = self.head(h)  # [B, V, K]
        patch_scores = self.patch_head(at_places(patches, chosen))  # [B, G, M, P]
        codes, patch_codes = self._codes(large, chosen, is_learned, step)  # [B, G, K], [B, G, M, P]

        class_loss = self._class_loss(scores, codes)
        patch_loss = self._patch_loss(patch_scores, patch_codes, is_learned)
        h_all, rows = dist.all_gather(h[:, : large.shape[1]]), dist.own_rows(h)  # [N, G, D], [B]
        # KoLeo of each view by itself: views of one image must not push each other apart (the authors' code)
        views = range(large.shape[1])
        spread = torch.stack([koleo(h[:, view], h_all[:, view], rows) for view in views]).sum()
        more, more_metrics = self._more_of_patches(batch, patches, step)
        tokens = config.class_weight * class_loss + config.patch_weight * patch_loss
        loss = tokens + config.koleo_weight * spread + more
        metrics = {
            "class_loss": class_loss.detach(),
            "patch_loss": patch_loss.detach(),
            "koleo": spread.detach(),
            **more_metrics,
            "teacher_entropy": torch.special.entr(codes).sum(dim=-1).mean(),
            **batch_collapse(h[:, 0]),
        }
        return StepOutput(loss, metrics)

    def after_backward(self, step: Step) -> None:
        """Freeze the prototypes for a while."""
        if not self.config.freeze_last_layer.is_over(step):
            self.head.hold_last()
            self.patch_head.hold_last()

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Let the teacher follow."""
        momentum = self.teacher_momentum(step)
        self.teacher.update(self.backbone, momentum)
        self.teacher_head.update(self.head, momentum)
        self.teacher_patch_head.update(self.patch_head, momentum)

    def teacher_momentum(self, step: Step) -> float:
        """Return the share of the teacher that an update keeps."""
        return cosine(step.progress, self.config.momentum, self.config.momentum_end)

    def _head(self, dim: int, config: HeadConfig) -> DINOHead | NestedHead:
        """Return a projector of tokens [..., D]."""
        return DINOHead(dim, config)

    def _class_loss(self, scores: Tensor, codes: Tensor) -> Tensor:
        """Return the loss of class tokens, of scores [B, V, K] and codes [B, G, K]."""
        return dino(scores, codes, self.config.temperature)

    def _patch_loss(self, scores: Tensor, codes: Tensor, is_learned: Tensor) -> Tensor:
        """Return the loss of patches, of scores and codes [B, G, M, P], of those that `is_learned` [B, G, M] has."""
        return masked_prediction(scores, codes, is_learned, self.config.temperature)

    def _balanced(self, head: nn.Module, scores: Tensor, temp: float, mask: Tensor | None = None) -> Tensor:
        """Return the assignments [n, K] of scores [n, K] that `head` gives, balanced over those rows of all ranks that
        `mask` [n] has."""
        return sinkhorn(scores, temp, self.config.sinkhorn_iters, mask=mask)

    def _more_of_patches(self, batch: Batch, patches: Tensor, step: Step) -> tuple[Tensor | float, dict[str, Tensor]]:
        """Return a further loss of the student's patches of large views [B, G, N, D], and what is logged of it."""
        return 0.0, {}

    def _teachers(self) -> tuple[nn.Module, nn.Module, nn.Module]:
        """Return the backbone, head and patch head whose scores are learned."""
        return self.teacher.module, self.teacher_head, self.teacher_patch_head

    @torch.no_grad()
    def _codes(self, images: Tensor, chosen: Tensor, is_learned: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Return the teacher's assignments of class tokens [B, G, K], balanced over the large views of all ranks, and
        of patches [B, G, M, P], balanced over the learned patches of all ranks. It sees large views [B, G, C, H, W]
        whole.
        """
        config = self.config
        temp = linear_over(step, config.teacher_temp_warmup, config.teacher_temp_start, config.teacher_temp)
        backbone, head, patch_head = self._teachers()
        h, patches = token_crops(cast(TokenBackbone, backbone), {"global": images})
        teacher_scores = head(h)  # [B, G, K]
        teacher_patch_scores = patch_head(at_places(patches, chosen))  # [B, G, M, P]
        codes = self._balanced(self.head, teacher_scores.flatten(0, 1), temp)
        patch_codes = self._balanced(self.patch_head, teacher_patch_scores.flatten(0, 2), temp, is_learned.flatten())
        return codes.view_as(teacher_scores), patch_codes.view_as(teacher_patch_scores)
