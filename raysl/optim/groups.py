"""Groups of parameters for an optimizer, with what is done to each.

Besides `params`, a group of `Method.param_groups` may have

* `lr_scale` (1): factor of the scheduled learning rate
* `is_lr_constant` (False): the peak of the learning rate all along, times `lr_scale`, in place of the schedule
* `weight_decay_scale` (1): factor of the scheduled weight decay, 0 for none
* `weight_decay`: one of its own in place of that, which no schedule changes
* `layer_scaling` (True): whether LARS and LARC bring its updates to a share of the weights' norm
* settings of the optimizer, such as `momentum`, other than the configured ones
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from raysl.config.schema import OptimConfig

if TYPE_CHECKING:
    from raysl.nn.backbones.backbone import Backbone


class HasBackbone(Protocol):
    """A module with a backbone, such as a method."""

    @property
    def backbone(self) -> "Backbone": ...
    def modules(self) -> Iterator[nn.Module]: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...


class HasGroups(HasBackbone, Protocol):
    """A method, as far as its optimizer is concerned."""

    def param_groups(self, optim: OptimConfig) -> list[dict[str, Any]]: ...


def split_groups(method: HasBackbone, optim: OptimConfig, keep: Iterable[nn.Parameter] = ()) -> list[dict[str, Any]]:
    """Groups of the parameters that train: those that decay, and those that do not.

    The latter, which get no layer-wise scaling either, are `keep`, what `method.backbone.no_decay` names and, as
    `optim.exclude_norm`, `optim.exclude_bias` or `optim.exclude_norm_and_bias` for both say, parameters of one
    dimension or none: scales and shifts of normalisation, biases. Tokens that `optim.decay_tokens` names, wherever they
    are, decay nevertheless. Empty groups are left out.

    Raises:
        ValueError: if the backbone names a parameter that it does not have.
    """
    named = dict(method.backbone.named_parameters())
    if unknown := sorted(method.backbone.no_decay() - named.keys()):
        raise ValueError(
            f"{type(method.backbone).__name__}.no_decay() names {unknown[0]!r}, which is no parameter of it"
        )
    kept = {id(named[name]) for name in method.backbone.no_decay()} | {id(parameter) for parameter in keep}
    trained = [parameter for parameter in method.parameters() if parameter.requires_grad]
    kept |= _narrow(method, optim)
    kept -= {
        id(parameter) for name, parameter in method.named_parameters() if name.rpartition(".")[2] in optim.decay_tokens
    }
    decaying = [parameter for parameter in trained if id(parameter) not in kept]
    excluded = [parameter for parameter in trained if id(parameter) in kept]
    groups = [
        {"params": decaying, "lr_scale": 1.0, "weight_decay_scale": 1.0, "layer_scaling": True},
        {"params": excluded, "lr_scale": 1.0, "weight_decay_scale": 0.0, "layer_scaling": False},
    ]
    return [group for group in groups if group["params"]]


def with_lr_scales(groups: list[dict[str, Any]], scales: Mapping[int, float]) -> list[dict[str, Any]]:
    """The groups, each parted by the learning rates of its parameters.

    Args:
        groups: as `split_groups` gives them.
        scales: factors of the learning rate by the `id` of a parameter; others keep their group's.
    """
    parted: list[dict[str, Any]] = []
    for group in groups:
        own: dict[float, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            own.setdefault(group["lr_scale"] * scales.get(id(parameter), 1.0), []).append(parameter)
        parted += [{**group, "params": params, "lr_scale": scale} for scale, params in own.items()]
    return parted


def _narrow(network: HasBackbone, optim: OptimConfig) -> set[int]:
    """Identities of the parameters of at most one dimension that are left out.

    A scale is what is not called bias; a bias belongs to normalisation where the weight beside it has no more
    dimensions than itself, or there is none.
    """
    both = optim.exclude_norm_and_bias
    has_norm, has_bias = (both if own is None else own for own in (optim.exclude_norm, optim.exclude_bias))
    found = set()
    for module in network.modules():
        own = dict(module.named_parameters(recurse=False))
        is_norm = all(parameter.ndim <= 1 for parameter in own.values())
        for name, parameter in own.items():
            is_out = has_bias or (has_norm and is_norm) if name.endswith("bias") else has_norm
            if parameter.ndim <= 1 and is_out:
                found.add(id(parameter))
    return found


def complete_groups(groups: list[dict[str, Any]], optim: OptimConfig) -> list[dict[str, Any]]:
    """A method's groups with every key written out; `weight_decay_scale` is None where a group has its own decay.

    Raises:
        ValueError: if a group has both `weight_decay` and `weight_decay_scale`.
    """
    done = []
    for group in groups:
        if "weight_decay" in group and "weight_decay_scale" in group:
            raise ValueError("a group has both weight_decay and weight_decay_scale; give one of them")
        decay: dict[str, Any] = {"weight_decay_scale": None}
        if "weight_decay" not in group:
            scale = group.get("weight_decay_scale", 1.0)
            decay = {"weight_decay_scale": scale, "weight_decay": optim.weight_decay * scale}
        done.append({"lr_scale": 1.0, "is_lr_constant": False, "layer_scaling": True, **group, **decay})
    return done
