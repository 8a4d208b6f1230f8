"""The shape of a backbone."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from raysl.config.schema import BackboneConfig


@dataclass(frozen=True)
class BackboneInfo:
    """What is known of a backbone before it has weights.

    Args:
        feature_dim: width of its features.
        patch_size: side of a patch in pixels, of a `TokenBackbone`; None of others.
        stages: widths of the inner features that it names; empty where it does not tell.
        feature_stages: those of them that its features are, side by side; empty where it does not tell.
        num_layers: see `Backbone.num_layers`.
    """

    feature_dim: int
    patch_size: int | None
    stages: dict[str, int]
    feature_stages: tuple[str, ...] = field(default=(), compare=False)
    num_layers: int | None = None


class Backbone(nn.Module, ABC):
    """A network from normalised images [B, 3, H, W] to features [B, feature_dim].

    A subclass nests a frozen `Config` and takes it as its only argument.
    """

    Config: ClassVar[type[BackboneConfig]]
    feature_dim: int
    patch_size: int | None = None
    native_size: int = 224
    """Side in pixels of square images that fit."""
    frozen_modules: tuple[str, ...] = ()
    """Names of the modules that stay in evaluation mode, see `raysl.nn.backbones.freezing`."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def train(self, mode: bool = True) -> Self:
        """Set training mode, but of what is frozen."""
        super().train(mode)
        for name in self.frozen_modules:
            for module in self.get_submodule(name).modules():
                module.training = False
        return self

    @classmethod
    def info(cls, config: Any) -> BackboneInfo:
        """Facts of the network of these settings, see `without_weights`.

        Raises:
            ConfigError: if the settings make no network.
        """
        network = cls.without_weights(config)
        return BackboneInfo(
            network.feature_dim,
            network.patch_size,
            dict(network.stage_widths),
            network.feature_stages,
            network.num_layers,
        )

    @classmethod
    def without_weights(cls, config: Any) -> Self:
        """The network of these settings on the meta device, without memory for weights.

        torch's random numbers go on as if nothing had been built. A network that reads its tensors while it is built
        cannot be on that device, and is built on the CPU; lists of numbers, such as `torch.arange` makes, may be read.

        Raises:
            ConfigError: if the settings make no network.
        """
        with torch.random.fork_rng(devices=[]):
            try:
                with torch.device("meta"), _Unfilled():
                    return cls(config)
            except RuntimeError:
                return cls(config)

    @classmethod
    def check_side(cls, config: Any, side: int) -> None:
        """Refuse square images of so many pixels a side, where they do not fit the network; before it has weights.

        Raises:
            ConfigError: with a size that fits.
        """

    @classmethod
    def advice(cls, config: Any, side: int) -> str | None:
        """The settings that suit square images of this side in pixels better; None where there are none."""
        return None

    @property
    def stage_widths(self) -> dict[str, int]:
        """Names that `stages` takes and the widths of what they give, from the first to the last; empty: not told."""
        return {}

    @property
    def feature_stages(self) -> tuple[str, ...]:
        """Names of the stages that `forward` gives, side by side; empty: not told."""
        return ()

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Features [B, feature_dim] of normalised images [B, 3, H, W]."""

    @abstractmethod
    def stages(self, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """Inner features by name, in the order asked for.

        Raises:
            ValueError: if a name is no stage of this network; the message lists those that are.
        """

    def units(self) -> dict[str, list[nn.Module]]:
        """The modules that hold most of its weights and are called one after another, by stage, in that order.

        They are what is compiled, computed again in the backward pass, or spread over ranks one at a time. This finds
        what the outermost `nn.Sequential` and `nn.ModuleList` of the network hold, each a stage by its name.
        """
        return {name: [module] for name, module in _listed(self, "")}

    def no_decay(self) -> set[str]:
        """Names of the parameters of more than one dimension that weight decay leaves alone, such as tokens."""
        return set()

    @property
    def num_layers(self) -> int | None:
        """Number L of the last of the layers 0 to L that `layer_of` tells of; None where it does not."""
        return None

    def layer_of(self, name: str) -> int:
        """Layer of a parameter, from 0 for the stem or the embeddings, which `optim.layer_decay` follows.

        Args:
            name: as `named_parameters` has it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not tell its layers")


class TokenBackbone(Backbone):
    """A backbone that sees an image as patches, and has a token for each of them.

    In front of those are `num_prefix_tokens` others, the class token first. Patches count row by row. `patch_embed`
    maps them to tokens.
    """

    patch_embed: nn.Module
    patch_size: int
    token_dim: int
    num_prefix_tokens: int

    @abstractmethod
    def tokens(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """All tokens of images as they leave the network [B, num_prefix_tokens + h*w, token_dim].

        Args:
            images: normalised images [B, 3, h * patch_size, w * patch_size].
            mask: bool [B, h, w], true where a learned mask token stands in for the patch.

        Raises:
            ValueError: if patches do not cover the images exactly, the mask is not of their grid, or there is no mask
                token.
        """

    @abstractmethod
    def visible_tokens(self, images: Tensor, keep: Tensor, is_visible: Tensor | None = None) -> Tensor:
        """Tokens of some patches, which see no others [B, num_prefix_tokens + K, token_dim].

        Args:
            images: normalised images [B, 3, h * patch_size, w * patch_size].
            keep: int64 [B, K], the places of each image's visible patches in h*w, as `visible_places` gives them.
            is_visible: bool [B, K], false where images with fewer visible patches are filled up to K: no token sees
                those, and what stands in their places means nothing. Default: all are visible.

        Raises:
            ValueError: if patches do not cover the images exactly.
        """

    def grid(self, images: Tensor) -> tuple[int, int]:
        """Patches down and across images [B, 3, H, W].

        Raises:
            ValueError: if they do not cover them exactly.
        """
        height, width = images.shape[-2:]
        patch = self.patch_size
        for side in (height, width):
            if side < patch or side % patch:
                low = side // patch * patch
                near = f"{low} or {low + patch}" if low else str(patch)
                raise ValueError(
                    f"images of {height}x{width} pixels have a side that is no multiple of patch_size={patch}; "
                    f"give {near} for {side}, or another patch_size"
                )
        return height // patch, width // patch


def _listed(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """What the outermost lists inside a module hold, as far as it has weights, with dotted names."""
    for name, child in module.named_children():
        if isinstance(module, nn.Sequential | nn.ModuleList) and not isinstance(child, nn.ModuleList):
            if any(True for _ in child.parameters()):
                yield f"{prefix}{name}", child
        else:
            yield from _listed(child, f"{prefix}{name}.")


def uncovered(side: int, patch_size: int) -> str | None:
    """The problem with images of this side in pixels, and sizes that fit; None where patches cover them exactly."""
    if side % patch_size == 0:
        return None
    low = side - side % patch_size
    near = f"set {low} or {low + patch_size}" if low else f"set {patch_size}"
    return f"images of {side} pixels are not covered by patches of {patch_size}; {near}, or another backbone.patch_size"


def visible_places(mask: Tensor, num_visible: int) -> Tensor:
    """Places of the patches that are not masked, int64 [B, num_visible], rising; nobody waits for a GPU.

    Args:
        mask: bool [B, h, w], with the same number of patches left in every image as `RandomMask` makes them, or with
            fewer.
        num_visible: that number. The mask is not read to check it: where fewer are left, masked patches follow.
    """
    return mask.flatten(1).byte().argsort(dim=1, stable=True)[:, :num_visible]


class _Unfilled(TorchFunctionMode):
    """Leaves out what fills weights at random, for those on the meta device.

    There it would do nothing either, but torch loads its compiler for it, which takes seconds. Lists of numbers stay on
    the CPU: networks count with them.
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
