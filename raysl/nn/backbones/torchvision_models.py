"""The classification networks of torchvision, by their names there."""

import inspect
import math
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from raysl.errors import ConfigError
from raysl.nn.backbones.positions import resize_positions
from raysl.nn.backbones.published import Published, torch_file
from raysl.nn.backbones.wrapped import WRONG_SIZE, WrappedBackbone, check_known, replace_drop_path
from raysl.nn.drop_path import DropPath

CHANNELS = 3
HEADS = ("classifier", "fc", "head", "heads")
TRUNKS = ("features", "trunk_output", "blocks", "layers")
NO_DECAY = ("class_token", "pos_embedding", "relative_position_bias_table", "logit_scale", "layer_scale")
SIZE_ARGUMENTS = {"VisionTransformer": "image_size", "MaxVit": "input_size"}
POSITIONS = "encoder.pos_embedding"
_OLD_DENSE = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.([12])\.")  # of DenseNets before torchvision 0.4
_OLD_MLP = re.compile(r"\.mlp\.linear_([12])\.")  # of ViTs before torchvision 0.14
MORE_ARGUMENTS = {
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}


class TorchvisionModel(WrappedBackbone):
    """A network of torchvision without its classifier, by its name there: `convnext_tiny`, `swin_t`, `regnet_y_400mf`.

    The classifier is removed from its first linear layer (or convolution) on, with its dropout; a normalisation before
    it stays. AlexNet and VGG therefore end with their flattened maps. Weights start as in torchvision, or with
    `pretrained` as published. The stages
    `stage1`, `stage2`, ... are the last maps [B, C, H, W] of each resolution, from the largest; ViTs have `block1`, ...
    with maps of the patches of each block. `features` is the output of `forward`.

    >>> TorchvisionModel.info(TorchvisionModel.Config(model="resnet18")).feature_dim
    512
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(WrappedBackbone.Config):
        """Settings of a network of torchvision."""

        name: str = "torchvision"
        model: str = "convnext_tiny"
        """Name of a classification network: resnet50, convnext_tiny, swin_t, vit_b_16, efficientnet_b0, regnet_y_400mf,
        mobilenet_v3_small, densenet121, alexnet and more, see `torchvision.models.list_models()`."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        network, size = self._build_whole()
        _set_channels(network, self.in_channels)
        _cut_classifier(network)
        self._is_channels_last = type(network).__name__ == "SwinTransformer"
        self._wrap(network, size)
        self._modules_of_stages, self._widths = self._find_stages()

    def _build_whole(self) -> tuple[nn.Module, int]:
        """Build the whole network, with its classifier, and return it with the side of its images."""
        network, size = _build(self.config)
        return _set_drop_path(network, self.config), size

    @classmethod
    def published(cls, config: Any) -> Published:
        """Return the weights that torchvision names in the network's enumeration of weights."""
        from torchvision import models

        check_known(config.model, models.list_models(module=models), "torchvision")
        known = models.get_model_weights(config.model)
        name = "DEFAULT" if config.pretrained is True else str(config.pretrained)
        if name not in known.__members__:
            names = ", ".join(member for member in known.__members__ if member != "DEFAULT")
            raise ConfigError(
                f"backbone.pretrained: {config.model} of torchvision has no weights {name!r}; it has {names or 'none'}"
            )
        weights = known[name]
        file, preset = torch_file(weights.url), weights.transforms()
        return Published(str(weights), file, file.tensors(), tuple(preset.mean), tuple(preset.std))

    def _library_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors by present names; a ViT's positions are interpolated to its own grid."""
        tensors = {_OLD_MLP.sub(_new_mlp, _OLD_DENSE.sub(r"\1\2.", name)): value for name, value in tensors.items()}
        if type(self.network).__name__ == "VisionTransformer" and POSITIONS in tensors:
            side = self.native_size // int(self.network.patch_size)  # type: ignore[arg-type]
            positions = tensors[POSITIONS]
            old = math.isqrt(max(positions.shape[1] - 1, 0)) if positions.ndim == 3 else 0
            if old not in (0, side) and old**2 == positions.shape[1] - 1:
                grid = resize_positions(positions[:, 1:], (old, old), (side, side))
                tensors[POSITIONS] = torch.cat([positions[:, :1], grid], dim=1)
        return tensors

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load tensors by present names; files of tensors alone lack the version that MNASNet asks for."""
        if not hasattr(state_dict, "_metadata"):
            state_dict = OrderedDict(state_dict)
            state_dict._metadata = self.state_dict()._metadata  # type: ignore[attr-defined]
        return super().load_state_dict(state_dict, strict, assign)

    def _whole_network(self) -> nn.Module:
        return self._build_whole()[0]

    def library_options(self) -> dict[str, Any]:
        """Return the arguments with which `torchvision.models.get_model` makes this network."""
        if self.in_channels != CHANNELS:
            raise ConfigError(
                f"torchvision has no {self.title} of {self.in_channels} channels; safetensors and export take any"
            )
        return _arguments(self.config)

    @property
    def stage_widths(self) -> dict[str, int]:
        """Channels of the stages, from the first to the last, and of `features`."""
        return {**self._widths, "features": self.feature_dim}

    def no_decay(self) -> set[str]:
        """Return tokens, position embeddings and their generators, scales of layers and of logits."""
        named = [name for name, _ in self.named_parameters()]
        return {name for name in named if name.endswith(NO_DECAY) or ".cpb_mlp." in name}

    @property
    def num_layers(self) -> int:
        """Number of blocks of a ViT, whose embeddings are layer 0; else of stages minus 1, the first with the stem."""
        return len(self._widths) - (0 if "block1" in self._widths else 1)

    def layer_of(self, name: str) -> int:
        """Return the layer of a parameter's block or stage; before the first it is 0, after the last the last."""
        ends = [list(_units(self.network)).index(module) for module in self._modules_of_stages.values()]
        names = [f"{unit}." for unit in _units(self.network)]
        own_units = [number for number, unit in enumerate(names) if name.removeprefix("network.").startswith(unit)]
        if own_units:
            stage = sum(end < own_units[0] for end in ends)
            return min(stage + ("block1" in self._widths), self.num_layers)
        all_names = [known.removeprefix("network.") for known, _ in self.named_parameters()]
        first = next(number for number, known in enumerate(all_names) if known.startswith(tuple(names)))
        return 0 if all_names.index(name.removeprefix("network.")) < first else self.num_layers

    @override
    def stages(self, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        known = self.stages_up_to(names)
        if not names:
            return {}
        deepest = known[-1]
        modules = {name: self._modules_of_stages[name] for name in names if name != "features"}
        outputs = self._run_until(deepest, modules, images)
        return {name: outputs[name] for name in names}

    def _run_until(self, deepest: str, modules: dict[str, str], images: Tensor) -> dict[str, Tensor]:
        """Run the network up to the deepest module; return outputs by name, with `features` if it ran to its end."""
        outputs: dict[str, Tensor] = {}

        def catch(name: str, module: nn.Module, inputs: Any, out: Tensor) -> None:
            outputs[name] = self._map(out).clone()  # later layers may overwrite it in place
            if name == deepest:
                raise _Enough

        with ExitStack() as hooks, suppress(_Enough):
            for name, module in modules.items():
                hooks.enter_context(self.network.get_submodule(module).register_forward_hook(partial(catch, name)))
            outputs["features"] = self(images)
        return outputs

    def _map(self, out: Tensor) -> Tensor:
        """Return an output as a map [B, C, H, W]; for a ViT from the tokens after the first."""
        if out.ndim == 3:
            side = self.native_size // int(self.network.patch_size)  # type: ignore[arg-type]
            return out[:, 1:].transpose(1, 2).reshape(len(out), -1, side, side)
        return out.permute(0, 3, 1, 2) if self._is_channels_last else out

    def _find_stages(self) -> tuple[dict[str, str], dict[str, int]]:
        """Find the modules and widths of the stages in a pass of meta tensors."""
        shapes: dict[str, torch.Size] = {}

        def see(name: str, module: nn.Module, inputs: Any, out: Tensor) -> None:
            shapes[name] = self._map(out).shape

        is_vit = type(self.network).__name__ == "VisionTransformer"
        with ExitStack() as hooks:
            for name, unit in _units(self.network).items():
                hooks.enter_context(unit.register_forward_hook(partial(see, name)))
            self._try_size(self.native_size, self.native_size)
        # later units replace earlier ones with maps of the same size; each block of a ViT is a stage
        last = {name if is_vit else shape[-2:]: name for name, shape in shapes.items()}
        word = "block" if is_vit else "stage"
        modules = {f"{word}{number}": name for number, name in enumerate(last.values(), 1)}
        return modules, {stage: shapes[name][1] for stage, name in modules.items()}


class _Enough(Exception):
    """Ends a pass once all requested outputs are computed."""


def _build(config: TorchvisionModel.Config) -> tuple[nn.Module, int]:
    from torchvision import models

    check_known(config.model, models.list_models(module=models), "torchvision")
    builder = models.get_model_builder(config.model)
    size_argument = _size_argument(config.model)
    if config.image_size is not None and size_argument is None:
        raise ConfigError(
            f"backbone.image_size is for networks that take images of one size; {config.model} takes any, leave it out"
        )
    size = config.image_size or 224
    try:
        return builder(**_arguments(config)), size
    except WRONG_SIZE as error:
        if size_argument is None or config.image_size is None:
            raise
        why, near = str(error).splitlines()[0], _near(config.model, size)
        raise ConfigError(f"backbone.image_size {size} does not fit {config.model} ({why}); try {near}") from error


def _arguments(config: TorchvisionModel.Config) -> dict[str, Any]:
    arguments: dict[str, Any] = dict(MORE_ARGUMENTS.get(config.model, {}))
    if arguments and config.pretrained and config.in_channels == CHANNELS:
        arguments["transform_input"] = True  # their published weights are for images of another normalisation
    if (size := config.image_size) is not None:
        size_argument = str(_size_argument(config.model))
        arguments[size_argument] = (size, size) if size_argument == "input_size" else size
    return arguments


def _size_argument(model: str) -> str | None:
    """Return the name of the builder's argument for the side of images, where it has one."""
    from torchvision import models

    kind = inspect.signature(models.get_model_builder(model)).return_annotation
    return SIZE_ARGUMENTS.get(kind if isinstance(kind, str) else kind.__name__)


def _new_mlp(match: re.Match[str]) -> str:
    return f".mlp.{3 * (int(match[1]) - 1)}."


def _near(model: str, size: int) -> int:
    """Return a multiple of the network's patch size near this side."""
    patch = 224 if model.startswith("maxvit") else int(model.rpartition("_")[2])
    return max(round(size / patch), 1) * patch


def _cut_classifier(network: nn.Module) -> None:
    """Remove the layers after the features, and dropout."""
    (name,) = [name for name, _ in network.named_children() if name in HEADS]
    head = network.get_submodule(name)
    layers = nn.Sequential()
    for part, layer in head.named_children():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            break
        if not isinstance(layer, nn.Dropout):
            layers.add_module(part, layer)
    if type(network).__name__ == "SqueezeNet":
        layers.add_module("pool", nn.AdaptiveAvgPool2d(1))
    network.add_module(name, layers if len(layers) else nn.Identity())
    for other, layer in [*network.named_children()]:
        if isinstance(layer, nn.Dropout):
            network.add_module(other, nn.Identity())


def _set_channels(network: nn.Module, in_channels: int) -> None:
    """Give the first convolution other input channels, in place; its random weights keep the scale of its outputs."""
    if in_channels == CHANNELS:
        return
    name, first = next(
        (name, part)
        for name, part in network.named_modules()
        if isinstance(part, nn.Conv2d) and part.in_channels == CHANNELS
    )
    kernel, stride, padding = first.kernel_size, first.stride, first.padding
    new = nn.Conv2d(in_channels, first.out_channels, kernel, stride, padding, bias=first.bias is not None)  # type: ignore[arg-type]
    with torch.no_grad():
        new.weight.normal_().mul_(first.weight.std() * math.sqrt(CHANNELS / in_channels))
        if new.bias is not None and first.bias is not None:
            new.bias.copy_(first.bias)
    network.set_submodule(name, new)


def _set_drop_path(network: nn.Module, config: TorchvisionModel.Config) -> nn.Module:
    """Return the network with stochastic depth keyed by samples, at the configured rate."""
    from torchvision.ops import StochasticDepth

    replace_drop_path(network, StochasticDepth, "p")
    layers = [module for module in network.modules() if isinstance(module, DropPath)]
    if config.drop_path is None:
        return network
    if not layers:
        raise ConfigError(
            f"backbone.drop_path: {config.model} has no stochastic depth; leave it out, or choose convnext_*"
        )
    highest = max(module.rate for module in layers)
    for module in layers:
        module.rate *= config.drop_path / highest
    return network


def _units(network: nn.Module) -> dict[str, nn.Module]:
    """Return the parts of the network that may end a stage, by module name."""
    if type(network).__name__ == "VisionTransformer":
        return {
            f"encoder.layers.{name}": part for name, part in network.get_submodule("encoder.layers").named_children()
        }
    parts = dict(network.named_children())
    trunks = [name for name in parts if name in TRUNKS]
    if not trunks:
        return {name: part for name, part in parts.items() if not isinstance(part, nn.AdaptiveAvgPool2d | nn.Identity)}
    stem = {"stem": parts["stem"]} if "stem" in parts else {}
    return stem | {f"{trunk}.{name}": part for trunk in trunks for name, part in parts[trunk].named_children()}
