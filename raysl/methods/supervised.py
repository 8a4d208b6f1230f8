"""Supervised: Deep Residual Learning for Image Recognition, and what labels are trained with since.

He, Zhang, Ren and Sun 2015, arXiv 1512.03385. A linear classifier on the backbone names the class of an image: the
baseline that methods without labels are held against. The views are those of Goyal et al. 2017 (Accurate, Large
Minibatch SGD, arXiv 1706.02677); label smoothing, mixup and CutMix may be added.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from raysl import dist
from raysl.config.ranges import Amount, Share, Within
from raysl.config.schema import MethodConfig
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import at_least_fp32, one_hot, smoothed, soft_binary_cross_entropy, soft_cross_entropy, top_share
from raysl.methods.method import Method, StepOutput
from raysl.methods.setup import Setup
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.collapse import COLLAPSE, collapse
from raysl.schedule import Step
from raysl.transforms.mix import CutMix, Mixup, MixupOrCutMix
from raysl.transforms.recipes import Crops


class Supervised(Method):
    """Classification by labels: one of each image, or several where the dataset has several."""

    logged = ("top1", *COLLAPSE)
    evaluated = ("top1", "top5")

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The settings of Goyal et al. 2017 (section 5.1), where nothing is smoothed or mixed."""

        name: str = "supervised"
        label_smoothing: Annotated[float, Within(0, 1, below=True)] = 0.0
        """Share of a label that is spread over all classes (Szegedy et al. 2015, arXiv 1512.00567, section 7); several
        labels of an image stay as they are."""
        mixup: Amount = 0.0
        """Mixup with shares of Beta(mixup, mixup) (Zhang et al. 2017, arXiv 1710.09412, eq. 1); 0: none."""
        cutmix: Amount = 0.0
        """CutMix with shares of Beta(cutmix, cutmix) (Yun et al. 2019, arXiv 1905.04899, eq. 1 and 2); 0: none."""
        mix_p: Share = 1.0
        """Probability that an image is mixed at all, where mixup or cutmix is above 0."""
        cutmix_p: Share = 0.5
        """Probability that it is CutMix, where both are above 0."""
        mix_by: Literal["image", "batch"] = "batch"
        """One draw for the whole batch, as in the code of both papers, or one for each image."""
        views: Crops = field(default_factory=lambda: Crops(num=1, jitter_p=0.0, grayscale_p=0.0, blur_p=0.0))
        """One crop, mirrored by half. VISSL adds a colour jitter of [0.4, 0.4, 0.4, 0.4]."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        self.classifier = nn.Linear(backbone.feature_dim, setup.data.num_classes)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse images without classes.

        Raises:
            ConfigError: with the number of classes and what to set instead.
        """
        if setup.data.num_classes < 2:
            raise ConfigError(
                f"data.name={setup.config.data.name} has {setup.data.num_classes} classes here; method=supervised "
                "tells at least 2 apart: give images with labels and data.label_type=standard, or train without them"
            )

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Cross entropy with the labels of this rank's images, mixed where the images are."""
        views = batch.views["global"]  # [B, V, C, H, W]
        present, absent = self._labels(batch)  # [B, K] each
        mix = _mix(self.config)
        if mix is not None:
            slot = "supervised.mix"
            random = batch.random(slot) if self.config.mix_by == "image" else batch.shared(slot, len(batch))
            drawn = mix.draw(random, batch.lane, (views.shape[-2], views.shape[-1]))
            views = mix.apply(views.flatten(1, 2), drawn).view_as(views)
            present, absent = mix.mix_labels(present, drawn), mix.mix_labels(absent, drawn)
        h, logits = self._scored(views)  # [B, V, D], [B, V, K]
        if batch.label.ndim == 1:
            loss = soft_cross_entropy(logits, smoothed(present, self.config.label_smoothing)[:, None])
        else:
            loss = soft_binary_cross_entropy(logits, present[:, None], absent[:, None])
        top1 = 100 * top_share(logits, present[:, None], 1).mean()
        return StepOutput(loss, {"top1": top1, **collapse(dist.all_gather(h.detach()).flatten(0, 1))})

    @torch.no_grad()
    def evaluation_step(self, batch: Batch) -> dict[str, Tensor]:
        """Whether the class of highest score, or one of the five highest, is an image's own, in percent [B]."""
        present, _ = self._labels(batch)
        _, logits = self._scored(batch.views["global"])
        return {f"top{k}": 100 * top_share(logits, present[:, None], k).mean(dim=1) for k in (1, 5)}

    def class_scores(self, h: Tensor) -> Tensor:
        """Scores of the classes [B, K], never below fp32."""
        return at_least_fp32(self.classifier(h))

    def _labels(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Which classes each image is of, and which it is not, 1 or 0 [B, K]; neither where that is not known."""
        dtype = batch.views["global"].dtype
        if batch.label.ndim == 2:
            return (batch.label == 1).to(dtype), (batch.label == 0).to(dtype)
        present = one_hot(batch.label, self.setup.data.num_classes, dtype)
        return present, present.sum(dim=1, keepdim=True) - present

    def _scored(self, views: Tensor) -> tuple[Tensor, Tensor]:
        """Features [B, V, D] and scores of the classes [B, V, K] of views [B, V, C, H, W]."""
        h = self.backbone(views.flatten(0, 1))  # [B*V, D]
        logits = self.class_scores(h)
        return h.view(*views.shape[:2], -1), logits.view(*views.shape[:2], -1)


def _mix(config: Supervised.Config) -> MixupOrCutMix | None:
    """What mixes the images; None where nothing does."""
    if not (config.mixup or config.cutmix):
        return None
    return MixupOrCutMix(
        p=config.mix_p,
        switch_p=config.cutmix_p if config.mixup and config.cutmix else float(config.cutmix > 0),
        mixup=Mixup(alpha=config.mixup or 1.0),
        cutmix=CutMix(alpha=config.cutmix or 1.0),
    )
