"""A teacher: a copy of a network that follows it slowly, as an exponential moving average (EMA) of its weights."""

import copy
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from raysl.nn.drop_path import DropPath

BufferRule = Literal["own", "copy", "ema"]


class Teacher(nn.Module):
    """A copy of a network, without gradients, that follows it (MoCo, arXiv 1911.05722, eq. 2; BYOL, 2006.07733, eq. 1).

    Made in a method's `__init__`, so that it is saved with it, and updated in `after_update`. Student and teacher are
    matched by the names of their parameters, so layers may have been replaced by ones of the same names, as by
    `convert_sync_batch_norm`, in one or both. A student may hold more than its teacher (BYOL's predictor).

    A network in several parts is given as one: `Teacher(nn.Sequential(backbone, projector))`, and so at each update.
    Like any module it is in training mode while the method is; call `eval()` on it in a step where the paper does. It
    leaves out no layers, whatever the student's drop path (DINO, arXiv 2104.14294, and all since).
    """

    def __init__(self, student: nn.Module, buffers: BufferRule = "own") -> None:
        """Start as a copy of the student, buffers included.

        Args:
            student: the network to follow.
            buffers: what an update does to buffers, such as running statistics: "own" leaves them, so that the teacher
                tracks what it sees (MoCo, BYOL, DINO); "copy" takes the student's (SwAV with a momentum encoder);
                "ema" averages those of floating point like parameters, and copies others, such as counts.

        Raises:
            ValueError: if `buffers` is another word.
        """
        super().__init__()
        if buffers not in ("own", "copy", "ema"):
            raise ValueError(f"buffers is {buffers!r}; it is one of 'own', 'copy', 'ema'")
        self.module = copy_of(student)
        for module in self.module.modules():
            if isinstance(module, DropPath):
                module.rate = 0.0
        self._rule = buffers

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the network gives, without gradients."""
        return self.module(*args, **kwargs)

    @torch.no_grad()
    def update(self, student: nn.Module, momentum: float) -> None:
        """Move to momentum * teacher + (1 - momentum) * student; 0 makes it a copy, bit for bit.

        Frozen parameters of the student count like all others. Nothing is read back from the device.

        Raises:
            ValueError: if the momentum is outside 0 to 1, or the student lacks a parameter of the teacher, or has it in
                another shape.
        """
        if not 0 <= momentum <= 1:
            raise ValueError(f"the momentum of a teacher is {momentum}; it lies between 0 and 1")
        pairs = _pairs(self.module.named_parameters(), student.named_parameters(remove_duplicate=False))
        copied: list[tuple[Tensor, Tensor]] = []
        if self._rule != "own":
            buffers = _pairs(self.module.named_buffers(), student.named_buffers(remove_duplicate=False))
            follows = [self._rule == "ema" and own.is_floating_point() for own, _ in buffers]
            pairs += [pair for pair, is_averaged in zip(buffers, follows, strict=True) if is_averaged]
            copied = [pair for pair, is_averaged in zip(buffers, follows, strict=True) if not is_averaged]
        if pairs:
            torch._foreach_lerp_([own for own, _ in pairs], [to for _, to in pairs], 1 - momentum)
        if copied:
            torch._foreach_copy_([own for own, _ in copied], [to for _, to in copied])


def copy_of(module: nn.Module) -> nn.Module:
    """A deep copy whose parameters take no gradients and have none."""
    copied = copy.deepcopy(module).requires_grad_(False)
    for parameter in copied.parameters():
        parameter.grad = None
    return copied


def _pairs(own: Iterable[tuple[str, Tensor]], student: Iterable[tuple[str, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Each tensor of the teacher with the student's of its name, in the teacher's type."""
    found, pairs = dict(student), []
    for name, tensor in own:
        if name not in found or found[name].shape != tensor.shape:
            has = f"it as {list(found[name].shape)}" if name in found else f"none, but {next(iter(found), 'nothing')}"
            raise ValueError(
                f"the teacher has {name} as {list(tensor.shape)}, and the student has {has}; give the modules that the "
                "teacher was made from, in the same order and not wrapped"
            )
        pairs.append((tensor, found[name].to(tensor)))
    return pairs
