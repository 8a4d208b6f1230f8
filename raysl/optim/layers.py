"""Learning rates by depth, of patches and of heads: `optim.layer_decay`, `optim.patch_lr_scale`, `optim.head_lr` and
`optim.head_weight_decay`.

The groups of a method are parted further, so that it need not know.
"""

from typing import TYPE_CHECKING, Any

from torch import nn

from raysl.config.schema import OptimConfig
from raysl.errors import ConfigError
from raysl.optim.groups import with_lr_scales

if TYPE_CHECKING:
    from raysl.nn.backbones.backbone import Backbone

OF_HEAD = -1
"""Place among the layers of what is not of the backbone."""


def parted_groups(groups: list[dict[str, Any]], backbone: "Backbone", optim: OptimConfig) -> list[dict[str, Any]]:
    """A method's groups, parted into layers and heads where their rates or their decay differ.

    A layer's rate and that of the heads are factors of a group's `lr_scale`; parts come from the first layer to the
    heads, in the place of the group that they were.

    Raises:
        ConfigError: if the backbone does not tell its layers, or has no patches, or the rate of heads is a multiple of
            0.
        ValueError: if the backbone places a parameter outside its layers.
    """
    patches = _patches(backbone)
    check_layers(optim, backbone.num_layers, backbone, has_patches=bool(patches))
    if optim.patch_lr_scale != 1:
        groups = with_lr_scales(groups, dict.fromkeys(patches, optim.patch_lr_scale))
    if optim.layer_decay is None and optim.head_lr is None and optim.head_weight_decay is None:
        return groups
    places = _places(backbone, is_by_layer=optim.layer_decay is not None)
    parted = []
    for group in groups:
        by_place: dict[int, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            by_place.setdefault(places.get(id(parameter), OF_HEAD), []).append(parameter)
        for place in sorted(by_place, key=lambda place: (place == OF_HEAD, place)):
            parted.append(_part({**group, "params": by_place[place]}, place, backbone.num_layers, optim))
    return parted


def check_layers(optim: OptimConfig, num_layers: int | None, backbone: Any, has_patches: bool) -> None:
    """Refuse rates that cannot be; the driver calls it before there are weights.

    Args:
        optim: the settings.
        num_layers: what the backbone tells, see `Backbone.num_layers`.
        backbone: an instance or its class, for the message.
        has_patches: whether it maps patches to tokens.

    Raises:
        ConfigError: with what to set instead.
    """
    kind = backbone if isinstance(backbone, type) else type(backbone)
    if optim.patch_lr_scale != 1 and not has_patches:
        raise ConfigError(
            f"optim.patch_lr_scale={optim.patch_lr_scale:g} is for the map from patches to tokens, and {kind.__name__} "
            "has none; take backbone=vit, or leave it out"
        )
    if optim.layer_decay is not None and num_layers is None:
        raise ConfigError(
            f"optim.layer_decay={optim.layer_decay:g} needs a backbone that tells which layer a parameter is of, and "
            f"{kind.__name__} does not; give it num_layers and layer_of (docs/write-a-backbone.md), take backbone=vit "
            "or resnet, or leave layer_decay out"
        )
    if optim.head_lr is not None and optim.lr == 0:
        raise ConfigError(
            f"optim.head_lr={optim.head_lr:g} beside optim.lr=0, of which it would be a multiple; give optim.lr a "
            "value above 0"
        )


def _patches(backbone: "Backbone") -> list[int]:
    """Identities of the parameters that map patches to tokens."""
    return [id(parameter) for name, parameter in backbone.named_parameters() if "patch_embed" in name.split(".")]


def _places(backbone: "Backbone", is_by_layer: bool) -> dict[int, int]:
    """Layer of each parameter of the backbone, by its identity; 0 where nobody asks."""
    places = {}
    for name, parameter in backbone.named_parameters():
        layer = backbone.layer_of(name) if is_by_layer else 0
        if is_by_layer and not 0 <= layer <= (backbone.num_layers or 0):
            raise ValueError(
                f"{type(backbone).__name__}.layer_of({name!r}) is {layer}; its layers are 0 to {backbone.num_layers}"
            )
        places[id(parameter)] = layer
    return places


def _part(group: dict[str, Any], place: int, num_layers: int | None, optim: OptimConfig) -> dict[str, Any]:
    """A part of a group with the rate and the decay of its place."""
    scale = group.get("lr_scale", 1.0)
    if place != OF_HEAD:
        if optim.layer_decay is not None and num_layers is not None:
            scale *= optim.layer_decay ** (num_layers + 1 - place)
        return {**group, "lr_scale": scale}
    if optim.head_lr is not None:
        scale *= optim.head_lr / optim.lr
    own = group.get("weight_decay_scale", 1.0)
    if optim.head_weight_decay is None or "weight_decay" in group or own == 0:
        return {**group, "lr_scale": scale}
    kept = {key: value for key, value in group.items() if key != "weight_decay_scale"}
    return {**kept, "lr_scale": scale, "weight_decay": optim.head_weight_decay * own}
