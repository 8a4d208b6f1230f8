"""Low-rank adapters: a network's linear layers stay as they are, and learn a small matrix beside each (LoRA, Hu et al.
2021, arXiv 2106.09685, section 4.1).

The layers keep their names and their weights' names, so that weights load as without adapters, and an export with the
adapters merged is a plain network.
"""

import math
from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from raysl.config.schema import AdapterConfig
from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone

DOWN, UP = "lora_a", "lora_b"


class AdaptedLinear(nn.Linear):
    """A linear layer W with a low-rank update, W x + alpha / rank * B A x; it begins as W, since B begins at 0.

    >>> layer = nn.Linear(4, 6)
    >>> adapted, x = AdaptedLinear(layer, AdapterConfig(rank=2)), torch.rand(3, 4)
    >>> torch.equal(adapted(x), layer(x)), adapted.weight.requires_grad
    (True, False)
    """

    def __init__(self, layer: nn.Linear, config: AdapterConfig) -> None:
        """Take over a layer's weights, which are frozen."""
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.requires_grad_(False)
        self.scale = config.scale
        self.lora_a = nn.Parameter(layer.weight.new_empty(config.rank, layer.in_features))
        self.lora_b = nn.Parameter(layer.weight.new_zeros(layer.out_features, config.rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out_features] of x [..., in_features]."""
        return super().forward(x) + F.linear(F.linear(x, self.lora_a), self.lora_b) * self.scale


def add_adapters(backbone: Backbone, config: AdapterConfig | None) -> None:
    """Freeze a backbone and add adapters to its linear layers of these names, in place; nothing without settings.

    Raises:
        ConfigError: if it has no such layer.
    """
    if config is None:
        return
    layers = {name: part for name, part in backbone.named_modules() if type(part) is nn.Linear}
    targets = [name for name in layers if any(name == one or name.endswith(f".{one}") for one in config.targets)]
    if not targets:
        known = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in layers)) or "none"
        raise ConfigError(
            f"backbone.adapters: {backbone.title} has no linear layers {', '.join(config.targets)}, which learn in a "
            f"ViT; last parts of the names of its linear layers: {known}; set backbone.adapters.targets, or leave "
            "backbone.adapters out"
        )
    backbone.requires_grad_(False)
    for name in targets:
        backbone.set_submodule(name, AdaptedLinear(layers[name], config))


def merge_adapters(tensors: Mapping[str, Tensor], config: AdapterConfig | None) -> dict[str, Tensor]:
    """Return a backbone's tensors with the adapters in the weights, by the names of a network without adapters.

    >>> adapted = AdaptedLinear(nn.Linear(4, 6), AdapterConfig(rank=2))
    >>> _ = nn.init.normal_(adapted.lora_b)
    >>> plain, x = nn.Linear(4, 6), torch.rand(3, 4)
    >>> _ = plain.load_state_dict(merge_adapters(adapted.state_dict(), AdapterConfig(rank=2)))
    >>> torch.allclose(plain(x), adapted(x), atol=1e-6)
    True
    """
    if config is None:
        return dict(tensors)
    merged = {name: value for name, value in tensors.items() if name.rpartition(".")[2] not in (DOWN, UP)}
    for name, down in tensors.items():
        layer, dot, last = name.rpartition(".")
        if last == DOWN and isinstance(down, Tensor):  # a rank that holds shares has None
            weight, up = f"{layer}{dot}weight", tensors[f"{layer}{dot}{UP}"]
            update = up.double() @ down.double() * config.scale
            merged[weight] = (tensors[weight].double() + update).to(tensors[weight].dtype)
    return merged
