"""CAPI: Cluster and Predict Latent Patches for Improved Masked Image Modeling.

Darcet, Baldassarre, Oquab, Mairal and Bojanowski 2025, arXiv 2502.08769. A slow copy of the network, the teacher, sees
the whole image, and a linear layer sorts its patches into clusters, trained by a loss of its own: assignments are
balanced over the images at each place of the grid, so that no cluster stands for a place. The network sees one block of
the image, and a predictor, in which hidden patches look at visible ones alone, tells the clusters of some hidden ones.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.config.ranges import Amount, Count, Factors, Length, Share, Temperature, Within
from raysl.losses import at_least_fp32, soft_cross_entropy
from raysl.methods.method import Batch, ConfigError, MethodConfig, OptimConfig, Setup, StepOutput
from raysl.methods.shared.patches import PatchMethod, grid_side, patch_side
from raysl.nn import COLLAPSE, Teacher, batch_collapse, init_linear
from raysl.nn.backbones.attention import CrossBlock
from raysl.nn.backbones.backbone import Backbone, TokenBackbone, visible_places
from raysl.nn.backbones.positions import RotaryPositions, rotation_at
from raysl.nn.dino_head import WeightNormed
from raysl.nn.drop_path import drop_slots
from raysl.nn.sinkhorn import sinkhorn
from raysl.optim.groups import split_groups
from raysl.schedule import Duration, Step, cosine, linear_over, progress_after
from raysl.transforms import Crops, InverseBlockMask


class CAPI(PatchMethod):
    """Predicts the clusters of a teacher's patches outside of the block that it sees."""

    # the authors' code evaluates it
    exports_teacher = True
    logged = ("prediction_loss", "clustering_loss", "target_entropy", *COLLAPSE)

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The settings of the authors' code for ViT-L/14."""

        name: str = "capi"
        mask_ratio: Annotated[float, Within(0, 1, above=True, below=True)] = 0.65
        """Share of the patches that the backbone does not see (the authors' code)."""
        mask_aspect: Factors = (0.5, 2.0)
        """Range of height / width of the seen block, its logarithm drawn uniformly (the authors' code)."""
        predicted_share: Annotated[float, Within(0, 1, above=True)] = 0.05
        """Share of the hidden patches that are predicted (the authors' code)."""
        num_clusters: Count = 16_384
        """K, the number of clusters (the authors' code)."""
        sinkhorn_iters: Annotated[int, Within(0, 1000)] = 3
        """Rounds of balancing assignments (the authors' code); 0 leaves a softmax."""
        is_positionwise: bool = True
        """Balance the assignments of each place by itself; otherwise those of all patches together (figure 12)."""
        target_temp: Temperature = 0.06
        """Divides the scores of clusters in assignments (the authors' code)."""
        clustering_temp: Temperature = 0.12
        """Divides the scores of clusters in their own loss (the authors' code)."""
        temperature: Temperature = 0.12
        """Divides the scores of predictions (the authors' code)."""
        clustering_lr_scale: Amount = 0.5
        """Learning rate of the clusters as a share of the others' (the authors' code)."""
        clustering_decay_scale: Amount = 0.1
        """Weight decay of the clusters as a share of the others' (the authors' code: torch's 0.01 beside 0.1)."""
        predictor_width: Annotated[int, Within(4, 65_536)] = 1024
        """Channels of a token in the predictor, a multiple of 4 times its heads (the authors' code)."""
        predictor_depth: Annotated[int, Within(1, 1000)] = 12
        """Blocks of the predictor (the authors' code)."""
        predictor_heads: Annotated[int, Within(1, 1024)] = 16
        """Heads of each attention in the predictor (the authors' code)."""
        predictor_drop_path: Annotated[float, Within(0, 1, below=True)] = 0.2
        """Rate at which training drops a block of the predictor for a sample (the authors' code)."""
        momentum: Share = 0.999
        """Share of the teacher that an update keeps after the warm-up (the authors' code)."""
        momentum_warmup: Length = field(default=Duration.parse("10%"))
        """Duration of its linear fall from 1 at the first step (the authors' code)."""
        momentum_end: Share = 1.0
        """Where the half cosine from there leads (the authors' code)."""
        momentum_part: Share = 0.8
        """Share of that half cosine that the run reaches (the authors' code)."""
        views: Crops = field(
            default_factory=lambda: Crops(num=1, min_scale=0.6, jitter_p=0.0, grayscale_p=0.0, blur_p=0.0)
        )
        """One crop, mirrored with probability 1/2, without colours (the authors' code)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        config, num_patches, mask = self.config, grid_side(setup, "CAPI") ** 2, self.mask(setup)
        self.num_visible = num_patches - mask.num_masked(num_patches)
        self.num_predicted = mask.num_predicted(num_patches)
        self.teacher = Teacher(self.backbone)
        self.clustering = nn.Linear(self.backbone.token_dim, config.num_clusters)
        nn.init.normal_(self.clustering.weight)
        nn.init.zeros_(self.clustering.bias)
        self.predictor = Predictor(config, self.backbone)
        self.head = WeightNormed(config.predictor_width, config.num_clusters, is_scaled=True)
        nn.init.trunc_normal_(self.head.weight, std=0.02)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse patches that do not cover a view, none to predict, impossible predictors, and single images."""
        config, num_patches, mask = setup.method, grid_side(setup, "CAPI") ** 2, cls.mask(setup)
        if not mask.num_predicted(num_patches):
            raise ConfigError(
                f"method.mask_ratio={config.mask_ratio:g} hides {mask.num_masked(num_patches)} of the {num_patches} "
                f"patches of a view, and method.predicted_share={config.predicted_share:g} predicts none of them; "
                "give a larger share, or take smaller patches"
            )
        width, heads = config.predictor_width, config.predictor_heads
        if width % (4 * heads):
            raise ConfigError(
                f"method.predictor_width={width} has to be a multiple of 4 * method.predictor_heads={heads}, for its "
                f"positions; try predictor_width={max(width // (4 * heads), 1) * 4 * heads}"
            )
        if setup.plan.batch_size < 2:
            raise ConfigError(
                f"train.batch_size is {setup.plan.batch_size}; CAPI balances assignments over the batch: at least 2, "
                "better 16384"
            )

    @classmethod
    def mask(cls, setup: Setup) -> InverseBlockMask:
        """Return the mask of each view, with the part of it that is predicted."""
        config, patch_size = setup.method, patch_side(setup, "CAPI")
        return InverseBlockMask(
            patch_size=patch_size, ratio=config.mask_ratio, predicted=config.predicted_share, aspect=config.mask_aspect
        )

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the loss of the clusters and that of their predictions, whose gradients do not meet."""
        config = self.config
        images = batch.views["global"].flatten(0, 1)  # [B*V, C, H, W]
        hidden, predicted = (batch.extras[f"global.{name}"].flatten(0, 1) for name in ("mask", "predicted"))
        keep = visible_places(hidden, self.num_visible)  # [B*V, T]
        chosen = visible_places(~predicted, self.num_predicted)  # [B*V, M]

        cluster_scores = at_least_fp32(self._cluster_scores(images))  # [N, B*V, K]
        codes = self._codes(cluster_scores)  # [N, B*V, K]
        clustering = soft_cross_entropy(cluster_scores / config.clustering_temp, codes)

        tokens = self.backbone.visible_tokens(images, keep)  # [B*V, P + T, D]
        z = self.predictor(tokens, images, keep, chosen)  # [B*V, M, W]
        scores = at_least_fp32(self.head(F.normalize(at_least_fp32(z), dim=-1)))  # [B*V, M, K]
        # codes are ordered by place, then by view; turned around, each view takes those of its predicted patches
        targets = codes.transpose(0, 1).gather(1, chosen[..., None].expand_as(scores))
        prediction = soft_cross_entropy(scores / config.temperature, targets)

        h = tokens.detach()[:, self.backbone.num_prefix_tokens :].mean(dim=1)  # [B*V, D]
        metrics = {
            "prediction_loss": prediction.detach(),
            "clustering_loss": clustering.detach(),
            "target_entropy": torch.special.entr(targets).sum(dim=-1).mean(),
            **batch_collapse(h.view(len(batch), -1, h.shape[1])),
        }
        return StepOutput(prediction + clustering, metrics)

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Let the teacher follow."""
        config = self.config
        num_warmup = config.momentum_warmup.steps(step.total, step.epoch_len)
        if step.index < num_warmup:
            momentum = linear_over(step, config.momentum_warmup, 1.0, config.momentum)
        else:
            progress = config.momentum_part * progress_after(step, num_warmup)
            momentum = cosine(progress, config.momentum, config.momentum_end)
        self.teacher.update(self.backbone, momentum)

    def param_groups(self, optim: OptimConfig) -> list[dict[str, Any]]:
        """Return the groups of all else, and one of the clusters, with a learning rate and a decay of their own."""
        config, clusters = self.config, list(self.clustering.parameters())
        apart = {id(parameter) for parameter in clusters}
        groups = split_groups(self, optim)
        for group in groups:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in apart]
        scales = {"lr_scale": config.clustering_lr_scale, "weight_decay_scale": config.clustering_decay_scale}
        return [*(group for group in groups if group["params"]), {"params": clusters, **scales}]

    def _cluster_scores(self, images: Tensor) -> Tensor:
        """Return the scores of clusters [N, B, K] of the teacher's patches of whole images, place by place."""
        teacher = cast(TokenBackbone, self.teacher.module)
        with torch.no_grad():
            patches = teacher.tokens(images)[:, teacher.num_prefix_tokens :].transpose(0, 1)  # [N, B, D]
            patches = F.normalize(at_least_fp32(patches), dim=-1, eps=1e-7)
        return self.clustering(patches)  # type: ignore[no-any-return]

    def _codes(self, scores: Tensor) -> Tensor:
        """Return the balanced assignments [N, B, K] of scores [N, B, K] (figure 12)."""
        config = self.config
        if config.is_positionwise:
            return sinkhorn(scores, config.target_temp, config.sinkhorn_iters)
        return sinkhorn(scores.flatten(0, 1), config.target_temp, config.sinkhorn_iters).view_as(scores)


class Predictor(nn.Module):
    """From the tokens of visible patches to those of some hidden ones, each by itself."""

    def __init__(self, config: CAPI.Config, backbone: TokenBackbone) -> None:
        super().__init__()
        width, heads, rate = config.predictor_width, config.predictor_heads, config.predictor_drop_path
        # numbered after the backbone's blocks, so that their drop path draws random numbers of its own
        first = max(drop_slots(backbone), default=-1) // 2 + 1
        self.mask_token = nn.Parameter(torch.empty(width))
        self.positions = RotaryPositions(width // heads, base=10_000.0, turns=7.0)
        self.blocks = nn.ModuleList(
            CrossBlock(width, backbone.token_dim, heads, rate, first + number)
            for number in range(config.predictor_depth)
        )
        self.norm = nn.LayerNorm(width, eps=1e-5, elementwise_affine=False)
        self.patch_size = backbone.patch_size
        init_linear(self, "mae")
        nn.init.normal_(self.mask_token, std=0.02)

    def forward(self, tokens: Tensor, images: Tensor, keep: Tensor, hidden: Tensor) -> Tensor:
        """Return the hidden patches [B, M, W].

        Args:
            tokens: tokens of the backbone [B, P + T, D], those of the T visible patches last.
            images: images behind the tokens [B, C, H, W].
            keep: indices of the visible patches, int64 [B, T].
            hidden: indices of the hidden patches, int64 [B, M].
        """
        height, width = (side // self.patch_size for side in images.shape[-2:])
        rotation = self.positions(images, (height, width))  # [2, 1, N, d]
        rotations = rotation_at(rotation, hidden), rotation_at(rotation, keep)
        x = self.mask_token.expand(*hidden.shape, -1)
        for block in self.blocks:
            x = block(x, tokens, rotations)
        return self.norm(x)  # type: ignore[no-any-return]
