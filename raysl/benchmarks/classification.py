"""What classifiers on frozen features share: how features are scaled, which images are held out, what is told."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.benchmarks.benchmark import FEATURES, FeatureSet, Labelled
from raysl.benchmarks.meters import top_k_hits
from raysl.benchmarks.metric import Metric, mean_of
from raysl.hashing import Int64s, hash_rows, hash_words

CHUNK_ROWS = 512
"""Rows that a CPU scales and scores at once; bounds memory, changes no result. More do not fit its cache."""
GPU_CHUNKS = 16
"""Chunks that a GPU works on at once, so that it has more to do than to be started."""
_HOLD_OUT = 101  # what a key is for

Normalize = Literal["none", "l2", "standardize", "batch_norm"]
"""`none`: features as they are. `l2`: each row of length 1. `standardize`: each feature minus its mean, over its
deviation, of all training images (no label is looked at). `batch_norm`: a BatchNorm without scale and shift in front of
the classifier, as in MAE (He et al. 2021, arXiv 2111.06377, A.1) and VISSL's `eval_mlp`: statistics of the batch while
it is trained, and then, in place of running averages, those that they estimate: of all training images."""


@dataclass(frozen=True)
class Scaling:
    """How a classifier gets to see features; see `Normalize`.

    Args:
        kind: the rule.
        shift, factor: [D], of `standardize` and `batch_norm`.
    """

    kind: Normalize
    shift: Tensor | None = None
    factor: Tensor | None = None

    @classmethod
    def of(cls, kind: Normalize, features: Tensor, device: torch.device) -> "Scaling":
        """The rule with its statistics of features [N, D], which are read in chunks."""
        if kind in ("none", "l2"):
            return cls(kind)
        mean, deviation = moments(features)
        is_constant = deviation <= 1e-6 * mean.abs()  # rounding alone
        factor = torch.where(is_constant, 1.0, 1 / deviation.masked_fill(is_constant, 1.0))
        dtype = _working(features)
        return cls(kind, mean.to(device, dtype), factor.to(device, dtype))

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows [B, D] as they are classified."""
        if self.kind == "none":
            return rows
        if self.kind == "l2":
            return F.normalize(rows, dim=1)
        assert self.shift is not None
        assert self.factor is not None
        return (rows - self.shift) * self.factor

    def in_training(self, rows: Tensor) -> Tensor:
        """Rows [B, D] as a classifier is trained on them, a batch at a time."""
        if self.kind != "batch_norm":
            return self(rows)
        variance, mean = torch.var_mean(rows, dim=0, correction=0)
        return (rows - mean) * (variance + 1e-5).rsqrt()


def moments(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation [D] of the rows of [N, D] in float64, a chunk at a time.

    Chan, Golub and LeVeque 1983 (Algorithms for computing the sample variance), equation 2.1: without cancellation.
    """
    mean = squares = torch.zeros(features.shape[1], dtype=torch.float64, device=features.device)
    count = 0
    for chunk in torch.split(features, CHUNK_ROWS):
        rows = chunk.double()
        own = rows.mean(dim=0)
        total, moved = count + len(rows), own - mean
        squares = squares + (rows - own).square_().sum(dim=0) + moved**2 * (count * len(rows) / total)
        mean = mean + moved * (len(rows) / total)
        count = total
    return mean, (squares / count).sqrt()


def rows_of(features: Tensor, index: Tensor, device: torch.device) -> Tensor:
    """Rows [B, D] by their places, float32 or, of float64 features, that, on the device that calculates."""
    return features.index_select(0, index.to(features.device)).to(device, _working(features))


def _working(features: Tensor) -> torch.dtype:
    return torch.float64 if features.dtype == torch.float64 else torch.float32


def softmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Shares [G, K, B] that add up to 1 over K, and the logarithms [G, B] of what the exponentials were divided by.

    `torch.softmax` of ten classes, each image's side by side, takes ten times as long on a CPU.
    """
    top = logits.amax(dim=1, keepdim=True)
    shares = (logits - top).exp_()
    total = shares.sum(dim=1, keepdim=True)
    return shares.div_(total), (top + total.log())[:, 0]


def chunks_of(features: Tensor, index: Tensor, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Places and rows of features, a chunk at a time."""
    for part in torch.split(index, CHUNK_ROWS * (GPU_CHUNKS if device.type == "cuda" else 1)):
        yield part, rows_of(features, part, device)


def device_for(features: Tensor) -> torch.device:
    """Where to calculate: on a GPU where this process has one, else where the features lie."""
    return torch.device("cuda") if torch.cuda.is_available() else features.device


def num_held_out(counts: Int64s, share: float) -> Int64s:
    """Images of each class that are held out [K], of its number of images [K]; at least one of each stays."""
    wanted = np.floor(counts * share + 0.5).astype(np.int64)
    return np.asarray(np.clip(wanted, 0, np.maximum(counts - 1, 0)), dtype=np.int64)


def hold_out(labels: Tensor, num_classes: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Places of the images that are trained on and of those that are held out, a share of each class, in order.

    Which ones is a function of seed, place and labels.

    Args:
        labels: int64 [N].
        num_classes: labels lie in [0, num_classes).
        share: in (0, 1), rounded to whole images of each class.
        seed: of the choice.
    """
    classes = labels.cpu().numpy()
    counts = np.bincount(classes, minlength=num_classes)
    keys = hash_rows(hash_words(_HOLD_OUT, seed), np.arange(len(classes)))
    order = np.lexsort((keys, classes))
    place = np.arange(len(classes)) - np.repeat(np.cumsum(counts) - counts, counts)  # inside the class
    is_held = np.zeros(len(classes), dtype=bool)
    is_held[order] = place < np.repeat(num_held_out(counts, share), counts)
    return torch.from_numpy(np.flatnonzero(~is_held)), torch.from_numpy(np.flatnonzero(is_held))


def nothing_held_out(images: Labelled, share: float) -> bool:
    """Whether no class has images enough that one is held out, as far as that is known."""
    return images.counts is not None and not num_held_out(images.counts, share).any()


def check_sets(train: FeatureSet, test: FeatureSet, num_classes: int) -> None:
    """Refuse sets that have no meaning for a classifier, see `FeatureSet.check`; further stages are looked at, too.

    Raises:
        ConfigError: see there.
    """
    for split, rows in (("train", train), ("test", test)):
        for stage in (FEATURES, *rows.stages):
            rows.at(stage).check(split if stage == FEATURES else f"{split} {stage}", num_classes)


def stages_in(train: FeatureSet, stages: Iterable[str]) -> list[str]:
    """Those of the stages that these features have; raw pixels have none."""
    return [stage for stage in dict.fromkeys(stages) if stage == FEATURES or stage in train.stages]


def suffix_of(stage: str) -> str:
    """What the names of metrics of a stage end in."""
    return "" if stage == FEATURES else f"_{stage}"


def names_of_tops(stages: Sequence[str], num_classes: int) -> list[str]:
    """Names of the metrics that `top_metrics` makes of each stage."""
    tops = ("top1", "top5") if num_classes > 5 else ("top1",)
    return [f"{top}{suffix_of(stage)}" for stage in dict.fromkeys(stages) for top in tops]


def top_metrics(scores: Tensor, labels: Tensor, what: str, stage: str = FEATURES) -> list[Metric]:
    """Share of the test images whose class is the first, and of more than five classes among the first five.

    Args:
        scores: [N, K].
        labels: int64 [N].
        what: begins the titles, such as `Linear probe`.
        stage: whose features they are of.
    """
    of_stage = f" of {stage}" if stage else ""
    labels, metrics = labels.to(scores.device), []
    for k in (1, 5) if scores.shape[1] > 5 else (1,):
        name, title = f"top{k}{suffix_of(stage)}", f"{what}{of_stage}, top-{k}"
        hits = top_k_hits(scores, labels, k)
        metrics.append(mean_of(name, hits, title=title, is_headline=k == 1 and stage == FEATURES))
    return metrics


def accuracy_by_class(scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Percent of the test images of each class that get it, by the class's number; classes without images are out."""
    labels, num_classes = labels.to(scores.device), scores.shape[1]
    hits = top_k_hits(scores, labels, 1)
    total = torch.bincount(labels, minlength=num_classes).tolist()
    right = torch.bincount(labels[hits], minlength=num_classes).tolist()
    return {str(label): 100 * right[label] / total[label] for label in range(num_classes) if total[label]}


def curves(title: str, x: str, y: str, lines: dict[str, list[list[float]]]) -> dict[str, Any]:
    """A drawing of `Findings.figures["curves"]`."""
    return {title: {"x": x, "y": y, "lines": lines}}
