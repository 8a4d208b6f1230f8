"""Learning rates by depth, of patches and of heads: `optim.layer_decay`, `optim.patch_lr_scale`, `optim.head_lr` and
`optim.head_weight_decay`.

A method's groups are split further here, so that methods need no code for it.
"""

from typing import Any

from torch import nn

from raysl.config.schema import OptimConfig
from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone
from raysl.optim.groups import with_lr_scales

HEAD = -1
"""Layer of parameters outside the backbone."""


def split_by_layer(groups: list[dict[str, Any]], backbone: Backbone, optim: OptimConfig) -> list[dict[str, Any]]:
    """Split a method's groups into layers and heads where their rates or their decay differ.

    The rates of layers and heads are factors of a group's `lr_scale`. The parts of a group replace it, from the first
    layer to the heads.

    Raises:
        ConfigError: if the backbone does not number its layers or has no patches, or `optim.head_lr` is set while
            `optim.lr` is 0.
        ValueError: if a parameter's layer is out of range.
    """
    patches = [id(parameter) for name, parameter in backbone.named_parameters() if "patch_embed" in name.split(".")]
    check_layers(optim, backbone.num_layers, backbone, has_patches=bool(patches))
    if optim.patch_lr_scale != 1:
        groups = with_lr_scales(groups, dict.fromkeys(patches, optim.patch_lr_scale))
    if optim.layer_decay is None and optim.head_lr is None and optim.head_weight_decay is None:
        return groups
    layers = _layers(backbone, is_by_layer=optim.layer_decay is not None)
    parts = []
    for group in groups:
        by_layer: dict[int, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            by_layer.setdefault(layers.get(id(parameter), HEAD), []).append(parameter)
        for layer in sorted(by_layer, key=lambda layer: (layer == HEAD, layer)):
            parts.append(_part({**group, "params": by_layer[layer]}, layer, backbone.num_layers, optim))
    return parts


def check_layers(optim: OptimConfig, num_layers: int | None, backbone: Any, has_patches: bool) -> None:
    """Refuse impossible rates; the driver calls it before there are weights.

    Args:
        has_patches: whether it maps patches to tokens.
    """
    kind = backbone if isinstance(backbone, type) else type(backbone)
    if optim.patch_lr_scale != 1 and not has_patches:
        raise ConfigError(
            f"optim.patch_lr_scale={optim.patch_lr_scale:g} is for the map from patches to tokens, and {kind.__name__} "
            "has none; take backbone=vit, or leave it out"
        )
    if optim.layer_decay is not None and num_layers is None:
        raise ConfigError(
            f"optim.layer_decay={optim.layer_decay:g} needs a backbone that tells the layer of each parameter, and "
            f"{kind.__name__} does not; give it num_layers and layer_of (docs/write-a-backbone.md), take backbone=vit "
            "or resnet, or leave layer_decay out"
        )
    if optim.head_lr is not None and optim.lr == 0:
        raise ConfigError(
            f"optim.head_lr={optim.head_lr:g} is applied as a multiple of optim.lr, which is 0; give optim.lr a value "
            "above 0"
        )


def _layers(backbone: Backbone, is_by_layer: bool) -> dict[int, int]:
    """Return the layer of each parameter of the backbone by its identity; 0 for all if rates do not differ by layer."""
    layers = {}
    for name, parameter in backbone.named_parameters():
        layer = backbone.layer_of(name) if is_by_layer else 0
        if is_by_layer and not 0 <= layer <= (backbone.num_layers or 0) + 1:
            raise ValueError(
                f"{type(backbone).__name__}.layer_of({name!r}) is {layer}; its layers are 0 to {backbone.num_layers}, "
                "and one more has the rate of the heads"
            )
        layers[id(parameter)] = layer
    return layers


def _part(group: dict[str, Any], layer: int, num_layers: int | None, optim: OptimConfig) -> dict[str, Any]:
    """Return a part of a group with the rate and the decay of its layer."""
    scale = group.get("lr_scale", 1.0)
    if layer != HEAD:
        if optim.layer_decay is not None and num_layers is not None:
            scale *= optim.layer_decay ** (num_layers + 1 - layer)
        return {**group, "lr_scale": scale}
    if optim.head_lr is not None:
        # not a division by 0: `check_layers` has refused an lr of 0
        scale *= optim.head_lr / optim.lr
    decay_scale = group.get("weight_decay_scale", 1.0)
    if optim.head_weight_decay is None or "weight_decay" in group or decay_scale == 0:
        return {**group, "lr_scale": scale}
    others = {key: value for key, value in group.items() if key != "weight_decay_scale"}
    return {**others, "lr_scale": scale, "weight_decay": optim.head_weight_decay * decay_scale}
