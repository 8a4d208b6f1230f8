"""MACL: Model-Aware Contrastive Learning, Towards Escaping the Dilemmas.

Huang, Chen, Wen, Zhang, Li, Wang and Chen 2022, arXiv 2207.07874 (ICML 2023). SimCLR whose temperature is that of the
model in its present state: low while views of an image are far apart, higher once they are near, when near negatives
are likely to be of the same class. Each term is divided by the probability of a mistake, so that its gradient does not
vanish where negatives are few and easy.
"""

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from raysl.config.ranges import Share, Temperature
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import macl
from raysl.methods.simclr import SimCLR
from raysl.nn import COLLAPSE
from raysl.plan.setup import Setup


class MACL(SimCLR):
    """Contrasts views with the whole global batch, at a temperature that follows their alignment."""

    logged = ("contrastive_top1", "alignment", "temperature", *COLLAPSE)

    @dataclass(frozen=True, kw_only=True)
    class Config(SimCLR.Config):
        """The paper's ImageNet settings, those of SimCLR and two for the temperature."""

        name: str = "macl"
        temperature: Temperature = 0.1
        """Divides the cosines where views have an alignment of `threshold`, tau 0."""
        growth: Share = 0.5
        """Share of the temperature that an alignment of 1 above `threshold` adds, alpha; at 0 it stays as it is."""
        threshold: Share = 0.0
        """Mean cosine A0 of two views of an image at which the temperature is as given."""

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse what SimCLR refuses, and settings with which the temperature could fall to 0."""
        super().check(setup)
        growth, threshold = setup.method.growth, setup.method.threshold
        if growth * (1 + threshold) >= 1:
            raise ConfigError(
                f"method.growth={growth} and method.threshold={threshold} make a temperature of 0 or less where views "
                f"are opposite; set method.growth below {1 / (1 + threshold):.3g}"
            )

    @override
    def _loss(self, z: Tensor, z_all: Tensor, rows: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        out = macl(z, z_all, rows, config.temperature, config.growth, config.threshold)
        return out.loss, {"alignment": out.alignment, "temperature": out.temperature}
