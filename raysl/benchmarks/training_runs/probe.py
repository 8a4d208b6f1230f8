"""Classifiers on a pre-trained network, as benchmarks train them: the method of their runs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from raysl.methods.supervised import Supervised

NAME = "raysl.benchmarks.training_runs.probe:Probe"


class Probe(Supervised):
    """`supervised` that begins with the weights of a backbone alone, of a checkpoint of whatever method.

    What `supervised` itself has learned, its classifier, is not taken over: every probe starts from a fresh one.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Supervised.Config):
        """Those of `supervised`."""

        name: str = NAME

    def head_scores(self, images: Tensor) -> Tensor:
        """Scores of normalised images [B, 3, H, W]: those of the classifier on the features, then of each of `heads`,
        float [B, 1 + heads, K]."""
        _, scores = self._score(images[:, None])
        return torch.cat(scores, dim=1)
