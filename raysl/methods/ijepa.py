"""I-JEPA: Self-Supervised Learning from Images with a Joint-Embedding Predictive Architecture.

Assran, Duval, Misra, Bojanowski, Vincent, Rabbat, LeCun and Ballas 2023, arXiv 2301.08243. From a large part of an
image, the context, a narrow ViT predicts a slow copy's representation of several other blocks.

The authors' code cuts the contexts of a batch to the smallest among them, so that an image's loss depends on the other
images of its batch. Here `Config.max_context` cuts each context, and attention masks missing patches; block sizes are
drawn for each block instead of once per batch, and blocks may lie at the lower and right borders. The paper's ViT has
no class token: here it is a token of the context that the predictor does not get.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.ranges import Areas, Count, Factors, Place, Share, Within
from raysl.losses import at_least_fp32
from raysl.methods.method import Backbone, Batch, MethodConfig, Setup, StepOutput, TokenBackbone, visible_places
from raysl.methods.shared.patches import PatchMethod, check_context, check_width, multi_block_mask
from raysl.nn import COLLAPSE, Teacher, batch_collapse, init_linear, sincos_positions
from raysl.nn.backbones.attention import Block
from raysl.schedule import Step, linear
from raysl.transforms import Crops, MultiBlockMask


class IJEPA(PatchMethod):
    """Predicts a teacher's patches in blocks of an image from the rest of it."""

    # the paper evaluates it (section 4)
    exports_teacher = True
    logged = ("target_std", *COLLAPSE)

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's ImageNet settings, with the predictor of ViT-B/16."""

        name: str = "ijepa"
        num_targets: Annotated[int, Within(1, 64)] = 4
        """M, the number of blocks to predict (section 3, "Targets")."""
        target_scale: Areas = (0.15, 0.2)
        """Range of the share of the patches in a block (section 3, "Targets")."""
        target_aspect: Factors = (0.75, 1.5)
        """Range of height / width of a block (section 3, "Targets")."""
        context_scale: Areas = (0.85, 1.0)
        """Range of the share of the patches in the context, before the blocks are removed from it (section 3,
        "Context")."""
        min_context: Place = 10
        """Smallest number of patches in a context; with fewer, all blocks are drawn again (the authors' code)."""
        max_context: Count | None = None
        """Largest number of patches in a context, which keeps its first ones row by row. The authors' code cuts all
        contexts of a batch to the smallest. Default: no limit."""
        predictor_width: Annotated[int, Within(4, 65_536)] = 384
        """Channels of a token in the predictor, a multiple of 4 and of its heads (appendix A.1)."""
        predictor_depth: Annotated[int, Within(1, 1000)] = 6
        """Blocks of the predictor; 12 for ViT-L and larger (appendix A.1)."""
        predictor_heads: Annotated[int, Within(1, 1024)] = 12
        """Heads of each attention in the predictor, as many as the backbone's (appendix A.1)."""
        loss: Literal["l2", "smooth_l1"] = "l2"
        """Distance of a prediction: squared (section 3, "Loss"), or linear above an error of 1 (the authors' code)."""
        momentum: Share = 0.996
        """Share of the teacher that the first update keeps (appendix A.1)."""
        momentum_end: Share = 1.0
        """That share at the end, reached along a straight line (appendix A.1)."""
        views: Crops = field(
            default_factory=lambda: Crops(num=1, min_scale=0.3, flip=0.0, jitter_p=0.0, grayscale_p=0.0, blur_p=0.0)
        )
        """One crop and nothing else (the authors' code)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        size = self.config.views.size
        self.num_context, self.num_target = multi_block_mask(setup, "I-JEPA").most((size, size))
        self.predictor = Predictor(self.config, self.backbone)
        self.teacher = Teacher(self.backbone)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse backbones without patches, views too small for a context, and impossible predictors."""
        check_context(setup, "I-JEPA")
        check_width("predictor", setup.method.predictor_width, setup.method.predictor_heads)

    @classmethod
    def mask(cls, setup: Setup) -> MultiBlockMask:
        """Return context and targets of each view."""
        return multi_block_mask(setup, "I-JEPA")

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the mean distance of predictions and targets over all patches of all blocks of the batch (section
        3)."""
        images = batch.views["global"].flatten(0, 1)  # [B*V, C, H, W]
        hidden = batch.extras["global.mask"].flatten(0, 1).flatten(1)  # [B*V, L]
        blocks = batch.extras["global.targets"].flatten(0, 1).flatten(2)  # [B*V, M, L]
        s = self._targets(images)  # [B*V, L, D]
        # contexts and blocks differ in size between images: they are padded, and the padding is marked
        keep = visible_places(hidden, self.num_context)  # [B*V, K]
        is_context = ~hidden.gather(1, keep)  # [B*V, K]
        context = self.backbone.visible_tokens(images, keep, is_context)[:, self.backbone.num_prefix_tokens :]
        goal = visible_places(~blocks.flatten(0, 1), self.num_target).view(*blocks.shape[:2], -1)  # [B*V, M, T]
        is_goal = blocks.gather(2, goal)  # [B*V, M, T]
        predictions = at_least_fp32(self.predictor(context, keep, is_context, goal, is_goal))  # [B*V, M, T, D]
        targets = s[:, None].expand(-1, blocks.shape[1], -1, -1).gather(2, goal[..., None].expand_as(predictions))
        distance = F.mse_loss if self.config.loss == "l2" else F.smooth_l1_loss
        errors = distance(predictions, targets, reduction="none").mean(dim=-1)  # [B*V, M, T]
        weights = is_goal.to(errors.dtype)
        # one mean over the whole batch, since images and ranks have different numbers of patches to predict
        loss = dist.all_sum((errors * weights).sum()) / dist.all_sum(weights.sum()).clamp(min=1)
        h = s.mean(dim=1).view(*batch.views["global"].shape[:2], -1)  # [B, V, D]
        metrics = {"target_std": s.std(dim=(0, 1)).mean(), **batch_collapse(h)}
        return StepOutput(loss, metrics)

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Let the teacher follow (section 3, "Loss"; appendix A.1)."""
        self.teacher.update(self.backbone, linear(step.progress, self.config.momentum, self.config.momentum_end))

    @torch.no_grad()
    def _targets(self, images: Tensor) -> Tensor:
        """Return the teacher's patches of whole images, normalised without weights [B, L, D] (the authors' code)."""
        teacher = cast(TokenBackbone, self.teacher.module)
        tokens = at_least_fp32(teacher.tokens(images)[:, teacher.num_prefix_tokens :])
        return F.layer_norm(tokens, tokens.shape[-1:])


class Predictor(nn.Module):
    """From the tokens of a context to those of blocks, given by their positions (section 3, "Prediction").

    Args:
        config: settings of the method: its `predictor_width`, `predictor_depth`, `predictor_heads` and `views`.
        backbone: the network whose tokens are its input, and its targets unless their width is given.
        num_values: width of a prediction; default: that of the backbone's tokens.
    """

    positions: Tensor

    def __init__(self, config: Any, backbone: TokenBackbone, num_values: int | None = None) -> None:
        super().__init__()
        width, side = config.predictor_width, config.views.size // backbone.patch_size
        self.embed = nn.Linear(backbone.token_dim, width)
        self.mask_token = nn.Parameter(torch.empty(width))
        self.register_buffer("positions", sincos_positions(side, side, width, num_prefix=0)[0])
        self.blocks = nn.ModuleList(Block(width, config.predictor_heads) for _ in range(config.predictor_depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, num_values or backbone.token_dim)
        init_linear(self)
        nn.init.trunc_normal_(self.mask_token, std=0.02)

    def forward(self, context: Tensor, keep: Tensor, is_context: Tensor, goal: Tensor, is_goal: Tensor) -> Tensor:
        """Return predictions for each block separately [B, M, T, D].

        Args:
            context: tokens [B, K, D].
            keep: their indices among the L patches, int64 [B, K].
            is_context: bool [B, K], false for padding.
            goal: indices of the patches of M target blocks, int64 [B, M, T].
            is_goal: bool [B, M, T], false for padding.
        """
        shape = goal.shape
        seen = self.embed(context) + self.positions[keep]  # [B, K, W]
        queries = self.mask_token + self.positions[goal]  # [B, M, T, W]
        # each block is predicted from the context by itself, so blocks become rows of the batch
        x = torch.cat([seen[:, None].expand(-1, shape[1], -1, -1), queries.to(seen.dtype)], dim=2).flatten(0, 1)
        is_key = torch.cat([is_context[:, None].expand(-1, shape[1], -1), is_goal], dim=2).flatten(0, 1)
        for block in self.blocks:
            x = block(x, is_key)  # [B*M, K + T, W]
        return self.head(self.norm(x[:, -shape[2] :])).unflatten(0, shape[:2])  # type: ignore[no-any-return]
