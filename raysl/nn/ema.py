"""A teacher: an exponential moving average (EMA) of a network's weights."""

import copy
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from raysl.nn.drop_path import Drawing

BufferRule = Literal["own", "copy", "ema"]


class Teacher(nn.Module):
    """A copy of a network, without gradients, that follows it (MoCo, arXiv 1911.05722, eq. 2; BYOL, 2006.07733, eq. 1).

    Create it in a method's `__init__`, so that it is saved with the method, and update it in `after_update`. Student
    and teacher are matched by parameter names, so `convert_sync_batch_norm` may replace layers in one or both. A
    student may contain more than its teacher (BYOL's predictor).

    Pass several parts as one network, `Teacher(nn.Sequential(backbone, projector))`, here and at each update. Like any
    module, it is in training mode while the method is; call `eval()` on it in a step where the paper does. It never
    drops layers and never moves positions, whatever the student does (DINO, arXiv 2104.14294, and all since).

    >>> student = nn.Linear(1, 1, bias=False)
    >>> teacher = Teacher(student)
    >>> with torch.no_grad():
    ...     before, _ = student.weight.item(), student.weight.add_(1.0)
    >>> teacher.update(student, momentum=0.9)
    >>> round(teacher.module.weight.item() - before, 4)
    0.1
    """

    def __init__(self, student: nn.Module, buffers: BufferRule = "own") -> None:
        """Start as a copy of the student, buffers included.

        Args:
            student: the network to follow.
            buffers: effect of an update on buffers, such as running statistics: "own" leaves them, so that they follow
                the teacher's own inputs (MoCo, BYOL, DINO); "copy" takes the student's (SwAV with a momentum encoder);
                "ema" averages floating-point buffers like parameters and copies others, such as counts.

        Raises:
            ValueError: if `buffers` is anything else.
        """
        super().__init__()
        if buffers not in ("own", "copy", "ema"):
            raise ValueError(f"buffers={buffers!r} must be 'own', 'copy' or 'ema'")
        self.module = frozen_copy(student)
        for module in self.module.modules():
            if isinstance(module, Drawing):
                module.settle()
        self._rule = buffers

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the network's output, without gradients."""
        return self.module(*args, **kwargs)

    @torch.no_grad()
    def update(self, student: nn.Module, momentum: float) -> None:
        """Move to momentum * teacher + (1 - momentum) * student; 0 makes it a copy, bit for bit.

        Frozen parameters of the student count like all others. Nothing is read back from the device.

        Raises:
            ValueError: if the momentum is outside [0, 1], or a parameter of the teacher is missing in the student or
                has another shape there.
        """
        if not 0 <= momentum <= 1:
            raise ValueError(f"the momentum of a teacher is {momentum}; give a number in [0, 1]")
        pairs = _pairs(self.module.named_parameters(), student.named_parameters(remove_duplicate=False))
        copied: list[tuple[Tensor, Tensor]] = []
        if self._rule != "own":
            for pair in _pairs(self.module.named_buffers(), student.named_buffers(remove_duplicate=False)):
                is_averaged = self._rule == "ema" and pair[0].is_floating_point()
                (pairs if is_averaged else copied).append(pair)
        if pairs:
            torch._foreach_lerp_([teacher for teacher, _ in pairs], [value for _, value in pairs], 1 - momentum)
        if copied:
            torch._foreach_copy_([teacher for teacher, _ in copied], [value for _, value in copied])


def frozen_copy(module: nn.Module) -> nn.Module:
    """Return a deep copy whose parameters take no gradients and have none."""
    copied = copy.deepcopy(module).requires_grad_(False)
    for parameter in copied.parameters():
        parameter.grad = None
    return copied


def _pairs(teacher: Iterable[tuple[str, Tensor]], student: Iterable[tuple[str, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Pair each tensor of the teacher with the student's tensor of that name, in the teacher's type."""
    students, pairs = dict(student), []
    for name, tensor in teacher:
        if name not in students or students[name].shape != tensor.shape:
            has = f"none, but {next(iter(students), 'nothing')}"
            if name in students:
                has = f"it as {list(students[name].shape)}"
            raise ValueError(
                f"the teacher has {name} as {list(tensor.shape)}, and the student has {has}; give the modules that the "
                "teacher was made from, in the same order and not wrapped"
            )
        pairs.append((tensor, students[name].to(tensor)))
    return pairs
