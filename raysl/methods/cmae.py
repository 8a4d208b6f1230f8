"""CMAE: Contrastive Masked Autoencoders are Stronger Vision Learners.

Huang, Jin, Lu, Hou, Cheng, Fu, Shen and Feng 2022, arXiv 2207.13532. MAE's prediction of hidden pixels, and beside it a
contrast of images: a second decoder predicts features of all patches, whose mean must find what a slow copy of the
network says of the whole image, moved by some pixels and in other colours.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from raysl import distributed as dist
from raysl.config.ranges import Amount, Share, Side, Temperature, Width, Within
from raysl.losses import at_least_fp32, batch_info_nce
from raysl.methods.mae import MAE, Decoder
from raysl.methods.method import Backbone, Batch, ConfigError, Setup, StepOutput
from raysl.methods.shared.patches import check_mask_size, grid_side, patch_side
from raysl.methods.shared.setup_checks import check_batch
from raysl.nn import COLLAPSE, Teacher, batch_collapse, mlp
from raysl.schedule import Step, cosine
from raysl.transforms.masking import UnitMask
from raysl.transforms.recipes import ShiftedCrops


class CMAE(MAE):
    """Predicts hidden pixels, and contrasts a masked image with the whole one."""

    logged: ClassVar[tuple[str, ...]] = ("reconstruction", "contrast", "contrastive_top1", *COLLAPSE)
    title: ClassVar[str] = "CMAE"

    @dataclass(frozen=True, kw_only=True)
    class Config(MAE.Config):
        """The settings of the authors' code for ViT-B."""

        name: str = "cmae"
        mask_ratio: Annotated[float, Within(0, 1, above=True, below=True)] = 0.65
        """Masked share of the squares, rounded up to a number of squares (the authors' code)."""
        mask_size: Side = 32
        """Side of the masked squares in pixels: a multiple of the backbone's patches that divides the views (the
        authors' code)."""
        feature_depth: Annotated[int, Within(1, 1000)] = 2
        """Blocks of the decoder of features, which has the width and the heads of the other one (section 3.2, "feature
        decoder"; the authors' code)."""
        hidden_dim: Width = 1536
        """Width of the hidden layers of projector and predictor (the authors' code)."""
        output_dim: Width = 256
        """Width of the contrasted embeddings (the authors' code)."""
        temperature: Temperature = 0.07
        """Divides the cosines (the authors' code)."""
        contrast_weight: Amount = 1.0
        """Weight of the contrast beside the pixels' error, which has 1 (section 3.3). The contrast is the cross entropy
        times twice the temperature, as in the authors' code."""
        target_norm: bool = False
        """Take the whole image's patches after the final layer norm; the authors' code takes the last block's."""
        momentum: Share = 0.996
        """Share of the teacher that the first update keeps (the authors' code)."""
        momentum_end: Share = 0.996
        """That share at the end, reached along half a cosine (the authors' code: the same)."""
        views: ShiftedCrops = field(default_factory=ShiftedCrops)
        """A crop mirrored with probability 1/2, and a second one of the same pixels but up to 31, in other colours
        (section 3.2, "pixel shift"; the authors' code)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        config, width = self.config, self.backbone.token_dim
        self.target_stage = None if config.target_norm else _last_block(setup)
        self.feature_decoder = Decoder(config, self.backbone, config.feature_depth, num_values=width)
        head = partial(mlp, norm=True, last_bias=False, norm_eps=1e-6)
        self.projector = head([width, config.hidden_dim, config.output_dim])
        self.predictor = head([config.output_dim, config.hidden_dim, config.output_dim])
        self.teacher = Teacher(self.student())

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse what MAE refuses, squares that do not fit both patches and views, several views, a batch without
        negatives, and a backbone that does not name its blocks."""
        grid_side(setup, cls.title)
        check_mask_size(setup, cls.title)
        super().check(setup)
        check_batch(setup, "CMAE contrasts images")
        if setup.method.views.num != 1:
            raise ConfigError(f"method.views.num is {setup.method.views.num}; CMAE contrasts one pair an image: set 1")
        if not setup.method.target_norm:
            _last_block(setup)

    @classmethod
    def mask(cls, setup: Setup) -> UnitMask:
        """Return the mask of each view."""
        config = setup.method
        return UnitMask(patch_size=patch_side(setup, cls.title), unit_size=config.mask_size, ratio=config.mask_ratio)

    @classmethod
    def num_masked(cls, setup: Setup) -> int:
        """Return the number of patches that a mask hides."""
        fold: int = setup.method.mask_size // patch_side(setup, cls.title)
        return cls.mask(setup).num_masked((grid_side(setup, cls.title) // fold) ** 2) * fold**2

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the squared error of the masked patches' pixels and the contrast (section 3.3)."""
        config = self.config
        tokens, keep, pixels = self._reconstruct(batch)
        z = self.projector(self.feature_decoder(tokens, keep).mean(dim=1))  # [B, D]
        target = at_least_fp32(self._targets(batch.views["shifted"][:, 0]))  # [B, D]
        keys, rows = dist.all_gather(target), dist.own_rows(target)
        loss, hits = batch_info_nce(self.predictor(z), keys, rows, config.temperature)
        # times twice the temperature, as in MoCo v3's algorithm 1
        contrast = 2 * config.temperature * loss
        metrics = {
            "reconstruction": pixels.detach(),
            "contrast": contrast.detach(),
            "contrastive_top1": 100 * hits,
            **batch_collapse(z),
        }
        return StepOutput(pixels + config.contrast_weight * contrast, metrics)

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Let the teacher follow (section 3.2, "target encoder")."""
        self.teacher.update(self.student(), cosine(step.progress, self.config.momentum, self.config.momentum_end))

    @torch.no_grad()
    def _targets(self, images: Tensor) -> Tensor:
        """Return the teacher's projections of the mean patches of whole images [B, D]."""
        stage = self.target_stage
        backbone: Any
        projector: nn.Module
        # the teacher is a copy of `student()`, whose children are the backbone and then the projector
        backbone, projector = self.teacher.module.children()
        tokens = backbone.tokens(images) if stage is None else backbone.stages(images, [stage])[stage]
        z: Tensor = projector(tokens[:, backbone.num_prefix_tokens :].mean(dim=1))  # [B, D]
        return z


def _last_block(setup: Setup) -> str:
    """Return the stage of the last block, in front of the final layer norm."""
    blocks = [name for name in setup.backbone.stages if name.startswith("block")]
    if not blocks:
        raise ConfigError(
            f"backbone {setup.config.backbone.name!r} does not name its blocks, and CMAE takes the output of the last "
            "one in front of the final layer norm; set method.target_norm=true, or backbone=vit"
        )
    return blocks[-1]
