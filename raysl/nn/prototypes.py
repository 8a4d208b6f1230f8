"""Prototypes: cluster centres that are trained."""

import torch
from torch import nn
from torch.nn import functional as F


class Prototypes(nn.Linear):
    """Scores of embeddings [..., D] against K unit vectors, [..., K] (SwAV, Caron et al. 2020, arXiv 2006.09882).

    A linear layer without bias. The optimizer moves its rows off the unit sphere: call `normalise` in `after_update`,
    also while the rows are held fixed. Scores are cosines where embeddings are of length 1.
    """

    def __init__(self, dim: int, num: int, is_unit_at_start: bool = True) -> None:
        """`num` prototypes of width `dim`, drawn as torch draws a linear layer.

        Args:
            dim: D.
            num: K.
            is_unit_at_start: normalise rows at once, as the paper's code does ahead of its first step; VISSL first does
                so after the first update.
        """
        super().__init__(dim, num, bias=False)
        if is_unit_at_start:
            self.normalise()

    @torch.no_grad()
    def normalise(self) -> None:
        """Scale each row to length 1, in place."""
        self.weight.copy_(F.normalize(self.weight, dim=1))
