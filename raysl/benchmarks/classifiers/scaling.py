"""Scaling of features for classifiers, chunk by chunk in single precision."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK_ROWS = 512
"""Rows that a CPU scales and scores at once; bounds memory, changes no result. More do not fit its cache."""
GPU_CHUNKS = 16
"""Chunks that a GPU works on at once, so that it has more to do than to be started."""

Normalize = Literal["none", "l2", "standardize", "batch_norm"]
"""`none`: features as they are. `l2`: each row of length 1. `standardize`: each feature minus its mean, over its
deviation, of all training images (no label is looked at). `batch_norm`: a BatchNorm without scale and shift in front
of the classifier, as in MAE (He et al. 2021, arXiv 2111.06377, A.1): statistics of the batch while it is trained, and
then, in place of running averages, those that they estimate: of all training images. VISSL's `eval_mlp` has a scale
and a shift in it, too, which the classifier behind it can stand for."""


@dataclass(frozen=True)
class Scaling:
    """A scaling of features, see `Normalize`.

    Args:
        shift, factor: [D], of `standardize` and `batch_norm`.
    """

    kind: Normalize
    shift: Tensor | None = None
    factor: Tensor | None = None

    @classmethod
    def of(cls, kind: Normalize, features: Tensor, device: torch.device) -> "Scaling":
        """Fit a scaling to features [N, D], which are read in chunks."""
        if kind in ("none", "l2"):
            return cls(kind)
        mean, deviation = moments(features)
        is_constant = deviation <= 1e-6 * mean.abs()  # rounding alone
        factor = torch.where(is_constant, 1.0, 1 / deviation.masked_fill(is_constant, 1.0))
        dtype = _working(features)
        return cls(kind, mean.to(device, dtype), factor.to(device, dtype))

    def __call__(self, rows: Tensor) -> Tensor:
        """Scale rows [B, D] for prediction."""
        if self.kind == "none":
            return rows
        if self.kind == "l2":
            return F.normalize(rows, dim=1)
        assert self.shift is not None
        assert self.factor is not None
        return (rows - self.shift) * self.factor

    def in_training(self, rows: Tensor) -> Tensor:
        """Scale rows [B, D] of a training batch."""
        if self.kind != "batch_norm":
            return self(rows)
        variance, mean = torch.var_mean(rows, dim=0, correction=0)
        return (rows - mean) * (variance + 1e-5).rsqrt()


def moments(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation [D] of the rows of [N, D] in float64, computed in chunks.

    Chan, Golub and LeVeque 1983 (Algorithms for computing the sample variance), equation 2.1: without cancellation.
    """
    mean = squares = torch.zeros(features.shape[1], dtype=torch.float64, device=features.device)
    count = 0
    for chunk in torch.split(features, CHUNK_ROWS):
        rows = chunk.double()
        chunk_mean = rows.mean(dim=0)
        total, moved = count + len(rows), chunk_mean - mean
        # squares about the mean of the chunk, and what the distance between the two means adds
        squares = squares + (rows - chunk_mean).square_().sum(dim=0) + moved**2 * (count * len(rows) / total)
        mean = mean + moved * (len(rows) / total)
        count = total
    return mean, (squares / count).sqrt()


def rows_of(features: Tensor, index: Tensor, device: torch.device) -> Tensor:
    """Return rows [B, D] by index on the computing device, as float32, or float64 where the features are."""
    return features.index_select(0, index.to(features.device)).to(device, _working(features))


def _working(features: Tensor) -> torch.dtype:
    return torch.float64 if features.dtype == torch.float64 else torch.float32


def softmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return probabilities [G, K, B] that add up to 1 over K, and the logarithms of their denominators [G, B].

    `torch.softmax` of ten classes, each image's side by side, takes ten times as long on a CPU.
    """
    top = logits.amax(dim=1, keepdim=True)
    shares = (logits - top).exp_()
    total = shares.sum(dim=1, keepdim=True)
    return shares.div_(total), (top + total.log())[:, 0]


def chunks_of(features: Tensor, index: Tensor, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield indices and rows of features in chunks."""
    for part in torch.split(index, CHUNK_ROWS * (GPU_CHUNKS if device.type == "cuda" else 1)):
        yield part, rows_of(features, part, device)


def device_for(features: Tensor) -> torch.device:
    """Return the computing device: a GPU if this process has one, else the device of the features."""
    return torch.device("cuda") if torch.cuda.is_available() else features.device
