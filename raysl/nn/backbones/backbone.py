"""The base classes of backbones."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from raysl.config.ranges import check_ranges
from raysl.config.schema import BackboneConfig
from raysl.errors import ConfigError
from raysl.nn.backbones.published import Published


@dataclass(frozen=True)
class BackboneInfo:
    """Facts of a backbone that are known before it has weights.

    Args:
        feature_dim: width of its features.
        patch_size: side of a patch in pixels for a `TokenBackbone`, else None.
        stages: widths of its named stages; empty if it names none.
        feature_stages: the stages whose concatenation are its features; empty if unknown.
        num_layers: see `Backbone.num_layers`.
        map_stage: see `Backbone.map_stage`.
    """

    feature_dim: int
    patch_size: int | None
    stages: dict[str, int]
    feature_stages: tuple[str, ...] = field(default=(), compare=False)
    num_layers: int | None = None
    map_stage: str | None = field(default=None, compare=False)


class Backbone(nn.Module, ABC):
    """A network from normalised images [B, C, H, W], C of `config.in_channels`, to features [B, feature_dim].

    A subclass nests a frozen `Config` and takes it as its only argument.

    >>> from raysl.nn.backbones.resnet import ResNet
    >>> backbone = ResNet(ResNet.Config(depth=18, width=8))
    >>> backbone(torch.zeros(2, 3, 64, 64)).shape, backbone.stages(torch.zeros(2, 3, 64, 64), ["res4"])["res4"].shape
    (torch.Size([2, 64]), torch.Size([2, 32, 4, 4]))
    """

    Config: ClassVar[type[BackboneConfig]]
    feature_dim: int
    patch_size: int | None = None
    native_size: int = 224
    """Side in pixels of square images that fit the network."""
    map_stride: int | None = None
    """Side in pixels of the square that a place of the last map stands for, of a network with `grouped_map`."""
    frozen_modules: tuple[str, ...] = ()
    """Names of the modules that stay in evaluation mode, see `raysl.nn.backbones.freezing`."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        check_ranges(config)
        self.config = config

    def __repr__(self) -> str:
        """What a notebook shows, in place of all layers, which `print(*backbone.children())` does."""
        num = sum(weight.numel() for weight in self.parameters())
        stages = ", ".join(f"{name} {width}" for name, width in self.stage_widths.items())
        facts = [
            f"{self.feature_dim} features",
            f"{num / 1e6:.3g} M parameters",
            *([f"stages {stages}"] if stages else []),
        ]
        return f"{type(self).__name__}({'; '.join(facts)})"

    def train(self, mode: bool = True) -> Self:
        """Set training mode, except for frozen modules."""
        super().train(mode)
        for name in self.frozen_modules:
            for module in self.get_submodule(name).modules():
                module.training = False
        return self

    @classmethod
    def info(cls, config: Any) -> BackboneInfo:
        """Return the facts of the network with these settings, see `without_weights`."""
        network = cls.without_weights(config)
        return BackboneInfo(
            network.feature_dim,
            network.patch_size,
            dict(network.stage_widths),
            network.feature_stages,
            network.num_layers,
            network.map_stage,
        )

    @classmethod
    def without_weights(cls, config: Any) -> Self:
        """Build the network with these settings on the meta device, without memory for weights.

        torch's random numbers continue as if nothing had been built. A network that reads its tensors in `__init__` is
        built on the CPU instead; it may read lists of numbers, such as those of `torch.arange`.

        Raises:
            ConfigError: if the settings make no network.
        """
        with torch.random.fork_rng(devices=[]):
            try:
                with torch.device("meta"), _SkipInitialisation():
                    return cls(config)
            except RuntimeError:
                return cls(config)

    @classmethod
    def check_side(cls, config: Any, side: int) -> None:
        """Refuse square images of this side in pixels if they do not fit the network; it needs no weights.

        Raises:
            ConfigError: with a size that fits.
        """

    @classmethod
    def advice(cls, config: Any, side: int) -> str | None:
        """Return advice on settings that suit square images of this side in pixels better, if any."""
        return None

    @classmethod
    def published(cls, config: Any) -> Published:
        """Return the published weights that the settings ask for, downloaded where they are not in a cache.

        It is called once, for a new run whose `config.is_pretrained` is true.

        Raises:
            ConfigError: if there are none, or a hash is wrong.
            StorageError: if they cannot be downloaded.
        """
        raise ConfigError(f"backbone={config.name} has no published weights")

    def renamed(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of a file of the network, with a classifier perhaps, by the names in `state_dict`.

        Those of the classifier keep names that are not in it. Default: they have these names already.

        Args:
            tensors: tensors by the names that the network's library or authors gave them.
        """
        return dict(tensors)

    @property
    def in_channels(self) -> int:
        """Channels of the images that it takes."""
        return int(self.config.in_channels)

    @property
    def title(self) -> str:
        """Name of the network in messages."""
        return f"this {type(self).__name__}"

    @property
    def stage_widths(self) -> dict[str, int]:
        """Names and widths of the stages, from first to last; empty if unknown."""
        return {}

    @property
    def feature_stages(self) -> tuple[str, ...]:
        """Names of the stages that `forward` concatenates; empty if unknown."""
        return ()

    @property
    def map_stage(self) -> str | None:
        """Name of the last stage that is a map or tokens; None if unknown. Default: the one before `feature_stages`."""
        names = list(self.stage_widths)
        if not self.feature_stages or self.feature_stages[0] not in names[1:]:
            return None
        return names[names.index(self.feature_stages[0]) - 1]

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Return features [B, feature_dim] of normalised images [B, 3, H, W]."""

    @abstractmethod
    def stages(self, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """Return maps [B, C, H', W'] and features [B, feature_dim] of images [B, 3, H, W] by name, in the order of
        `names`; nothing is computed beyond the deepest one.

        Raises:
            ValueError: if a name is not a stage of this network; the message lists the stages.
        """

    def grouped_map(self, images: Tensor, groups: Tensor) -> Tensor:
        """Return the last map [B, C, h, w] of images in which parts of several images lie side by side: nothing in it
        depends on squares of another group.

        Args:
            images: normalised images [B, 3, h * map_stride, w * map_stride].
            groups: group of each square, bool or int64 [B, h, w], not below 0.

        Raises:
            TypeError: if the network cannot keep groups apart.
            ValueError: if the squares do not cover the images exactly, or `groups` has another number of them.
        """
        raise TypeError(
            f"{type(self).__name__} cannot keep parts of an image apart; take backbone=swin, or write `grouped_map`"
        )

    def stages_up_to(self, names: Sequence[str]) -> list[str]:
        """Return the names of all stages up to the deepest of these.

        Raises:
            ValueError: if a name is not a stage; the message lists the stages.
        """
        known = list(self.stage_widths)
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"no stage {unknown[0]!r} in {self.title}; its stages: {', '.join(known) or 'none'}")
        return known[: max((known.index(name) for name in names), default=-1) + 1]

    def units(self) -> dict[str, list[nn.Module]]:
        """Return the modules with most of the weights, by stage, in the order in which they run.

        Each is compiled, recomputed in the backward pass, or sharded over ranks on its own. By default they are the
        children of the outermost `nn.Sequential` and `nn.ModuleList` of the network, each a stage.
        """
        return {name: [module] for name, module in _children_of_lists(self, "")}

    def no_decay(self) -> set[str]:
        """Return the names of parameters of more than one dimension without weight decay, such as tokens."""
        return set()

    @property
    def num_layers(self) -> int | None:
        """L, the number of the last layer; None if the network does not number its layers."""
        return None

    def layer_of(self, name: str) -> int:
        """Return the layer of a parameter for `optim.layer_decay`: 0 for the stem or the embeddings, up to L, and L + 1
        for what learns at the rate of the heads.

        Args:
            name: key as in `named_parameters`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not number its layers")


class TokenBackbone(Backbone):
    """A backbone with a token for each patch of an image.

    Before the patches, row by row, come `num_prefix_tokens` other tokens, the class token first. `patch_embed` maps
    patches to tokens.
    """

    patch_embed: nn.Module
    patch_size: int
    token_dim: int
    num_prefix_tokens: int

    @abstractmethod
    def tokens(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return all output tokens of images [B, num_prefix_tokens + h*w, token_dim].

        Args:
            images: normalised images [B, 3, h * patch_size, w * patch_size].
            mask: bool [B, h, w], true where a learned mask token replaces the patch.

        Raises:
            ValueError: if patches do not cover the images exactly, the mask is not of their grid, or there is no mask
                token.
        """

    @abstractmethod
    def visible_tokens(self, images: Tensor, keep: Tensor, is_visible: Tensor | None = None) -> Tensor:
        """Return tokens of some patches, which attend to no others [B, num_prefix_tokens + K, token_dim].

        Args:
            images: normalised images [B, 3, h * patch_size, w * patch_size].
            keep: int64 [B, K], indices of each image's visible patches in h*w, as from `visible_places`.
            is_visible: bool [B, K], false where images with fewer visible patches are padded to K: no token attends
                to those, and their outputs are meaningless. Default: all are visible.

        Raises:
            ValueError: if patches do not cover the images exactly.
        """

    def visible_maps(self, images: Tensor, keep: Tensor) -> list[Tensor]:
        """Return the tokens of some patches at all depths, each [B, num_prefix_tokens + K, token_dim].

        They are the input of the first block and the output of each block, the last one's in front of a final norm.

        Args:
            images, keep: arguments of `visible_tokens`.

        Raises:
            TypeError: if the network has no such outputs.
            ValueError: if patches do not cover the images exactly.
        """
        raise TypeError(f"{type(self).__name__} has no maps of its blocks; take backbone=vit, or write `visible_maps`")

    def causal_tokens(self, images: Tensor, is_prefix: Tensor) -> Tensor:
        """Return all output tokens, each of what comes before it and of the patches of a prefix
        [B, num_prefix_tokens + h*w, token_dim].

        A token attends to itself, to those before it, and to the patches of the prefix.

        Args:
            images: normalised images [B, 3, h * patch_size, w * patch_size].
            is_prefix: bool [B, h*w], true for patches that all tokens see.

        Raises:
            TypeError: if the network has no such attention.
            ValueError: if patches do not cover the images exactly.
        """
        raise TypeError(f"{type(self).__name__} has no causal attention; take backbone=vit, or write `causal_tokens`")

    def grid(self, images: Tensor) -> tuple[int, int]:
        """Return the number of patches down and across images [B, 3, H, W].

        Raises:
            ValueError: if patches do not cover the images exactly.
        """
        height, width = images.shape[-2:]
        patch = self.patch_size
        for side in (height, width):
            if side < patch or side % patch:
                low = side // patch * patch
                near = f"{low} or {low + patch}" if low else str(patch)
                raise ValueError(
                    f"images of {height}x{width} pixels have a side that is not a multiple of patch_size={patch}; "
                    f"give {near} for {side}, or another patch_size"
                )
        return height // patch, width // patch


def _children_of_lists(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the children with weights of the outermost lists inside a module, with dotted names."""
    for name, child in module.named_children():
        if isinstance(module, nn.Sequential | nn.ModuleList) and not isinstance(child, nn.ModuleList):
            if any(True for _ in child.parameters()):
                yield f"{prefix}{name}", child
        else:
            yield from _children_of_lists(child, f"{prefix}{name}.")


def uncovered(side: int, patch_size: int) -> str | None:
    """Return the problem with images of this side in pixels and sizes that fit; None if patches cover them exactly."""
    if side % patch_size == 0:
        return None
    low = side - side % patch_size
    near = f"set {low} or {low + patch_size}" if low else f"set {patch_size}"
    return f"images of {side} pixels are not covered by patches of {patch_size}; {near}, or another backbone.patch_size"


def visible_places(mask: Tensor, num_visible: int) -> Tensor:
    """Return the indices of unmasked patches, int64 [B, num_visible], ascending, without waiting for a GPU.

    >>> visible_places(torch.tensor([[[True, False], [False, True]]]), num_visible=2)
    tensor([[1, 2]])

    Args:
        mask: bool [B, h, w], with at most `num_visible` unmasked patches in each image.
        num_visible: number of indices per image; after fewer unmasked patches, masked ones follow.
    """
    return mask.flatten(1).byte().argsort(dim=1, stable=True)[:, :num_visible]


class _SkipInitialisation(TorchFunctionMode):
    """Skips random initialisation of weights on the meta device.

    It has no effect there, but torch would load its compiler for it, which takes seconds. Lists of numbers stay on the
    CPU, since networks count with them.
    """

    FILLS = ("normal_", "uniform_", "trunc_normal_", "kaiming_normal_", "xavier_normal_", "erfinv_", "clamp_")
    LISTS = (torch.arange, torch.tensor)

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self.LISTS:
            return func(*args, **({"device": "cpu"} | kwargs))
        if func.__name__ in self.FILLS:
            filled = args[0] if args else kwargs["tensor"]
            if filled.is_meta:
                return filled
        return func(*args, **kwargs)
