"""What names classes on top of a backbone: a linear layer, and what papers put in front of it."""

from typing import Literal

from torch import nn

from raysl.nn.heads import mlp

ClassifierKind = Literal["linear", "norm_linear", "mlp", "vit", "mobilenet"]


def classifier(kind: ClassifierKind, width: int, num_classes: int, hidden: int | None = None) -> nn.Module:
    """A network from features [B, width] to scores [B, num_classes].

    Args:
        kind: `linear`; `norm_linear`: batch normalisation with a scale and a shift in front of it, as VISSL's linear
            evaluation and Doersch et al. 2015 have it; `mlp`: one hidden layer with batch normalisation and ReLU;
            `vit`: the hidden layer and tanh of the ViT paper's pre-training (Dosovitskiy et al. 2020, arXiv 2010.11929,
            section 3.1), which starts with normal weights of variance 1 / width, and a last layer truncated at two of
            its deviations of 0.02; `mobilenet`: the hidden layer and hard swish of MobileNetV3 (Howard et al. 2019,
            arXiv 1905.02244, section 5.1), less its dropout.
        width: of the features.
        num_classes: of the scores.
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
