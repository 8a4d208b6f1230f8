"""Supervised: Deep Residual Learning for Image Recognition, and what labels are trained with since.

He, Zhang, Ren and Sun 2015, arXiv 1512.03385. A linear classifier on the backbone predicts the class of an image:
the baseline for methods without labels. The views are those of Goyal et al. 2017 (Accurate, Large
Minibatch SGD, arXiv 1706.02677); label smoothing, mixup and CutMix may be added.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from raysl.config.ranges import Amount, Share, Width, Within
from raysl.config.schema import MethodConfig, OptimConfig
from raysl.losses import at_least_fp32, one_hot, smoothed, soft_binary_cross_entropy, soft_cross_entropy, top_share
from raysl.methods.method import Backbone, Batch, ConfigError, Method, Setup, Step, StepOutput
from raysl.methods.shared.setup_checks import check_heads
from raysl.nn.classifiers import ClassifierKind, StageHead, StageHeads, classifier
from raysl.nn.collapse import COLLAPSE, batch_collapse
from raysl.optim.groups import split_groups, with_lr_scales
from raysl.transforms import Crops, CutMix, Mixup, MixupOrCutMix


class Supervised(Method):
    """Classifies images by labels, one per image or several if the dataset has several."""

    logged = ("top1", *COLLAPSE)
    compiles = "no"
    evaluated = ("top1", "top5")

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The settings of Goyal et al. 2017 (section 5.1), without smoothing or mixing."""

        name: str = "supervised"
        label_smoothing: Annotated[float, Within(0, 1, below=True)] = 0.0
        """Share of a label that is spread over all classes (Szegedy et al. 2015, arXiv 1512.00567, section 7); several
        labels of an image are not smoothed."""
        mixup: Amount = 0.0
        """Mixup with shares of Beta(mixup, mixup) (Zhang et al. 2017, arXiv 1710.09412, eq. 1); 0: none."""
        cutmix: Amount = 0.0
        """CutMix with shares of Beta(cutmix, cutmix) (Yun et al. 2019, arXiv 1905.04899, eq. 1 and 2); 0: none."""
        mix_p: Share = 1.0
        """Probability that an image is mixed, if mixup or cutmix is above 0."""
        cutmix_p: Share = 0.5
        """Probability of CutMix for a mixed image, if both are above 0."""
        mix_by: Literal["image", "batch"] = "batch"
        """One draw for the whole batch, as in the code of both papers, or one for each image."""
        classifier: ClassifierKind = "linear"
        """Classifier: a linear layer (linear); one after batch normalisation, as in VISSL's linear evaluation
        (norm_linear); or one after a hidden layer: mlp, vit (with tanh), mobilenet (with hard swish)."""
        hidden_dim: Width | None = None
        """Width of that hidden layer. Default: that of the features."""
        head_lr_scale: Amount = 1.0
        """Factor of the learning rate of the classifier."""
        heads: tuple[StageHead, ...] = ()
        """Further classifiers on stages of the backbone, trained at the same time: [{stage: res4}, {stage: res3,
        lr_scale: 10}]. Below a frozen stage they are linear probes; elsewhere their losses train the backbone too."""
        views: Crops = field(default_factory=lambda: Crops(num=1, jitter_p=0.0, grayscale_p=0.0, blur_p=0.0))
        """One crop, mirrored with probability 1/2. VISSL adds a colour jitter of [0.4, 0.4, 0.4, 0.4]."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        self.check(setup)  # who trains in a notebook has not called it
        super().__init__(setup, backbone)
        num_classes, config = setup.data.num_classes, self.config
        self.classifier = classifier(config.classifier, backbone.feature_dim, num_classes, config.hidden_dim)
        self.heads = StageHeads(config.heads, backbone, config.views.size, num_classes) if config.heads else None

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse images without classes, and heads on unknown stages."""
        if setup.data.num_classes < 2:
            raise ConfigError(
                f"data.name={setup.config.data.name} has {setup.data.num_classes} classes here; method=supervised "
                "needs at least 2: give images with labels and data.label_type=standard, or train without them"
            )
        if setup.method.heads:
            check_heads(setup)

    @classmethod
    def logged_by(cls, config: Any) -> tuple[str, ...]:
        """Also `head1_top1` and so on, in the order of the heads."""
        return (*cls.logged, *(f"head{number}_top1" for number, _ in enumerate(config.heads, 1)))

    @classmethod
    def evaluated_by(cls, config: Any) -> tuple[str, ...]:
        """Also `head1_top1` and so on, in the order of the heads."""
        return (*cls.evaluated, *(f"head{number}_top1" for number, _ in enumerate(config.heads, 1)))

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the cross entropy with the labels of this rank's images, mixed like the images."""
        views = batch.views["global"]  # [B, V, C, H, W]
        present, absent = self._labels(batch)  # [B, K] each
        mix = _mix(self.config)
        if mix is not None:
            slot = "supervised.mix"
            random = batch.random(slot) if self.config.mix_by == "image" else batch.shared(slot, len(batch))
            params = mix.draw(random, batch.lane, (views.shape[-2], views.shape[-1]))
            views = mix.apply(views.flatten(1, 2), params).view_as(views)
            present, absent = mix.mix_labels(present, params), mix.mix_labels(absent, params)
        h, scores = self._score(views)  # [B, V, D], [B, V, K] each
        losses = [self._loss(logits, present, absent, batch.label.ndim == 1) for logits in scores]
        weights = [1.0, *(head.loss_weight for head in self.config.heads)]
        loss = torch.stack([weight * term for weight, term in zip(weights, losses, strict=True)]).sum()
        hits = {name: _labelled_mean(hit, present) for name, hit in self._hits(scores, present, (1,)).items()}
        return StepOutput(loss, {**hits, **batch_collapse(h)})

    @torch.no_grad()
    def evaluation_step(self, batch: Batch) -> dict[str, Tensor]:
        """Return whether an image's class has the highest score, or one of the five highest, in percent [B]; NaN for
        an image without a class."""
        present, _ = self._labels(batch)
        _, scores = self._score(batch.views["global"])
        hits = self._hits(scores, present, (1, 5))
        return {name: hit.masked_fill(present.sum(dim=1) == 0, torch.nan) for name, hit in hits.items()}

    def param_groups(self, optim: OptimConfig) -> list[dict[str, Any]]:
        """Return the usual groups, with the learning rates of the classifiers."""
        scales = {id(parameter): self.config.head_lr_scale for parameter in self.classifier.parameters()}
        if self.heads is not None:
            for head, layers in zip(self.config.heads, self.heads.classifiers, strict=True):
                scales |= {id(parameter): head.lr_scale for parameter in layers.parameters()}
        return with_lr_scales(split_groups(self, optim), scales)

    def class_scores(self, h: Tensor) -> Tensor:
        """Return the scores of the classes [B, K], in at least fp32."""
        return at_least_fp32(self.classifier(h))

    def _labels(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return which classes each image has, and which it lacks, 1 or 0 [B, K]; both are 0 for unknown classes."""
        dtype = batch.views["global"].dtype
        if batch.label.ndim == 2:
            return (batch.label == 1).to(dtype), (batch.label == 0).to(dtype)
        present = one_hot(batch.label, self.setup.data.num_classes, dtype)
        return present, present.sum(dim=1, keepdim=True) - present

    def _loss(self, logits: Tensor, present: Tensor, absent: Tensor, has_one_label: bool) -> Tensor:
        """Return the loss of scores [B, V, K]."""
        if has_one_label:
            return soft_cross_entropy(logits, smoothed(present, self.config.label_smoothing)[:, None])
        return soft_binary_cross_entropy(logits, present[:, None], absent[:, None])

    def _hits(self, scores: list[Tensor], present: Tensor, ks: tuple[int, ...]) -> dict[str, Tensor]:
        """Return the top-k accuracies of the classifier and the top-1 accuracy of each of `heads`, in percent [B]."""
        hits = {f"top{k}": top_share(scores[0], present[:, None], k) for k in ks}  # [B, V] each
        for number, logits in enumerate(scores[1:], 1):
            hits[f"head{number}_top1"] = top_share(logits, present[:, None], 1)
        return {name: 100 * hit.mean(dim=1) for name, hit in hits.items()}

    def _score(self, views: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return features [B, V, D] of views [B, V, C, H, W], and scores of classes [B, V, K] from the classifier and
        from each of `heads`."""
        images = views.flatten(0, 1)
        if self.heads is None:
            h, others = self.backbone(images), []  # [B*V, D]
        else:
            h, others = self.heads(self.backbone, images)
        scores = [at_least_fp32(logits).view(*views.shape[:2], -1) for logits in (self.class_scores(h), *others)]
        return h.view(*views.shape[:2], -1), scores


def _labelled_mean(hits: Tensor, present: Tensor) -> Tensor:
    """Return the mean of the hits [B] of images with a class; 0 if there are none."""
    is_labelled = (present.sum(dim=1) > 0).to(hits.dtype)
    return (hits * is_labelled).sum() / is_labelled.sum().clamp(min=1)


def _mix(config: Supervised.Config) -> MixupOrCutMix | None:
    """Return the mixing of images, if any."""
    if not (config.mixup or config.cutmix):
        return None
    return MixupOrCutMix(
        p=config.mix_p,
        switch_p=config.cutmix_p if config.mixup and config.cutmix else float(config.cutmix > 0),
        mixup=Mixup(alpha=config.mixup or 1.0),
        cutmix=CutMix(alpha=config.cutmix or 1.0),
    )
