"""A backbone that tells no layers."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from raysl.config.schema import BackboneConfig
from raysl.nn.backbones.backbone import Backbone


class Flat(Backbone):
    @dataclass(frozen=True, kw_only=True)
    class Config(BackboneConfig):
        name: str = "flat"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.feature_dim = 4
        self.layer = nn.Linear(3, 4)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layer(images.mean((2, 3)))
        return features

    def stages(self, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        return {name: self(images) for name in names}
