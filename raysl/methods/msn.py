"""MSN: Masked Siamese Networks for Label-Efficient Learning.

Assran, Caron, Misra, Bojanowski, Bordes, Vincent, Joulin, Rabbat and Ballas 2022, arXiv 2204.07141. A ViT that sees
some patches of an image, or a small crop, predicts the prototypes that a teacher assigns to another, whole view. The
mean prediction over the batch is kept spread over all prototypes.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.ranges import Amount, Count, Momentum, Share, Temperature, Width, Within
from raysl.losses import at_least_fp32
from raysl.methods.method import Batch, ConfigError, MethodConfig, OptimConfig, Setup, StepOutput
from raysl.methods.shared.patches import PatchMethod, check_small_views, grid_side, patch_side
from raysl.nn import COLLAPSE, Teacher, batch_collapse, init_linear, mlp
from raysl.nn.backbones.backbone import Backbone, TokenBackbone, visible_places
from raysl.nn.sinkhorn import sinkhorn
from raysl.optim.groups import split_groups
from raysl.schedule import Step, linear
from raysl.transforms import MultiCrop, RandomMask


class MSN(PatchMethod):
    """Predicts the prototypes of a whole view from masked views."""

    # the paper evaluates it
    exports_teacher = True
    logged = ("anchor_top1", "mean_entropy", *COLLAPSE)

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The settings of the paper's ViT-S/16 on ImageNet."""

        name: str = "msn"
        temperature: Temperature = 0.1
        """Divides the cosines of an anchor with the prototypes (section 3, "tau")."""
        sharpening: Annotated[float, Within(1e-3, 1)] = 0.25
        """Factor of the temperature for targets, whose assignments become sharper (section 3)."""
        mask_ratio: Annotated[float, Within(0, 1, below=True)] = 0.15
        """Dropped share of an anchor's patches (section 5 and appendix): 0.15 for ViT-S/16, more for larger networks,
        up to 0.7 for ViT-L/7."""
        prototypes: Count = 1024
        """Number of trained prototypes (section 5)."""
        entropy_weight: Amount = 1.0
        """Weight lambda of the entropy of the mean prediction, which is maximised (section 3, eq. 1)."""
        sinkhorn_iters: Annotated[int, Within(0, 1000)] = 3
        """Rounds of balancing the assignments over the batch, after which the choice of lambda matters little (section
        3); 0 for none."""
        momentum: Momentum = 0.996
        """Share of the teacher that the first update keeps (appendix)."""
        momentum_end: Share = 1.0
        """That share at the end of the run, reached linearly (appendix)."""
        hidden_dim: Width = 2048
        """Width of the projector's two hidden layers, with batch normalisation (appendix)."""
        output_dim: Width = 256
        """Width of embeddings and prototypes (appendix)."""
        views: MultiCrop = field(
            default_factory=lambda: MultiCrop(min_scale=0.3, num_local=10, local_scale=(0.05, 0.3), jitter_strength=0.5)
        )
        """The target, one masked anchor of its size and ten small, whole anchors, "focal" masks (section 3);
        all drawn the same way, as in the authors' code."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        config = self.config
        num_patches = (config.views.size // backbone.patch_size) ** 2
        self.num_visible = num_patches - self.mask(setup).num_masked(num_patches)
        dims = [backbone.token_dim, config.hidden_dim, config.hidden_dim, config.output_dim]
        self.projector = mlp(dims, norm=True, activation=nn.GELU)
        init_linear(self.projector)
        bound = 1 / math.sqrt(config.output_dim)
        self.prototypes = nn.Parameter(torch.empty(config.prototypes, config.output_dim).uniform_(-bound, bound))
        self.teacher = Teacher(self.backbone)
        self.teacher_projector = Teacher(self.projector)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse backbones without patches, patches that do not cover a view or are all masked, and missing anchors."""
        config, num_patches = setup.method, grid_side(setup, "MSN") ** 2
        check_small_views(setup, "MSN")
        if config.views.num < 2:
            raise ConfigError(
                f"method.views.num is {config.views.num}; MSN takes a target and a masked anchor or more: set it to 2"
            )
        if cls.mask(setup).num_masked(num_patches) == num_patches:
            raise ConfigError(
                f"method.mask_ratio={config.mask_ratio:g} drops all {num_patches} patches of an anchor; "
                "take a smaller ratio, or smaller patches"
            )

    @classmethod
    def mask(cls, setup: Setup) -> RandomMask:
        """Return the mask of each large view."""
        return RandomMask(patch_size=patch_side(setup, "MSN"), ratio=setup.method.mask_ratio)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return equation 1: cross entropy of the anchors with their target, minus the entropy of their mean."""
        config = self.config
        z = self._anchors(batch)  # [B, A, D]
        target = self._target(batch.views["global"][:, 0])  # [B, D]
        with torch.autocast(z.device.type, enabled=False):
            prototypes = F.normalize(at_least_fp32(self.prototypes), dim=-1)  # [K, D]
            log_p = torch.log_softmax(z @ prototypes.T / config.temperature, dim=-1)  # [B, A, K]
            q = self._assign(target @ prototypes.detach().T)  # [B, K]
        cross_entropy = -(q[:, None] * log_p).sum(dim=-1).mean()
        mean = dist.all_gather(log_p.exp().mean(dim=1)).mean(dim=0)  # [K], over all anchors of all ranks
        # a mean of 0 counts 0; without the clamp its logarithm would make the entropy NaN
        entropy = -(mean * mean.clamp_min(torch.finfo(mean.dtype).tiny).log()).sum()
        loss = cross_entropy + config.entropy_weight * self._away_from_prior(mean, entropy)
        metrics = {
            "anchor_top1": 100 * (log_p.argmax(dim=-1) == q.argmax(dim=-1)[:, None]).float().mean(),
            "mean_entropy": entropy.detach(),
            **batch_collapse(z[:, 0]),
        }
        return StepOutput(loss, metrics)

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Let the teacher follow."""
        momentum = linear(step.progress, self.config.momentum, self.config.momentum_end)
        self.teacher.update(self.backbone, momentum)
        self.teacher_projector.update(self.projector, momentum)

    def param_groups(self, optim: OptimConfig) -> list[dict[str, Any]]:
        """Return the usual groups; prototypes do not decay (authors' code)."""
        return split_groups(self, optim, keep=[self.prototypes])

    def _away_from_prior(self, mean: Tensor, entropy: Tensor) -> Tensor:
        """Return the divergence of the mean prediction [K], whose entropy is given, from the even distribution."""
        return math.log(self.config.prototypes) - entropy

    def _anchors(self, batch: Batch) -> Tensor:
        """Return embeddings of the anchors [B, A, D], of length 1: masked anchors, then small ones, in one pass per
        size."""
        views, masks = batch.views["global"][:, 1:], batch.extras["global.mask"][:, 1:]  # [B, M, C, H, W]
        keep = visible_places(masks.flatten(0, 1), self.num_visible)  # [B*M, k]
        groups = [(views.shape[:2], self.backbone.visible_tokens(views.flatten(0, 1), keep))]
        if "local" in batch.views:
            small = batch.views["local"]
            groups.append((small.shape[:2], self.backbone.tokens(small.flatten(0, 1))))
        z = [self.projector(tokens[:, 0]).unflatten(0, rows) for rows, tokens in groups]  # of the class token
        return F.normalize(at_least_fp32(torch.cat(z, dim=1)), dim=-1)

    @torch.no_grad()
    def _target(self, images: Tensor) -> Tensor:
        """Return the teacher's embeddings of whole views [B, D], of length 1."""
        tokens = cast(TokenBackbone, self.teacher.module).tokens(images)
        return F.normalize(at_least_fp32(self.teacher_projector(tokens[:, 0])), dim=-1)

    @torch.no_grad()
    def _assign(self, scores: Tensor) -> Tensor:
        """Return sharpened assignments of targets [B, K], balanced over the batch of all ranks if configured."""
        log_q = torch.log_softmax(scores / (self.config.sharpening * self.config.temperature), dim=-1)
        return sinkhorn(log_q, 1.0, self.config.sinkhorn_iters)
