"""L-BFGS of many smooth convex problems of one size at once (Liu and Nocedal 1989; Nocedal and Wright, algorithm 7.5).

The problems go on side by side, each with its own curvature and step, so that one pass over shared data can serve all
of them; one that is done takes no further part.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

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
