"""DCL: Decoupled Contrastive Learning.

Yeh, Hong, Hsu, Liu, Chen and LeCun 2021, arXiv 2110.06848. SimCLR without the positive in the denominator of its loss,
where it weakens the gradient, mostly with few negatives: small batches suffice. DCLW (`weighted`) also gives larger
weights to pairs of views that are far apart.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from raysl.config.ranges import Within
from raysl.data.batch import Batch
from raysl.losses import dcl
from raysl.methods.simclr import SimCLR


class DCL(SimCLR):
    """Contrasts views against the whole global batch, without coupling positives and negatives."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SimCLR.Config):
        """The paper's ImageNet settings, those of SimCLR (section 4.1)."""

        name: str = "dcl"
        weighted: bool = False
        """DCLW: weights of pairs from a von Mises-Fisher density, the larger the further the pair is apart (eq. 6)."""
        sigma: Annotated[float, Within(1e-2, 1e4)] = 0.5
        """Divides the cosines of those weights; larger values make them more equal (section 4)."""

    def _loss(self, z: Tensor, z_all: Tensor, rows: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Equation 5, with `weighted` equation 6."""
        sigma = self.config.sigma if self.config.weighted else None
        return dcl(z, z_all, rows, self.config.temperature, sigma), {}
