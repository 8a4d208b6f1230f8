"""Classifiers on a backbone's features and on its inner stages."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from raysl.config.ranges import Amount, Width
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.evaluating import evaluating
from raysl.nn.heads import mlp
from raysl.nn.pooling import Pool, pooled_stages

ClassifierKind = Literal["linear", "norm_linear", "mlp", "vit", "mobilenet"]


def classifier(kind: ClassifierKind, width: int, num_classes: int, hidden: int | None = None) -> nn.Module:
    """Return a network from features [B, width] to scores [B, num_classes].

    >>> classifier("linear", width=384, num_classes=10)(torch.zeros(2, 384)).shape
    torch.Size([2, 10])

    Args:
        kind: `linear`; `norm_linear`: batch normalisation with a scale and a shift in front of it, as VISSL's linear
            evaluation and Doersch et al. 2015 have it; `mlp`: one hidden layer with batch normalisation and ReLU;
            `vit`: the hidden layer and tanh of the ViT paper's pre-training (Dosovitskiy et al. 2020, arXiv 2010.11929,
            section 3.1), which starts with normal weights of variance 1 / width, and a last layer truncated at two of
            its deviations of 0.02; `mobilenet`: the hidden layer and hard swish of MobileNetV3 (Howard et al. 2019,
            arXiv 1905.02244, section 5.1), less its dropout.
        width: size of the features.
        num_classes: number of scores.
        hidden: width of the hidden layer of the last three; default: that of the features.
    """
    hidden = hidden or width
    if kind == "norm_linear":
        return nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, num_classes))
    if kind == "mlp":
        return mlp([width, hidden, num_classes], norm=True)
    if kind == "vit":
        return _vit(width, hidden, num_classes)
    if kind == "mobilenet":
        return _mobilenet(width, hidden, num_classes)
    return nn.Linear(width, num_classes)


def _vit(width: int, hidden: int, num_classes: int) -> nn.Sequential:
    first, last = nn.Linear(width, hidden), nn.Linear(hidden, num_classes)
    nn.init.trunc_normal_(first.weight, std=width**-0.5)
    nn.init.trunc_normal_(last.weight, std=0.02, a=-0.04, b=0.04)
    for layer in (first, last):
        nn.init.zeros_(layer.bias)
    return nn.Sequential(first, nn.Tanh(), last)


def _mobilenet(width: int, hidden: int, num_classes: int) -> nn.Sequential:
    layers = [nn.Linear(width, hidden), nn.Hardswish(), nn.Linear(hidden, num_classes)]
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


@dataclass(frozen=True, kw_only=True)
class StageHead:
    """A classifier on an inner stage of a backbone."""

    stage: str
    """Name of a stage of the backbone."""
    pool: Pool = field(default_factory=Pool)
    """How the stage becomes one vector; by default its spatial mean."""
    classifier: ClassifierKind = "linear"
    """Kind of the classifier: linear, norm_linear, mlp, vit or mobilenet, as `method.classifier`."""
    hidden_dim: Width | None = None
    """Width of its hidden layer, if it has one. Default: that of the vector."""
    lr_scale: Amount = 1.0
    """Factor of its learning rate."""
    loss_weight: Amount = 1.0
    """Weight of its loss; that of the classifier on the features is 1."""


class StageHeads(nn.Module):
    """Classifiers on stages, computed together with the features in one pass through the backbone.

    Args:
        size: side of the images in pixels, which sets the widths of vectors pooled in windows.
    """

    def __init__(self, heads: Sequence[StageHead], backbone: Backbone, size: int, num_classes: int) -> None:
        super().__init__()
        self.pools = [(head.stage, head.pool) for head in heads]
        widths = vector_widths(self.pools, backbone, size)
        self.classifiers = nn.ModuleList(
            classifier(head.classifier, width, num_classes, head.hidden_dim)
            for head, width in zip(heads, widths, strict=True)
        )

    def forward(self, backbone: Backbone, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return features [B, D] of images [B, 3, H, W], and each head's scores [B, K]."""
        feature_stages = [(name, Pool(kind="none")) for name in backbone.feature_stages]
        vectors = pooled_stages(backbone, images, [*feature_stages, *self.pools])
        features, inner = torch.cat(vectors[: len(feature_stages)], dim=1), vectors[len(feature_stages) :]
        return features, [head(vector) for head, vector in zip(self.classifiers, inner, strict=True)]


@torch.no_grad()
def vector_widths(pools: Sequence[tuple[str, Pool]], backbone: Backbone, size: int) -> list[int]:
    """Return the widths of the vectors that stages become, for images of `size` pixels."""
    images = torch.zeros(1, backbone.in_channels, size, size, device=next(backbone.parameters()).device)
    with evaluating(backbone):
        return [vector.shape[1] for vector in pooled_stages(backbone, images, pools)]
