"""data2vec: A General Framework for Self-supervised Learning in Speech, Vision and Language; the vision part.

Baevski, Hsu, Xu, Babu, Gu and Auli 2022, arXiv 2202.03555. A ViT that sees part of an image predicts a slow copy's
representation of the whole image: for each masked patch, the mean of the copy's last layers. The layers are outputs of
blocks, as in the authors' vision code, and positions are those of `backbone.position`.
"""

from dataclasses import dataclass, field
from typing import Annotated, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.ranges import Amount, Count, Length, Momentum, Within
from raysl.losses import at_least_fp32
from raysl.methods.method import Backbone, Batch, ConfigError, MethodConfig, Setup, StepOutput, TokenBackbone
from raysl.methods.shared.patches import PatchMethod, grid_side, need_mask_token, patch_side
from raysl.nn import COLLAPSE, Teacher, batch_collapse, init_linear
from raysl.schedule import Duration, Step, linear_over
from raysl.transforms import BlockMask, Crops


class Data2Vec(PatchMethod):
    """Predicts a teacher's layers at masked patches from the student's tokens."""

    logged = ("target_std", *COLLAPSE)

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's ImageNet settings."""

        name: str = "data2vec"
        mask_ratio: Annotated[float, Within(0, 1, above=True, below=True)] = 0.6
        """Share of the patches that are masked, in blocks as in BEiT (section 4.1)."""
        num_layers: Count = 6
        """K, the number of the teacher's last blocks in the targets (section 4.1)."""
        beta: Amount = 2.0
        """Error above which the loss is linear instead of squared (sections 3.4 and 4.1)."""
        momentum: Momentum = 0.9998
        """Share of the teacher that an update keeps, tau_e (sections 3.3 and 4.1)."""
        momentum_start: Momentum = 0.9998
        """That share at the first step, tau_0; for vision it is constant (section 4.1)."""
        momentum_warmup: Length = field(default=Duration.parse("0ep"))
        """Duration of the share's linear rise, tau_n (section 3.3)."""
        shares_embedding: bool = True
        """Give the teacher the student's patch and position embeddings as they are (section 3.3); the authors' vision
        code averages them like all others."""
        is_renormalised: bool = False
        """Normalise the mean of the layers once more, as the authors' vision code does."""
        views: Crops = field(
            default_factory=lambda: Crops(num=1, jitter_p=1.0, jitter=(0.4, 0.4, 0.4, 0.0), grayscale_p=0.0, blur_p=0.0)
        )
        """One crop, mirrored with probability 1/2, with colour jitter; student and teacher see the same (section 4.1,
        as BEiT)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        width = self.backbone.token_dim
        self.head = nn.Linear(width, width)
        init_linear(self.head, "beit")
        self.teacher = Teacher(self.backbone)
        self.layers = _blocks(setup)[-self.config.num_layers :]

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse backbones without patches or a token for masked ones, empty masks, and more layers than there are."""
        num_patches = grid_side(setup, "data2vec") ** 2
        need_mask_token(setup, "data2vec")
        config, num_blocks = setup.method, len(_blocks(setup))
        if int(num_patches * config.mask_ratio + 1e-9) == 0:
            raise ConfigError(
                f"method.mask_ratio={config.mask_ratio:g} masks none of the {num_patches} patches of a view; take a "
                "larger ratio, or smaller patches"
            )
        if config.num_layers > num_blocks:
            raise ConfigError(
                f"method.num_layers is {config.num_layers}, and the backbone has {num_blocks} blocks; give "
                f"{num_blocks} or fewer, or a deeper backbone"
            )

    @classmethod
    def mask(cls, setup: Setup) -> BlockMask:
        """Return the mask of each view."""
        return BlockMask(patch_size=patch_side(setup, "data2vec"), ratios=((setup.method.mask_ratio, 0.0),))

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Smooth L1 between predictions and targets, over the masked patches of the whole batch (section 3.4)."""
        images = batch.views["global"].flatten(0, 1)  # [B*V, C, H, W]
        mask = batch.extras["global.mask"].flatten(0, 1)  # [B*V, h, w]
        y = self._targets(images)  # [B*V, L, D]
        tokens = self.backbone.tokens(images, mask)[:, self.backbone.num_prefix_tokens :]  # [B*V, L, D]
        predictions = at_least_fp32(self.head(tokens))  # [B*V, L, D]
        errors = F.smooth_l1_loss(predictions, y, reduction="none", beta=self.config.beta).mean(dim=-1)  # [B*V, L]
        masked = mask.flatten(1).to(errors.dtype)
        # summed over ranks before the division, since ranks may have masked different numbers of patches
        loss = dist.all_sum((errors * masked).sum()) / dist.all_sum(masked.sum()).clamp(min=1)
        h = tokens.detach().mean(dim=1).view(*batch.views["global"].shape[:2], -1)  # [B, V, D]
        metrics = {"target_std": y.std(dim=(0, 1)).mean(), **batch_collapse(h)}
        return StepOutput(loss, metrics)

    @torch.no_grad()
    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Let the teacher follow (section 3.3, "Teacher parameterization")."""
        config = self.config
        momentum = linear_over(step, config.momentum_warmup, config.momentum_start, config.momentum)
        self.teacher.update(self.backbone, momentum)
        # the embedding of patches is the student's own and no average of it (section 3.3)
        if config.shares_embedding:
            student = dict(self.backbone.named_parameters())
            for name, averaged in self.teacher.module.named_parameters():
                if name.startswith(("patch_embed.", "pos_embed", "rel_pos_bias.")):
                    averaged.copy_(student[name])

    @torch.no_grad()
    def _targets(self, images: Tensor) -> Tensor:
        """Return the mean of the last K blocks' outputs for each patch, normalised without weights [B*V, L, D] (section
        3.3)."""
        teacher = cast(TokenBackbone, self.teacher.module)
        outputs = teacher.stages(images, self.layers).values()  # K of [B*V, P + L, D]
        with torch.autocast(images.device.type, enabled=False):
            patches = [at_least_fp32(tokens[:, teacher.num_prefix_tokens :]) for tokens in outputs]
            y = torch.stack([F.layer_norm(tokens, tokens.shape[-1:]) for tokens in patches]).mean(dim=0)
            return F.layer_norm(y, y.shape[-1:]) if self.config.is_renormalised else y


def _blocks(setup: Setup) -> list[str]:
    """Return the names of the backbone's blocks, from first to last."""
    return [name for name in setup.backbone.stages if name.startswith("block")]
