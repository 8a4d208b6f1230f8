"""Well-known shapes of the backbones and their cost."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from raysl.components import resolve
from raysl.nn.backbones.alexnet import VARIANTS
from raysl.nn.backbones.backbone import Backbone

SHAPES: dict[str, dict[str, dict[str, Any]]] = {
    "alexnet": {f"alexnet_{variant}": {"variant": variant} for variant in VARIANTS},
    "regnet": {
        "regnet_x_400mf": {
            "depth": 22,
            "w_0": 24,
            "w_a": 24.48,
            "w_m": 2.54,
            "group_width": 16,
            "se_ratio": 0.0,
        },
        "regnet_y_16gf": {},
        "regnet_y_128gf": {"depth": 27, "w_0": 456, "w_a": 160.83, "w_m": 2.52, "group_width": 264},
        "regnet_y_256gf": {"depth": 27, "w_0": 640, "w_a": 230.83, "w_m": 2.53, "group_width": 373},
    },
    "resnet": {
        **{f"resnet{depth}": {"depth": depth} for depth in (18, 34, 50, 101, 152, 200)},
        "resnet50_w2": {"width": 128},
        "wide_resnet50_2": {"width_per_group": 128},
        "resnext50_32x4d": {"groups": 32, "width_per_group": 4},
        "resnet50_sk": {"sk_ratio": 0.0625},
        "resnet50_w2_sk": {"width": 128, "sk_ratio": 0.0625},
        "resnet152_w3_sk": {"depth": 152, "width": 192, "sk_ratio": 0.0625},
    },
    "swin": {
        **{f"swin_{size}_patch4_window7": {"size": size} for size in ("tiny", "small", "base", "large")},
        **{
            f"mixmim_{size}": {"size": size, "windows": (14, 14, 14, 7), "shift": False, "position": "sincos"}
            for size in ("base", "large", "huge")
        },
    },
    "torchvision": {
        name: {"model": name}
        for name in ("convnext_tiny", "efficientnet_b0", "mobilenet_v3_large", "regnet_y_16gf", "swin_t")
    },
    "vit": {f"vit_{size}_patch16": {"size": size} for size in ("nano", "tiny", "small", "base", "large")},
}
"""Settings that differ from the defaults, by backbone and by the shape's name."""


@dataclass(frozen=True)
class Cost:
    """Cost of a backbone without a classifier.

    Args:
        feature_dim: width of its features.
        parameters: number of weights, biases and tokens, without running statistics.
        flops: operations of a forward pass of one image, as torch counts them: convolutions, linear layers and
            attention, two per multiplication and addition. Papers and torchvision mostly count one for both.
        image_size: side of that image in pixels.
    """

    feature_dim: int
    parameters: int
    flops: int
    image_size: int


def measure_cost(kind: type[Backbone], config: Any, image_size: int = 224) -> Cost:
    """Return the cost of a backbone with these settings; nothing is computed.

    >>> from raysl.nn.backbones.resnet import ResNet
    >>> measure_cost(ResNet, ResNet.Config(depth=50))
    Cost(feature_dim=2048, parameters=23508032, flops=8174272512, image_size=224)
    """
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton

    network = kind.without_weights(config).to("meta").eval()
    with FlopCounterMode(display=False) as counter:
        pass_shapes(network, network.in_channels, image_size)
    num_parameters = sum(parameter.numel() for parameter in network.parameters())
    return Cost(network.feature_dim, num_parameters, counter.get_total_flops(), image_size)


def pass_shapes(network: Backbone, num_channels: int, side: int) -> None:
    """Pass the shape of an image [1, C, side, side] through a network on the meta device; it ends on a pretended CPU.

    The meta device knows no autocast, which rotary positions switch off.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        network.to_empty(device="cpu")(torch.zeros(1, num_channels, side, side))


def measure_shapes(name: str) -> list[dict[str, Any]]:
    """Return `name`, `settings` and the fields of `Cost` at 224 pixels for each well-known shape of a backbone."""
    kind = resolve("backbone", name)
    return [
        {"name": shape, "settings": settings, **asdict(measure_cost(kind, kind.Config(**settings)))}
        for shape, settings in SHAPES.get(name, {}).items()
    ]
