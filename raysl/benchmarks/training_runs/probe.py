"""The method of benchmarks that train a classifier."""

from dataclasses import dataclass

import torch
from torch import Tensor

from raysl.methods.supervised import Supervised

NAME = "raysl.benchmarks.training_runs.probe:Probe"


class Probe(Supervised):
    """`supervised` that takes over the backbone alone of a checkpoint of any method.

    The classifier of a `supervised` run is not taken over: every probe starts with a new one.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Supervised.Config):
        """Those of `supervised`."""

        name: str = NAME

    def head_scores(self, images: Tensor) -> Tensor:
        """Return scores of normalised images [B, 3, H, W] by the classifier on the features and by each of `heads`,
        float [B, 1 + heads, K]."""
        _, scores = self._score(images[:, None])
        return torch.cat(scores, dim=1)
