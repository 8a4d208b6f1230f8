"""Classifiers on inner stages of a backbone, beside the one on its features."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from raysl.config.ranges import Amount, Width
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.classifiers import ClassifierKind, classifier
from raysl.nn.pooling import Pool, pooled_stages


@dataclass(frozen=True, kw_only=True)
class StageHead:
    """A classifier on a stage."""

    stage: str
    """Name of a stage of the backbone."""
    pool: Pool = field(default_factory=Pool)
    """How the stage becomes one vector; by default its mean over all places."""
    classifier: ClassifierKind = "linear"
    """What names the classes: linear, norm_linear, mlp, vit or mobilenet, as `method.classifier`."""
    hidden_dim: Width | None = None
    """Width of its hidden layer, where it has one. Default: that of the vector."""
    lr_scale: Amount = 1.0
    """Factor of its learning rate."""
    loss_weight: Amount = 1.0
    """Share of its loss in the sum of all; that of the classifier on the features is 1."""


class StageHeads(nn.Module):
    """Classifiers on stages, whose scores come with the features in one pass through the backbone.

    Args:
        heads: which.
        backbone: whose stages they are.
        size: side of the images in pixels, on which the width of what windows pool depends.
        num_classes: of the scores.
    """

    def __init__(self, heads: Sequence[StageHead], backbone: Backbone, size: int, num_classes: int) -> None:
        super().__init__()
        self.asked = [(head.stage, head.pool) for head in heads]
        widths = vector_widths(self.asked, backbone, size)
        self.classifiers = nn.ModuleList(
            classifier(head.classifier, width, num_classes, head.hidden_dim)
            for head, width in zip(heads, widths, strict=True)
        )

    def forward(self, backbone: Backbone, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Features [B, D] of images [B, 3, H, W], and each head's scores [B, K]."""
        own = [(name, Pool(kind="none")) for name in backbone.feature_stages]
        vectors = pooled_stages(backbone, images, [*own, *self.asked])
        features, inner = torch.cat(vectors[: len(own)], dim=1), vectors[len(own) :]
        return features, [head(vector) for head, vector in zip(self.classifiers, inner, strict=True)]


@torch.no_grad()
def vector_widths(asked: Sequence[tuple[str, Pool]], backbone: Backbone, size: int) -> list[int]:
    """Widths of the vectors that stages of images of so many pixels become.

    Raises:
        ValueError: if a pool does not fit its stage.
    """
    was_training = backbone.training
    images = torch.zeros(1, 3, size, size, device=next(backbone.parameters()).device)
    found = pooled_stages(backbone.eval(), images, asked)
    backbone.train(was_training)
    return [vector.shape[1] for vector in found]
