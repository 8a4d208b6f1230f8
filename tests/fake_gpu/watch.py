"""A watch over a GPU that is not there: what waits for it, what is copied, and what would fail on it.

    with pretended_gpu() as watch:                      # tests/fake_gpu/pretended.py
        x = torch.randn(4, 4, device="cuda")            # a shape on a device, without numbers
        watch.step = 1
        x.sum().item()                                  # 1.0, and an event
    watch.events                                        # [Event(kind="read", ..., step=1, place="...")]

Tensors on "cuda" are torch's FakeTensors; tensors on the CPU stay real, so what the host draws, decodes and counts has
its numbers. What is read from the device is 1, 0 or True: branches on such values are not those of a real run.
"""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any
from weakref import finalize

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.frames import path_in_raysl

CUDA = torch.device("cuda", 0)

READ = "read"
"""A number goes to the host: `.item()`, `bool()`, `torch.equal`."""
TO_HOST = "to host"
"""A copy to the CPU that is waited for."""
TO_HOST_LATE = "to host late"
"""A copy into pinned memory that nobody waits for."""
TO_GPU = "to GPU"
"""A copy to the GPU that is waited for."""
TO_GPU_LATE = "to GPU late"
"""A copy from pinned memory that nobody waits for."""
TO_GPU_PAGEABLE = "to GPU pageable"
"""A copy from pageable memory with `non_blocking`: the driver stages it, and up to 64 KB nobody waits."""
SHAPE = "shape"
"""The host waits for the shape of a result: `nonzero`, a mask as an index."""
SOLVER = "solver"
"""A factorisation of cuSOLVER whose error code the host waits for."""
MISMATCH = "mismatch"
"""Tensors of two devices in one operation, which fails on a GPU."""
GENERATOR = "generator"
"""A generator of the CPU for numbers on the GPU, which fails on a GPU."""

WAITS = frozenset({READ, TO_HOST, TO_GPU, SHAPE, SOLVER})
ERRORS = frozenset({MISMATCH, GENERATOR})
STAGED = 64 * 1024
"""Bytes that the driver copies from pageable memory without waiting."""

_READS = ("aten._local_scalar_dense", "aten.equal", "aten.is_nonzero", "aten._linalg_check_errors")
_SHAPES = ("aten.nonzero", "aten.masked_select", "aten._unique", "aten.unique_", "aten.bincount")
_REPEATS = "aten.repeat_interleave.Tensor"
_SOLVERS = ("aten._linalg_eigh", "aten._linalg_svd", "aten.linalg_eig", "aten.linalg_lstsq", "aten.linalg_qr")
_ONLY_WRITE = ("aten._fused_sgd_",)
"""Operations without a result, whose shapes torch has no rule for."""
_INDEXED = ("aten.index", "aten._unsafe_index")
_PUT = ("aten.index_put", "aten.index_put_", "aten._index_put_impl_")
_FREE = (
    *("aten.empty", "aten.new_empty", "aten.detach", "aten.lift_fresh", "aten.alias", "aten.is_pinned"),
    *("aten.record_stream", "aten.set_", "aten._unsafe_view", "prim.device", "c10d"),
)


@dataclass(frozen=True)
class Event:
    """Something that happened between host and GPU.

    Args:
        kind: one of the constants of this module.
        what: the operation, and the error if it is one.
        num_bytes: bytes that are copied, or 0.
        phase: part of the step, see `phase_of`.
        step: `Watch.step` at that time.
        place: file and line in raysl, innermost first, or "torch".
    """

    kind: str
    what: str
    num_bytes: int
    phase: str
    step: int
    place: str

    @property
    def is_wait(self) -> bool:
        """Whether the host waits for the GPU; a pageable copy of more than 64 KB counts."""
        return self.kind in WAITS or (self.kind == TO_GPU_PAGEABLE and self.num_bytes > STAGED)

    @property
    def is_error(self) -> bool:
        """Whether a GPU would refuse it."""
        return self.kind in ERRORS


Observer = Callable[[str, Any, Any, str], None]
"""Called with the name, arguments and result of an operation on the GPU, and its phase."""


class Watch(TorchDispatchMode):
    """Runs operations on "cuda" without numbers, and notes what crosses the border.

    Attributes:
        events: in their order.
        step: put into events; whoever drives the training sets it, or replaces it by `clock`.
        clock: returns the step if it is given.
        kernels: operations that compute something on the GPU, by phase; a foreach operation counts as one.
        moved: bytes that they read and write, by phase, as if none were fused.
        observers: called for every operation on the GPU, views and collectives too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.events: list[Event] = []
        self.step = 0
        self.clock: Callable[[], int] | None = None
        self.kernels: Counter[str] = Counter()
        self.moved: Counter[str] = Counter()
        self.observers: list[Observer] = []
        self.pinned: set[int] = set()

    def note(self, kind: str, what: str, num_bytes: int = 0) -> None:
        """Add an event at the place where raysl is now."""
        phase, place = phase_of(sys._getframe(1))
        step = self.step if self.clock is None else self.clock()
        self.events.append(Event(kind, what, num_bytes, phase, step, place))

    @property
    def waits(self) -> list[Event]:
        """Events that the host waits for."""
        return [event for event in self.events if event.is_wait]

    @property
    def errors(self) -> list[Event]:
        """Events that a GPU would refuse."""
        return [event for event in self.events if event.is_error]

    def clear(self) -> None:
        """Forget events and counts."""
        self.events.clear()
        self.kernels.clear()
        self.moved.clear()

    def pin(self, values: Tensor) -> Tensor:
        """Treat the memory of a tensor as pinned, and return the tensor."""
        storage = values.untyped_storage()
        self.pinned.add(storage._cdata)
        finalize(storage, self.pinned.discard, storage._cdata)
        return values

    def is_pinned(self, values: Tensor) -> bool:
        """Whether `pin` was called for its memory."""
        return not is_on_gpu(values) and values.untyped_storage()._cdata in self.pinned

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        is_there = any(is_on_gpu(x) or (isinstance(x, torch.device) and x.type == "cuda") for x in leaves)
        if not is_there:
            return self._on_host(func, args, kwargs)
        name = str(func)
        result = self._on_gpu(func, name, args, kwargs)
        self._count(func, name, (args, kwargs), result)
        return result

    def _on_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        is_pinned = kwargs.get("pin_memory", False)
        with unset_fake_temporarily():
            result = func(*args, **(kwargs | {"pin_memory": False} if is_pinned else kwargs))
        return self.pin(result) if is_pinned else result

    def _count(self, func: Any, name: str, given: Any, result: Any) -> None:
        phase = phase_of(sys._getframe(1))[0]
        if not _is_free(func, name):
            self.kernels[phase] += 1
            self.moved[phase] += _touched(name.partition(".")[2], given[0], result)
        for observer in self.observers:
            observer(name, given, result, phase)

    def _on_gpu(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        base = name.rpartition(".")[0]
        if base in _READS:
            self.note(READ, base)
            return _value(base, args[0])
        if name.startswith(_SHAPES) or name == _REPEATS:
            self.note(SHAPE, base)
            return _of_any_shape(func, base, args, kwargs)
        if base == "aten._to_copy" and (device := kwargs.get("device")) is not None and device.type == "cpu":
            return self._to_host(args[0], kwargs.get("dtype") or args[0].dtype)
        if base == "aten.copy_" and not is_on_gpu(args[0]):
            return self._into_host(*args, **kwargs)
        if base in ("aten._to_copy", "aten.copy_"):
            self._note_to_gpu(base, args[base == "aten.copy_"], _is_late(args, kwargs))
        if base.startswith("aten._foreach_copy"):
            for source in args[1]:
                self._note_to_gpu(base, source, _is_late(args, kwargs))
        if base in _ONLY_WRITE:
            return None
        if base.startswith(_SOLVERS):
            self.note(SOLVER, base)
        if (generator := kwargs.get("generator")) is not None and generator.device.type == "cpu":
            self.note(GENERATOR, f"{base} with a generator of the CPU")
            kwargs = kwargs | {"generator": None}
        if base in _INDEXED or base in _PUT:
            args = self._indexed(base, args)
        return self._run(func, base, args, kwargs)

    def _run(self, func: Any, base: str, args: Any, kwargs: Any) -> Any:
        """Run an operation without numbers; where devices differ, note it and go on as if they did not."""
        args, kwargs = tree_map(lambda x: _shape_of(x, x.device) if _is_real(x) else x, (args, kwargs))
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            if "device" not in str(error):
                raise
            self.note(MISMATCH, f"{base}: {error}")
            args, kwargs = tree_map(lambda x: _shape_of(x, CUDA) if isinstance(x, Tensor) else x, (args, kwargs))
            return func(*args, **kwargs)

    def _to_host(self, source: Tensor, dtype: torch.dtype) -> Tensor:
        self.note(TO_HOST, "aten._to_copy", num_bytes(source))
        return real_like(source, dtype)

    def _into_host(self, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        kind = TO_HOST_LATE if non_blocking and self.is_pinned(target) else TO_HOST
        self.note(kind, "aten.copy_", num_bytes(source))
        with unset_fake_temporarily(), torch.no_grad():
            return target.fill_(1)

    def _note_to_gpu(self, base: str, source: Any, is_late: bool) -> None:
        if not _is_real(source):
            return
        late = TO_GPU_LATE if self.is_pinned(source) else TO_GPU_PAGEABLE
        self.note(late if is_late else TO_GPU, base, num_bytes(source))

    def _indexed(self, base: str, args: Any) -> Any:
        """Replace masks among indices by numbers of rows, and note what the GPU does about indices."""
        values = args[2] if base in _PUT else None
        indices: list[Tensor | None] = []
        for index in args[1]:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                indices.append(None if index is None else self._moved_index(base, index))
                continue
            is_filled = values is not None and values.numel() == 1 and is_on_gpu(index)  # a masked_fill
            if not is_filled:
                self.note(SHAPE, f"{base} by a mask")
            num = 1 if is_filled else _num_chosen(index, values)
            indices += [torch.empty(num, dtype=torch.int64, device=CUDA) for _ in range(index.dim())]
        return (args[0], indices, *args[2:])

    def _moved_index(self, base: str, index: Tensor) -> Tensor:
        if is_on_gpu(index):
            return index
        self.note(TO_GPU, f"{base} by an index of the CPU", num_bytes(index))
        return _shape_of(index, CUDA)


def is_on_gpu(x: object) -> bool:
    """Whether it is a tensor without numbers on the pretended GPU."""
    return isinstance(x, FakeTensor) and x.device.type == "cuda"


def num_bytes(values: Tensor) -> int:
    """Bytes of the elements of a tensor."""
    return values.numel() * values.element_size()


def real_like(values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor on the CPU with the shape of one on the GPU: ones, or zeros of integers."""
    dtype = dtype or values.dtype
    with unset_fake_temporarily():
        return torch.full(tuple(values.shape), dtype.is_floating_point or dtype == torch.bool, dtype=dtype)


PHASES = {
    "from_step": "batch",
    "backward_in_parts": "forward and backward",
    "after_backward": "after backward",
    "add": "finite check",
    "_update": "update",
    "synchronise": "synchronise",
    "after_update": "after update",
    "follow": "average",
    "_observe": "observe",
    "settle": "observe",
    "show": "observe",
    "_save": "save",
    "before_epoch": "before epoch",
    "on_train_start": "start",
    "on_train_end": "end",
}
"""Phases of `fit`, by the function that it calls."""


def phase_of(frame: FrameType | None) -> tuple[str, str]:
    """Return the phase of training that a frame belongs to, or "" outside of `fit`, and its place in raysl."""
    place, inner = "torch", frame
    while frame is not None:
        code = frame.f_code
        path = path_in_raysl(code.co_filename)
        if place == "torch" and path is not None:
            place = f"{path}:{frame.f_lineno}"
        if code.co_name == "fit" and path == "train/loop.py":
            assert inner is not None
            return PHASES.get(inner.f_code.co_name, inner.f_code.co_name), place
        frame, inner = frame.f_back, frame
    return "", place


@cache
def _is_free(func: Any, name: str) -> bool:
    """Whether an operation computes nothing: a view, or memory that is only reserved."""
    return name.startswith(_FREE) or func.is_view


def _touched(operation: str, args: Any, result: Any) -> int:
    """Bytes that an operation reads and writes: of a whole tensor, but of chosen rows where it chooses some."""
    if operation.startswith(("index_select", "index.", "gather", "embedding.")):
        return 2 * num_bytes(result)
    if operation.startswith(("index_copy_.", "index_put_.")):
        return 2 * num_bytes(args[3] if operation.startswith("index_copy_") else args[2])
    return sum(num_bytes(x) for x in tree_leaves((args, result)) if is_on_gpu(x))


def _is_real(x: object) -> bool:
    return isinstance(x, Tensor) and not isinstance(x, FakeTensor)


def _shape_of(x: Tensor, device: torch.device) -> Tensor:
    """Return a tensor without numbers of the same layout."""
    return torch.empty_strided(tuple(x.shape), x.stride(), dtype=x.dtype, device=device)


def _is_late(args: Any, kwargs: Any) -> bool:
    return bool(kwargs.get("non_blocking") or (len(args) > 2 and args[2]))


def _value(base: str, values: Any) -> object:
    """Return the number that a read gives: 1 of the tensor's type, and True of a comparison."""
    if base == "aten._linalg_check_errors":
        return None
    if base != "aten._local_scalar_dense" or values.dtype == torch.bool:
        return True
    return 1.0 if values.is_floating_point() else 1


def _num_chosen(mask: Tensor, values: Tensor | None) -> int:
    """Return how many elements a mask chooses: those of the CPU are counted, on the GPU all are chosen."""
    if not is_on_gpu(mask):
        with unset_fake_temporarily():
            return int(mask.count_nonzero())
    return mask.numel() if values is None or values.dim() == 0 else len(values)


def _of_any_shape(func: Any, base: str, args: Any, kwargs: Any) -> Any:
    """Return what an operation gives if it chooses every element."""
    x = args[0]
    if base.startswith("aten.nonzero"):
        return torch.empty(x.numel(), x.dim(), dtype=torch.int64, device=CUDA)
    if base.startswith("aten.masked_select"):
        return torch.empty(x.numel(), dtype=x.dtype, device=CUDA)
    if base.startswith("aten.bincount"):
        num = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
        return torch.empty(max(num, 1), dtype=torch.int64, device=CUDA)
    if base.startswith("aten.repeat_interleave"):
        return torch.empty(x.numel(), dtype=torch.int64, device=CUDA)
    places = torch.empty(x.numel(), dtype=torch.int64, device=CUDA)
    values = torch.empty(x.numel(), dtype=x.dtype, device=CUDA)
    return (values, places, places)[: len(func._schema.returns)]
