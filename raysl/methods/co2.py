"""CO2: Consistent Contrast for Unsupervised Visual Representation Learning.

Wei, Wang, Shen and Yuille 2020, arXiv 2010.02217. MoCo calls all other images equally negative, also those of the
query's class. Beside its loss, the similarities of a query to the queue must agree with those of its key.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from raysl.config.ranges import Amount, Temperature, Width
from raysl.losses import co2
from raysl.methods.moco import MoCo
from raysl.nn import COLLAPSE
from raysl.transforms.recipes import Crops


def _views_of_v1() -> Crops:
    """Return MoCo v1's crops, in strong colours and without blur."""
    return Crops(min_scale=0.2, jitter=(0.4, 0.4, 0.4, 0.4), jitter_p=1.0, grayscale_first=True, blur_p=0.0)


class CO2(MoCo):
    """Contrasts a query with a queue, and compares its similarities to the queue with those of its key."""

    logged: ClassVar[tuple[str, ...]] = ("contrastive_top1", "consistency", *COLLAPSE)

    @dataclass(frozen=True, kw_only=True)
    class Config(MoCo.Config):
        """The ImageNet settings for MoCo v1."""

        name: str = "co2"
        temperature: Temperature = 0.07
        """Divides the cosines of the contrast (MoCo v1)."""
        hidden_dims: tuple[Width, ...] = ()
        """Widths of the projector's hidden layers; none in MoCo v1."""
        consistency: Amount = 10.0
        """Weight alpha of the divergence between the similarities of queries and keys; at 0 this is MoCo."""
        consistency_temperature: Temperature = 0.04
        """Divides the cosines of those similarities, tau con."""
        views: Crops = field(default_factory=_views_of_v1)
        """Two crops drawn the same way, the first for the query (MoCo v1)."""

    @override
    def _loss(self, q: Tensor, k: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        contrast, terms = super()._loss(q, k)
        consistency = co2(q, k, self.queue.keys, self.config.consistency_temperature)
        return contrast + self.config.consistency * consistency, terms | {"consistency": consistency.detach()}
