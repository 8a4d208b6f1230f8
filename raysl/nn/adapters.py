"""Low-rank adapters: a network's linear layers stay as they are, and learn a small matrix beside each (LoRA, Hu et al.
2021, arXiv 2106.09685, section 4.1).

The layers keep their names and their weights' names, so that weights load as without adapters. `merge_adapters` makes
tensors with adapters those of a plain network, without any settings.
"""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysl.config.schema import AdapterConfig
from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone

DOWN, UP, SCALE = "lora_a", "lora_b", "lora_scale"


class AdaptedLinear(nn.Linear):
    """A linear layer W with a low-rank update, W x + alpha / rank * B A x; it begins as W, since B begins at 0.

    >>> layer = nn.Linear(4, 6)
    >>> adapted, x = AdaptedLinear(layer, AdapterConfig(rank=2)), torch.rand(3, 4)
    >>> torch.equal(adapted(x), layer(x)), adapted.weight.requires_grad
    (True, False)
    """

    lora_scale: Tensor

    def __init__(self, layer: nn.Linear, config: AdapterConfig) -> None:
        """Take over a layer's weights, which are frozen."""
        # on the meta device no memory is taken, since the weights of `layer` take the place of new ones
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.requires_grad_(False)
        self.register_buffer(SCALE, torch.tensor(config.scale))
        self.lora_a = nn.Parameter(layer.weight.new_empty(config.rank, layer.in_features))
        # B starts at 0, so that the layer begins as it was (LoRA, section 4.1)
        self.lora_b = nn.Parameter(layer.weight.new_zeros(layer.out_features, config.rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out_features] of x [..., in_features]."""
        return super().forward(x) + F.linear(F.linear(x, self.lora_a), self.lora_b) * self.lora_scale


def add_adapters(backbone: Backbone, config: AdapterConfig | None) -> None:
    """Freeze a backbone and add adapters to its linear layers of these names, in place; nothing without settings."""
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


def is_adapter(name: str) -> bool:
    """Whether a tensor of this name belongs to an adapter."""
    return name.rpartition(".")[2] in (DOWN, UP, SCALE)


def merge_adapters(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a network's tensors with the adapters in the weights, by the names of a network without adapters.

    >>> adapted = AdaptedLinear(nn.Linear(4, 6), AdapterConfig(rank=2))
    >>> _ = nn.init.normal_(adapted.lora_b)
    >>> plain, x = nn.Linear(4, 6), torch.rand(3, 4)
    >>> _ = plain.load_state_dict(merge_adapters(adapted.state_dict()))
    >>> torch.allclose(plain(x), adapted(x), atol=1e-6)
    True
    """
    merged = {name: value for name, value in tensors.items() if not is_adapter(name)}
    for name, down in tensors.items():
        layer, dot, last = name.rpartition(".")
        if last == DOWN and isinstance(down, Tensor):  # a rank that holds shares has None
            weight, up, scale = (tensors[f"{layer}{dot}{part}"] for part in ("weight", UP, SCALE))
            update = up.double() @ down.double() * scale.double()
            merged[f"{layer}{dot}weight"] = (weight.double() + update).to(weight.dtype)
    return merged
