"""PMSN: The Hidden Uniform Cluster Prior in Self-Supervised Learning.

Assran, Balestriero, Duval, Bordes, Misra, Bojanowski, Vincent, Rabbat and Ballas 2022, arXiv 2210.07277. MSN asks that
the images of a batch spread evenly over its prototypes, which long-tailed data do not. Prior Matching for Siamese
Networks asks for a power law instead: a few prototypes have many images, and many have few.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from raysl.config.ranges import Within
from raysl.methods.msn import MSN


class PMSN(MSN):
    """Predicts the prototypes of a whole view from masked views, with a power law of prototypes as prior."""

    @dataclass(frozen=True, kw_only=True)
    class Config(MSN.Config):
        """The paper's prior; the other settings are those of MSN."""

        name: str = "pmsn"
        prior_exponent: Annotated[float, Within(0, 10)] = 0.25
        """Exponent tau of the power law: prototype k of 1 to K has a share proportional to k ** -tau. 0 is the
        even prior of MSN."""
        sinkhorn_iters: Annotated[int, Within(0, 1000)] = 0
        """Rounds of balancing the assignments over the batch. 0, since balanced assignments are even ones, against the
        prior; above 0 as in MSN."""

    def _away_from_prior(self, mean: Tensor, entropy: Tensor) -> Tensor:
        """Return the Kullback-Leibler divergence of the mean prediction from the prior."""
        k = torch.arange(1, len(mean) + 1, device=mean.device, dtype=mean.dtype)
        log_prior = torch.log_softmax(-self.config.prior_exponent * k.log(), dim=0)  # [K]
        return -entropy - mean @ log_prior
