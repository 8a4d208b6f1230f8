"""The shape of a backbone."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from raysl.config.schema import BackboneConfig


@dataclass(frozen=True)
class BackboneInfo:
    """What is known of a backbone without its weights.

    Args:
        feature_dim: width of its features.
        patch_size: side of the patches that it cuts images into, in pixels; None where it cuts none.
        stages: widths of its inner features by the names that `Backbone.stages` takes.
    """

    feature_dim: int
    patch_size: int | None
    stages: dict[str, int]


class Backbone(nn.Module, ABC):
    """A network from normalised images [B, 3, H, W] to features [B, feature_dim].

    A subclass nests a frozen `Config` and takes it as its only argument.
    """

    Config: ClassVar[type[BackboneConfig]]
    feature_dim: int
    patch_size: int | None = None

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Features [B, feature_dim] of normalised images [B, 3, H, W]."""

    @abstractmethod
    def stages(self, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """Inner features by name, in the order asked for.

        Raises:
            ValueError: if a name is no stage of this network; the message lists those that are.
        """

    @property
    def stage_widths(self) -> dict[str, int]:
        """Widths of the stages by name; empty where a network does not tell them."""
        return {}

    @classmethod
    def info(cls, config: Any) -> BackboneInfo:
        """What the settings come to, from a network built without memory for its weights."""
        with torch.random.fork_rng(devices=[]), torch.device("meta"), _Unfilled():
            network = cls(config)
        return BackboneInfo(network.feature_dim, network.patch_size, network.stage_widths)

    def no_decay(self) -> set[str]:
        """Names of parameters that get no weight decay, besides those of one dimension: tokens, position embeddings."""
        return set()


class _Unfilled(TorchFunctionMode):
    """Leaves out what writes into tensors: those of the meta device hold nothing, and torch would import its compiler,
    which takes seconds, to draw numbers for them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name.endswith("_") and not name.endswith("__"):
            return args[0] if args else next(iter(kwargs.values()))
        return func(*args, **(kwargs or {}))
