"""Fits of logistic regressions of cached features at many strengths at once, by L-BFGS."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.benchmarks.classifiers.lbfgs import minimise
from raysl.benchmarks.classifiers.probes import Probes
from raysl.benchmarks.classifiers.scaling import CHUNK_ROWS, Scaling, chunks_of, device_for, rows_of, softmax

MOST_KEPT = 1 << 30
"""Bytes of scaled features that are kept in memory between the passes; more of them are scaled anew in each."""


def fit_logistic(
    features: Tensor,
    labels: Tensor,
    index: Tensor,
    num_classes: int,
    costs: tuple[float, ...],
    scaling: Scaling,
    tolerance: float = 1e-4,
    max_iter: int = 100,
) -> tuple[Probes, Tensor]:
    """Fit a logistic regression of the same rows for each C, all in the same passes over the features.

    The mean of the cross entropies plus |W|^2 / (2 C N) is minimised, from zero weights. The gradient of a class's
    biases sums to zero over classes, so that of all equally good ones those that sum to zero are found.

    Args:
        features: [N, D], maybe mapped into memory: a chunk at a time is read.
        labels: int64 [N] for one regression over all classes; of 1 present, 0 absent and -1 ignore [N, K] for a binary
            one of each class, whose losses add up.
        index: int64 [M], places of the rows that are learned from.
        num_classes: labels lie in [0, num_classes).
        costs: the G values of C.
        tolerance, max_iter: see `minimise`.

    Returns:
        The classifiers, and whether each got within the tolerance, bool [G].
    """
    device = device_for(features)
    dtype = rows_of(features, index[:1], device).dtype
    shape = num_classes, features.shape[1] + 1  # the last column: the biases
    penalty = 1 / (torch.tensor(costs, dtype=dtype, device=device) * len(index))
    rows = _Rows(features, labels, index, scaling, device)

    def evaluate(points: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        loss, grad = _loss_and_gradient(rows, points.view(-1, shape[1]), num_classes)
        gradient, free = grad.view(-1, *shape), points.view(-1, *shape)[..., :-1]  # [A, K, D + 1]
        # the penalty is on the weights, without the biases in the last column
        gradient[..., :-1] += penalty[which, None, None] * free
        return loss + 0.5 * penalty[which] * free.flatten(1).double().square().sum(dim=1), gradient.flatten(1)

    start = torch.zeros(len(costs), shape[0] * shape[1], dtype=dtype, device=device)
    points, is_done = minimise(evaluate, start, tolerance, max_iter)
    weight = points.view(-1, shape[1])
    return Probes(weight[:, :-1].contiguous(), weight[:, -1], num_classes, scaling), is_done


class _Rows:
    """Scaled rows and labels in chunks, for repeated passes; kept in memory if they fit.

    Args:
        features: [N, D].
        labels: int64 [N] or [N, K].
        index: int64 [M], the places of the rows.
    """

    def __init__(self, features: Tensor, labels: Tensor, index: Tensor, scaling: Scaling, device: torch.device) -> None:
        self.features, self.scaling, self.index, self.device = features, scaling, index, device
        self.targets = labels[index.to(labels.device)].to(device)
        is_kept = len(index) * features.shape[1] * 4 <= MOST_KEPT
        self.kept = torch.cat(list(self._scaled())) if is_kept else None

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        first = 0
        for x in self._scaled() if self.kept is None else torch.split(self.kept, CHUNK_ROWS):
            yield x, self.targets[first : first + len(x)]
            first += len(x)

    def _scaled(self) -> Iterator[Tensor]:
        return (self.scaling(rows) for _, rows in chunks_of(self.features, self.index, self.device))


def _loss_and_gradient(rows: _Rows, weight: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean loss over rows, float64 [A], of classifiers [A K, D + 1], and its gradient of their shape."""
    loss = torch.zeros(len(weight) // num_classes, dtype=torch.float64, device=weight.device)
    grad = torch.zeros_like(weight)
    for x, target in rows:
        logits = torch.addmm(weight[:, -1:], weight[:, :-1], x.T).view(-1, num_classes, len(x))  # [A, K, B]
        chunk_loss, error = (_cross_entropy if target.ndim == 1 else _binary_cross_entropies)(logits, target)
        loss += chunk_loss
        flat = error.flatten(0, 1)  # [A K, B]
        grad[:, :-1].addmm_(flat, x)
        grad[:, -1] += flat.sum(dim=1)
    return loss / len(rows), grad / len(rows)


def _cross_entropy(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross entropy summed over rows, float64 [A], of logits [A, K, B] and labels [B], and its gradient by
    the logits."""
    columns = torch.arange(len(target), device=target.device)
    named = logits[:, target, columns]  # [A, B]
    error, norm = softmax(logits)
    error[:, target, columns] -= 1
    return (norm - named).double().sum(dim=1), error


def _binary_cross_entropies(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same for the binary cross entropies of all classes that count in labels [B, K]."""
    wanted, counts = (target.T == 1).to(logits.dtype), (target.T >= 0).to(logits.dtype)  # [K, B]
    # softplus(x) - y x is the cross entropy of a sigmoid, which does not overflow for large logits
    losses = (F.softplus(logits) - wanted * logits) * counts
    return losses.double().sum(dim=(1, 2)), (logits.sigmoid() - wanted) * counts
