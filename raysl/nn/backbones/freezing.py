"""Frozen stages of a backbone: neither their weights nor their running statistics change."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone, BackboneInfo
from raysl.nn.evaluating import evaluating

ALL = "all"
"""Name of the whole network in `backbone.freeze`."""


def check_freeze(names: Sequence[str], info: BackboneInfo, backbone: str) -> None:
    """Refuse names that are not stages."""
    if unknown := [name for name in names if name != ALL and name not in info.stages]:
        stages = f"its stages: {', '.join(info.stages)}" if info.stages else "it names none"
        raise ConfigError(f"backbone.freeze: no stage {unknown[0]!r} in {backbone}; {stages}; {ALL} freezes all of it")


def freeze(backbone: Backbone, names: Sequence[str]) -> None:
    """Freeze the network up to and including the deepest of these stages, in place.

    Parameters that the stage depends on take no gradients. Modules that have only such parameters stay in evaluation
    mode even after `train()`, also in copies: normalisation uses its running statistics unchanged, and drop path is
    off.

    >>> from raysl.nn.backbones.resnet import ResNet
    >>> backbone = ResNet(ResNet.Config(depth=18, width=8))
    >>> freeze(backbone, ["stem"])
    >>> [name for name, parameter in backbone.named_parameters() if not parameter.requires_grad]
    ['conv1.weight', 'bn1.weight', 'bn1.bias']

    Args:
        names: names of its stages, or `all`; an empty list freezes nothing.
    """
    known = list(backbone.stage_widths)
    check_freeze(
        names, BackboneInfo(backbone.feature_dim, backbone.patch_size, backbone.stage_widths), backbone.config.name
    )
    if not names:
        return
    if ALL in names:
        frozen, modules = {name for name, _ in backbone.named_parameters()}, {""}
    else:
        frozen, ran = _reached(backbone, max(names, key=known.index))
        modules = ran
    for name, parameter in backbone.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
    modules = {name for name in modules if _has_no_training(backbone.get_submodule(name))}
    backbone.frozen_modules = tuple(sorted(modules))
    backbone.train(backbone.training)


def _has_no_training(module: nn.Module) -> bool:
    """Return whether a module has parameters or buffers, and no trainable parameter."""
    has_state = next(module.parameters(), next(module.buffers(), None)) is not None
    return has_state and not any(parameter.requires_grad for parameter in module.parameters())


def _reached(backbone: Backbone, stage: str) -> tuple[set[str], set[str]]:
    """Return the names of the parameters that a stage depends on, and of the modules that run for it.

    Found in a pass on the meta device, or through the network itself if it reads values.
    """
    try:
        return _traced(type(backbone).without_weights(backbone.config), stage)
    except RuntimeError:
        with evaluating(backbone):
            return _traced(backbone, stage)


def _traced(network: Backbone, stage: str) -> tuple[set[str], set[str]]:
    named = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
    ran: set[str] = set()

    def note(name: str, *_: Any) -> None:
        ran.add(name)

    side = network.native_size
    images = torch.zeros(2, network.in_channels, side, side, device=next(network.parameters()).device)
    with ExitStack() as hooks, torch.enable_grad():
        for name, module in network.named_modules():
            hooks.enter_context(module.register_forward_pre_hook(partial(note, name)))
        out: Tensor = network.eval().stages(images, [stage])[stage]
    if not out.requires_grad:
        return set(), ran
    # the stage depends on exactly those parameters that get a gradient from it
    grads = torch.autograd.grad(out.sum(), list(named.values()), allow_unused=True)
    return {name for name, grad in zip(named, grads, strict=True) if grad is not None}, ran
