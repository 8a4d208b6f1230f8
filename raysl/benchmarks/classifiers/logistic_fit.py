"""Fits of logistic regressions of cached features at many strengths at once, by L-BFGS.

L-BFGS (Liu and Nocedal 1989; Nocedal and Wright, algorithm 7.5) solves many smooth convex problems of one size side by
side, each with its own curvature and step, so that one pass over shared data serves all of them; one that is done takes
no further part.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

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


Evaluate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From points [A, P] of problems with the numbers int64 [A] to their losses, float64 [A], and gradients [A, P]."""

MOST_HALVINGS = 30
SUFFICIENT = 1e-4
"""Share of the decrease that the slope promises with which a step is taken (Armijo's rule)."""


@torch.no_grad()
def minimise(
    evaluate: Evaluate, start: Tensor, tolerance: float, max_iter: int, memory: int = 10
) -> tuple[Tensor, Tensor]:
    """Return the minima of the problems, and which problems converged.

    Args:
        evaluate: the problems, each convex.
        start: [G, P].
        tolerance: a problem is done when no element of its gradient is larger.
        max_iter: steps of each problem.
        memory: steps that the curvature is taken from.

    Returns:
        Points [G, P], and bool [G]: whether the gradient is within the tolerance, or rounding leaves no step down.
    """
    solution, is_done = start.clone(), torch.zeros(len(start), dtype=torch.bool, device=start.device)
    is_stuck = is_done.clone()
    which, x, curvature = torch.arange(len(start), device=start.device), start, _Curvature(memory)
    loss, grad = evaluate(x, which)
    for _ in range(max_iter):
        is_done[which] = grad.abs().amax(dim=1) <= tolerance
        is_active = ~is_done[which] & ~is_stuck[which]
        if not is_active.all():
            which, x, loss, grad = which[is_active], x[is_active], loss[is_active], grad[is_active]
            curvature.keep(is_active)
            if not len(which):
                break
        step, new_loss, new_grad = _step(evaluate, which, x, loss, grad, curvature.direction(grad))
        is_stuck[which] = (step == 0).all(dim=1)
        curvature.learn(step, new_grad - grad)
        x, loss, grad = x + step, new_loss, new_grad
        solution[which] = x
    # the loop checks a point before it steps from there; this checks the points of the last step
    is_done[which] = grad.abs().amax(dim=1) <= tolerance
    return solution, is_done | is_stuck


def _step(
    evaluate: Evaluate, which: Tensor, x: Tensor, loss: Tensor, grad: Tensor, direction: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Take a line-search step in each problem [A, P]; return it with the loss and the gradient after it, 0 where no
    step lowers the loss."""
    slope = (direction * grad).sum(dim=1).double()
    slack = 4 * torch.finfo(x.dtype).eps * loss.abs()  # rounding error of the loss
    size = torch.ones_like(slope)
    new_loss, new_grad = loss.clone(), grad.clone()
    open_ = torch.arange(len(x), device=x.device)
    # halve the step of a problem until its loss falls enough; only problems still open are evaluated again
    for _ in range(MOST_HALVINGS):
        trial = x[open_] + size[open_, None].to(x.dtype) * direction[open_]
        its_loss, its_grad = evaluate(trial, which[open_])
        is_down = its_loss <= (loss + SUFFICIENT * size * slope + slack)[open_]  # false of NaN
        new_loss[open_[is_down]], new_grad[open_[is_down]] = its_loss[is_down], its_grad[is_down]
        open_ = open_[~is_down]
        if not len(open_):
            break
        size[open_] /= 2
    size[open_] = 0
    return size[:, None].to(x.dtype) * direction, new_loss, new_grad


@dataclass
class _Pair:
    """A step of each problem [A, P], the change of the gradient along it, and the inverse of their product [A, 1]; 0
    marks a pair to ignore."""

    step: Tensor
    change: Tensor
    weight: Tensor


class _Curvature:
    """An estimate of the inverse Hessian from the last steps."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.pairs: list[_Pair] = []
        self.scale: Tensor | None = None  # [A, 1]

    def learn(self, step: Tensor, change: Tensor) -> None:
        """Add a step and the change of the gradient along it."""
        product = (step * change).sum(dim=1, keepdim=True)
        square = (change * change).sum(dim=1, keepdim=True)
        # a step along which the gradient does not rise would make the estimate indefinite, so it gets weight 0
        is_curved = product > torch.finfo(step.dtype).eps * square
        weight = torch.where(is_curved, 1 / product.masked_fill(~is_curved, 1.0), 0.0)
        scale = product / square.masked_fill(~is_curved, 1.0)
        self.scale = torch.where(is_curved, scale, torch.ones_like(scale) if self.scale is None else self.scale)
        self.pairs = [*self.pairs, _Pair(step, change, weight)][-self.memory :]

    def keep(self, is_active: Tensor) -> None:
        """Keep the pairs of active problems only."""
        self.pairs = [
            _Pair(pair.step[is_active], pair.change[is_active], pair.weight[is_active]) for pair in self.pairs
        ]
        self.scale = None if self.scale is None else self.scale[is_active]

    def direction(self, grad: Tensor) -> Tensor:
        """Return the descent direction [A, P]: minus the estimated inverse Hessian times the gradient."""
        if self.scale is None:
            # no curvature is known before the first step: go down the gradient, by a length of at most 1
            steepness = grad.square().sum(dim=1, keepdim=True).sqrt()
            return -grad / steepness.clamp(min=1.0)
        # two-loop recursion (algorithm 7.4): from the newest step to the oldest, scale, and back
        rest: Tensor = grad
        shares: list[Tensor] = []
        for pair in reversed(self.pairs):
            shares.append(pair.weight * (pair.step * rest).sum(dim=1, keepdim=True))
            rest = rest - shares[-1] * pair.change
        rest = self.scale * rest
        for pair, share in zip(self.pairs, reversed(shares), strict=True):
            rest = rest + (share - pair.weight * (pair.change * rest).sum(dim=1, keepdim=True)) * pair.step
        return -rest
