"""Run a chain of transforms on uint8 images: as compiled loops where possible, else as tensor operations."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from raysl.errors import ConfigError
from raysl.transforms.device import to_device
from raysl.transforms.functional import to_float, to_uint8
from raysl.transforms.programs import HAS_KERNELS, Program
from raysl.transforms.transform import Transform

Params = Sequence[dict[str, Tensor]]

CHUNK = 1 << 20
"""Float values per tensor operation on a CPU, few enough for its cache; a GPU takes all at once."""


def apply_chain(transforms: Sequence[Transform], params: Params, images: Tensor, rows: Tensor) -> None:
    """Transform uint8 images in place; between transforms they are floats.

    Args:
        transforms: transforms in their order.
        params: draws of each transform for the B images.
        images: uint8 [N, C, H, W], contiguous, on any device; changed in place.
        rows: indices of the images to change, int64 [B] on the CPU.
    """
    if len(rows) == 0:
        return
    runs = list(_runs(transforms, params, images))
    # One compiled program for the whole chain reads and writes the uint8 images directly.
    if len(runs) == 1 and isinstance(runs[0], tuple):
        from raysl.transforms import kernels

        pixels = images.numpy()
        kernels.run(pixels, rows.numpy(), *runs[0], pixels)
        return
    step = max(1, CHUNK // images[0].numel()) if images.device.type == "cpu" else len(rows)
    for start in range(0, len(rows), step):
        chunk = slice(start, start + step)
        chosen = to_device(rows[chunk], images.device)
        out = to_float(images.index_select(0, chosen))
        for run in runs:
            if isinstance(run, tuple):
                out = _run_program(out, (run[0][chunk], run[1][chunk]))
            else:
                transform, values = run[0]
                changed = transform.apply(out, {name: value[chunk] for name, value in values.items()})
                out = _checked(transform, out, changed)
        images.index_copy_(0, chosen, to_uint8(out))


def _checked(transform: Transform, images: Tensor, changed: object) -> Tensor:
    """Return the images that a transform has made of others; refuse what would be stored as other pixels."""
    what = f"{type(transform).__qualname__}.apply"
    rule = f"return floats {list(images.shape)} in [0, 1], on the device of its images"
    if not isinstance(changed, Tensor):
        raise ConfigError(f"{what} returned {type(changed).__name__}; {rule}")
    if not changed.is_floating_point() or changed.shape != images.shape or changed.device != images.device:
        raise ConfigError(f"{what} returned {changed.dtype} {list(changed.shape)} on {changed.device}; {rule}")
    # a GPU would have to be waited for
    if changed.device.type == "cpu" and not changed.isfinite().all():
        raise ConfigError(f"{what} returned values that are not finite, which would become black pixels; {rule}")
    return changed


Drawn = list[tuple[Transform, dict[str, Tensor]]]


def _runs(transforms: Sequence[Transform], params: Params, images: Tensor) -> Iterator[Program | Drawn]:
    """Split the chain into compiled programs of consecutive transforms, and single transforms without a program."""
    size = (images.shape[2], images.shape[3])
    can_compile = HAS_KERNELS and images.device.type == "cpu" and images.shape[1] == 3
    drawn = list(zip(transforms, params, strict=True))
    programs = [transform.program(values, size) if can_compile else None for transform, values in drawn]
    for is_compiled, group in groupby(zip(drawn, programs, strict=True), key=lambda pair: pair[1] is not None):
        members = list(group)
        if is_compiled:
            codes, numbers = zip(*(program for _, program in members if program is not None), strict=True)
            yield np.concatenate(codes, axis=1), np.concatenate(numbers, axis=1)
        else:
            yield from ([member] for member, _ in members)


def _run_program(images: Tensor, program: Program) -> Tensor:
    from raysl.transforms import kernels

    out = images.clone(memory_format=torch.contiguous_format)
    kernels.run_in_place(out.numpy(), *program)
    return out


def row_numbers(num_samples: int, num_views: int, view: int) -> Tensor:
    """Return the rows of one view among the images [B * V, ...] of a group, int64 [B].

    >>> row_numbers(num_samples=3, num_views=2, view=1)
    tensor([1, 3, 5])
    """
    return torch.arange(num_samples) * num_views + view
