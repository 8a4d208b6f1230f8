"""What the plain implementations share: a copy of a method of which nothing but networks and buffers is used, and the
words of the papers as loops over rows."""

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from raysl.data.batch import Batch
from raysl.methods.method import Method
from raysl.schedule import Step
from tests.trajectories.ours import Course, Peer


class Plain(Peer):
    """A method written again. `net` is a copy of raysl's: its networks are called and its buffers are written here,
    none of its steps is."""

    def __init__(self, course: Course) -> None:
        self.net: Any = copy.deepcopy(course.begun)
        self.config = course.config
        self.ended = course.ended

    def trained(self) -> list[Any]:
        """All that raysl trains."""
        return [parameter for parameter in self.net.parameters() if parameter.requires_grad]

    def pairs(self, ended: Method) -> list[tuple[str, Tensor, Tensor]]:
        """Everything that a checkpoint of the method holds."""
        found, expected = ended.state_dict(), self.net.state_dict()
        assert found.keys() == expected.keys()
        return [(name, value.double(), expected[name].double()) for name, value in found.items()]

    def embed(self, images: Tensor) -> Tensor:
        """Projections of images [B, D]."""
        return self.net.projector(self.net.backbone(images))  # type: ignore[no-any-return]


def unit(row: Tensor) -> Tensor:
    """A vector at length 1."""
    return row / row.square().sum().sqrt()


def units(rows: Iterable[Tensor]) -> Tensor:
    """Vectors at length 1, [n, D]."""
    return torch.stack([unit(row) for row in rows])


def log_softmax(scores: Tensor) -> Tensor:
    """Of one row [K]."""
    shifted = scores - scores.max().detach()
    return shifted - shifted.exp().sum().log()


def cross_entropy(codes: Iterable[Tensor], scores: Iterable[Tensor]) -> Tensor:
    """Mean over rows of -sum of code times log of softmax."""
    return mean(-(code * log_softmax(row)).sum() for code, row in zip(codes, scores, strict=True))


def class_loss(classes: Iterable[Tensor], scores: Iterable[Tensor]) -> Tensor:
    """Mean over rows of -log of the share of their class."""
    return mean(-log_softmax(row)[number] for number, row in zip(classes, scores, strict=True))


def mean(values: Iterable[Tensor]) -> Tensor:
    """Of tensors of one shape."""
    listed = list(values)
    return torch.stack(listed).sum(dim=0) / len(listed)


def balanced(scores: Tensor, epsilon: float, num_iters: int) -> Tensor:
    """Sinkhorn-Knopp in SwAV's order: prototypes, then rows, of exp(scores / epsilon) [n, K]."""
    q = ((scores - scores.max()) / epsilon).exp()
    n, k = q.shape
    q = q / q.sum()
    for _ in range(num_iters):
        for prototype in range(k):
            q[:, prototype] = q[:, prototype] / q[:, prototype].sum() / k
        for row in range(n):
            q[row] = q[row] / q[row].sum() / n
    return q * n


@torch.no_grad()
def follow(teacher: nn.Module, students: Sequence[nn.Module], share: float) -> None:
    """teacher = share * teacher + (1 - share) * student, number by number of each parameter."""
    own = list(teacher.parameters())
    theirs = [parameter for student in students for parameter in student.parameters()]
    for to, by in zip(own, theirs, strict=True):
        to.copy_(share * to + (1 - share) * by)


@torch.no_grad()
def push(queue: Any, rows: Tensor) -> None:
    """Rows [n, ...] in place of the oldest ones, one by one."""
    for row in rows:
        place = int(queue.pointer)
        queue.keys[place] = row / row.norm(dim=-1, keepdim=True)
        queue.pointer.fill_((place + 1) % len(queue.keys))
        queue.num_filled.fill_(min(int(queue.num_filled) + 1, len(queue.keys)))


@torch.no_grad()
def remember(bank: Tensor, index: Tensor, rows: Tensor, share: float) -> None:
    """Rows of a memory bank: share * old + (1 - share) * new, at length 1."""
    for place, row in zip(index.tolist(), rows, strict=True):
        bank[place] = unit(share * bank[place] + (1 - share) * unit(row))


def cosine_course(step: Step, begin: float, end: float) -> float:
    """Half a cosine from the first update on."""
    return end - (end - begin) * (math.cos(math.pi * step.index / step.total) + 1) / 2


def two(batch: Batch) -> tuple[Tensor, Tensor]:
    """Both views [B, C, H, W]."""
    first, second = batch.views["global"].unbind(1)
    return first, second


def all_views(batch: Batch) -> Tensor:
    """All views [B*V, C, H, W]."""
    return batch.views["global"].flatten(0, 1)
