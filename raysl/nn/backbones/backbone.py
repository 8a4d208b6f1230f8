"""The shape of a backbone."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from raysl.config.schema import BackboneConfig


class Backbone(nn.Module, ABC):
    """A network from normalised images [B, 3, H, W] to features [B, feature_dim].

    A subclass nests a frozen `Config` and takes it as its only argument.
    """

    Config: ClassVar[type[BackboneConfig]]
    feature_dim: int

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

    def no_decay(self) -> set[str]:
        """Names of the parameters of more than one dimension that weight decay leaves alone, such as tokens."""
        return set()
