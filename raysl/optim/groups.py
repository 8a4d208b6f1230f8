"""Groups of parameters for an optimizer, each with its own scales.

Besides `params`, a group of `Method.param_groups` may have

* `lr_scale` (1): factor of the scheduled learning rate
* `is_lr_constant` (False): use the peak learning rate times `lr_scale` throughout, without the schedule
* `weight_decay_scale` (1): factor of the scheduled weight decay, 0 for none
* `weight_decay`: a constant weight decay instead of the scheduled one
* `layer_scaling` (True): whether LARS, LAMB and LARC scale its updates by the weights' norm
* other values of settings of the optimizer, such as `momentum`
"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from raysl.config.schema import OptimConfig
from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone


def split_groups(method: Any, optim: OptimConfig, keep: Iterable[nn.Parameter] = ()) -> list[dict[str, Any]]:
    """Split the trainable parameters into a group that decays and one that does not; empty groups are left out.

    The second group, which gets no layer-wise scaling either, has `keep`, the parameters of
    `method.backbone.no_decay`, and parameters of at most one dimension, scales and shifts of normalisation and biases,
    as set by `optim.exclude_norm`, `optim.exclude_bias`, or `optim.exclude_norm_and_bias` for both. Tokens named in
    `optim.decay_tokens` decay nevertheless.
    """
    named = dict(method.backbone.named_parameters())
    if unknown := sorted(method.backbone.no_decay() - named.keys()):
        raise ValueError(
            f"{type(method.backbone).__name__}.no_decay() names {unknown[0]!r}, which is not a parameter of it"
        )
    excluded_ids = {id(named[name]) for name in method.backbone.no_decay()} | {id(parameter) for parameter in keep}
    trained = [parameter for parameter in method.parameters() if parameter.requires_grad]
    excluded_ids |= _norms_and_biases(method, optim)
    excluded_ids -= {
        id(parameter) for name, parameter in method.named_parameters() if name.rpartition(".")[2] in optim.decay_tokens
    }
    decaying = [parameter for parameter in trained if id(parameter) not in excluded_ids]
    excluded = [parameter for parameter in trained if id(parameter) in excluded_ids]
    groups = [
        {"params": decaying, "lr_scale": 1.0, "weight_decay_scale": 1.0, "layer_scaling": True},
        {"params": excluded, "lr_scale": 1.0, "weight_decay_scale": 0.0, "layer_scaling": False},
    ]
    return [group for group in groups if group["params"]]


def with_lr_scales(groups: list[dict[str, Any]], scales: Mapping[int, float]) -> list[dict[str, Any]]:
    """Split each group by the learning rates of its parameters, whose factors are given by their `id`.

    >>> layers = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> group = {"params": [layer.weight for layer in layers], "lr_scale": 1.0}
    >>> [part["lr_scale"] for part in with_lr_scales([group], {id(layers[0].weight): 0.5})]
    [0.5, 1.0]
    """
    parts: list[dict[str, Any]] = []
    for group in groups:
        by_scale: dict[float, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            by_scale.setdefault(group.get("lr_scale", 1.0) * scales.get(id(parameter), 1.0), []).append(parameter)
        parts += [{**group, "params": params, "lr_scale": scale} for scale, params in by_scale.items()]
    return parts


def complete_groups(groups: list[dict[str, Any]], optim: OptimConfig) -> list[dict[str, Any]]:
    """Fill in all keys of a method's groups; `weight_decay_scale` is None for a group with a constant weight decay.

    >>> from raysl.optim.sgd import SGD
    >>> (group,) = complete_groups([{"params": [], "weight_decay_scale": 0.5}], SGD.Config(weight_decay=0.1))
    >>> group["lr_scale"], group["weight_decay"]
    (1.0, 0.05)

    Raises:
        ValueError: if a group has both `weight_decay` and `weight_decay_scale`.
    """
    completed = []
    for group in groups:
        if "weight_decay" in group and "weight_decay_scale" in group:
            raise ValueError("a group has both weight_decay and weight_decay_scale; give one of them")
        decay: dict[str, Any] = {"weight_decay_scale": None}
        if "weight_decay" not in group:
            scale = group.get("weight_decay_scale", 1.0)
            decay = {"weight_decay_scale": scale, "weight_decay": optim.weight_decay * scale}
        completed.append({"lr_scale": 1.0, "is_lr_constant": False, "layer_scaling": True, **group, **decay})
    return completed


def split_by_layer(groups: list[dict[str, Any]], backbone: Backbone, optim: OptimConfig) -> list[dict[str, Any]]:
    """Split a method's groups where layers, patches or heads have other learning rates or another decay.

    So methods need no code for `optim.layer_decay`, `optim.patch_lr_scale`, `optim.head_lr` and
    `optim.head_weight_decay`. The rates are factors of a group's `lr_scale`. The parts of a group replace it, from the
    first layer to the heads. That order is the same for all decays, so that a fork with another one loads the state.

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
    layers, heads = _layers(backbone, optim), (backbone.num_layers or 0) + 2
    parts = []
    for group in groups:
        by_layer: dict[int, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            by_layer.setdefault(layers.get(id(parameter), heads), []).append(parameter)
        for layer in sorted(by_layer):
            part = {**group, "params": by_layer[layer]}
            if layer == heads:
                part = _of_heads(part, optim)
            elif optim.layer_decay is not None:
                part["lr_scale"] = group.get("lr_scale", 1.0) * optim.layer_decay ** (heads - 1 - layer)
            parts.append(part)
    return parts


def check_layers(optim: OptimConfig, num_layers: int | None, backbone: Any, has_patches: bool) -> None:
    """Refuse impossible rates; the driver calls it before there are weights."""
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


def _norms_and_biases(network: nn.Module, optim: OptimConfig) -> set[int]:
    """Return the identities of the excluded parameters of at most one dimension.

    A parameter not called bias is a scale; a bias belongs to a normalisation if all parameters beside it have at most
    one dimension.
    """
    both = optim.exclude_norm_and_bias
    has_norm, has_bias = (both if flag is None else flag for flag in (optim.exclude_norm, optim.exclude_bias))
    excluded = set()
    for module in network.modules():
        parameters = dict(module.named_parameters(recurse=False))
        is_norm = all(parameter.ndim <= 1 for parameter in parameters.values())
        for name, parameter in parameters.items():
            is_out = has_bias or (has_norm and is_norm) if name.endswith("bias") else has_norm
            if parameter.ndim <= 1 and is_out:
                excluded.add(id(parameter))
    return excluded


def _layers(backbone: Backbone, optim: OptimConfig) -> dict[int, int]:
    """Return the layer of each parameter of the backbone by its identity; 0 for all without `optim.layer_decay`."""
    if optim.layer_decay is None:
        return {id(parameter): 0 for parameter in backbone.parameters()}
    num = backbone.num_layers or 0
    layers = {}
    for name, parameter in backbone.named_parameters():
        layers[id(parameter)] = layer = backbone.layer_of(name)
        if not 0 <= layer <= num + 1:
            raise ValueError(
                f"{type(backbone).__name__}.layer_of({name!r}) is {layer}; its layers are 0 to {num}, and one more has "
                "the rate of the heads"
            )
    return layers


def _of_heads(group: dict[str, Any], optim: OptimConfig) -> dict[str, Any]:
    """Return a group of parameters outside the backbone with their rate and decay."""
    if optim.head_lr is not None:
        # not a division by 0: `check_layers` has refused an lr of 0
        group["lr_scale"] = group.get("lr_scale", 1.0) * (optim.head_lr / optim.lr)
    decay_scale = group.get("weight_decay_scale", 1.0)
    if optim.head_weight_decay is not None and "weight_decay" not in group and decay_scale != 0:
        group.pop("weight_decay_scale", None)
        group["weight_decay"] = optim.head_weight_decay * decay_scale
    return group
