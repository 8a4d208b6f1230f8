"""Tensors of shapes alone, and what operations on them would take: memory, FLOPs, bytes.

While a `Shapes` is open, tensors above some size have a shape and a type and no memory, so networks of any size fit
anywhere and take no time. Small tensors that no such tensor had a part in stay real, with numbers: masks, draws and
schedules are those of a run.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import finalize

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SMALL = 1 << 16
"""Elements up to which new tensors are real."""
OTHERS = "activations"
"""Part of tensors that `Shapes.assign` was not called for."""

_FREE = ("aten.empty", "aten.new_empty", "aten.detach", "aten.lift_fresh", "aten.alias", "aten._unsafe_view")
_READS = ("aten._local_scalar_dense", "aten.equal", "aten.is_nonzero")
_INDEXED = ("aten.index.", "aten._unsafe_index.", "aten.index_put", "aten._index_put_impl_")
_ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"


class Shapes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs operations without numbers, and counts them.

    >>> with Shapes() as shapes:
    ...     product = torch.zeros(512, 1024, dtype=torch.bfloat16) @ torch.zeros(1024, 256, dtype=torch.bfloat16)
    >>> sum(flops for flops, _, _ in shapes.work), shapes.live
    (268435456, Counter({'activations': 262144}))

    Attributes:
        live: bytes in memory by part.
        peak: `live` at the moment of the most bytes since `restart`.
        work: costs of each operation since `restart`: FLOPs of products, bytes read and written, and whether the
            products are of half precision.
        answer: result of comparisons that are read: False ends loops of initialisation, which draw until all numbers
            fit.
        exchanged, collectives: bytes of tensors that are exchanged with other ranks, and how often, since `restart`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.live: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self.work: list[tuple[int, int, bool]] = []
        self.answer = False
        self.exchanged = self.collectives = 0
        self._total = self._most = 0
        self._parts: dict[int, str] = {}
        self._passes = False

    def restart(self) -> None:
        """Count anew; what is in memory stays."""
        self.peak, self._most = Counter(self.live), self._total
        self.work.clear()
        self.exchanged = self.collectives = 0

    def assign(self, part: str, tensors: Iterable[Tensor]) -> None:
        """Count the memory of tensors to a part from now on."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            before = self._parts.get(storage._cdata)
            if before is not None and before != part:
                self.live[before] -= storage.nbytes()
                self.live[part] += storage.nbytes()
                self._parts[storage._cdata] = part

    def shape_of(self, values: Tensor) -> Tensor:
        """Return a tensor without numbers of the same shape and type."""
        if is_shape(values):
            return values
        self._passes = True  # the mode below sees what FakeTensorMode does inside
        try:
            with self.fake:
                shaped = torch.empty(tuple(values.shape), dtype=values.dtype)
        finally:
            self._passes = False
        self._note(shaped)
        return shaped

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._passes:
            return func(*args, **kwargs)
        name = str(func)
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        shapes = [x for x in tensors if is_shape(x)]
        if name.startswith("c10d"):
            self.collectives += 1
            # the tensors of each argument: those that are sent, and those that are received
            parts = ([x for x in tree_leaves(arg) if isinstance(x, Tensor)] for arg in args)
            self.exchanged += max((sum(map(_size, part)) for part in parts), default=0)
        if not shapes:
            return self._without_shapes(func, args, kwargs, bool(tensors))
        if name.startswith(_READS):
            return self._read(args[0])
        # the shape of a result that a mask selects depends on the mask's numbers, not on its shape
        if name.startswith(_INDEXED):
            args = (args[0], [_places(index, args) for index in args[1]], *args[2:])
        if not is_shape(args[0]) and isinstance(args[0], Tensor) and func._schema.is_mutable:
            return args[0]  # a small tensor keeps its numbers
        with self.fake:
            result = func(*args, **kwargs)
        self._count(func, name, args, kwargs, result)
        return result

    def _read(self, values: Tensor) -> object:
        """Return the number that a read gives: 1 of the tensor's type, and `answer` of a comparison."""
        return 1.0 if values.is_floating_point() else self.answer if values.dtype == torch.bool else 1

    def _without_shapes(self, func: Any, args: Any, kwargs: Any, has_tensors: bool) -> Any:
        # a new tensor, as of torch.zeros, is made without numbers first, and made again with them if it is small
        if not has_tensors:
            with self.fake:
                shaped = func(*args, **kwargs)
            if isinstance(shaped, Tensor) and shaped.numel() > SMALL:
                self._note(shaped)
                return shaped
        with unset_fake_temporarily():
            return func(*args, **kwargs)

    def _count(self, func: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        results = [x for x in tree_leaves(result) if is_shape(x)]
        for shaped in results:
            self._note(shaped)
        if _is_free(func, name):
            return
        tensors = [x for x in tree_leaves((args, kwargs)) if is_shape(x)]
        flops = _flops(func, name, args, kwargs, result)
        is_half = any(x.dtype in (torch.bfloat16, torch.float16) for x in tensors)
        self.work.append((flops, sum(map(_size, (*tensors, *results))), is_half))

    def _note(self, shaped: Tensor) -> None:
        storage = shaped.untyped_storage()
        key = storage._cdata
        # a view shares the storage of another tensor and takes no memory of its own
        if key in self._parts:
            return
        size = storage.nbytes()
        self._parts[key] = OTHERS
        self.live[OTHERS] += size
        self._total += size
        finalize(storage, self._free, key, size)
        if self._total > self._most:
            self._most, self.peak = self._total, Counter(self.live)

    def _free(self, key: int, size: int) -> None:
        self.live[self._parts.pop(key)] -= size
        self._total -= size


def is_shape(x: object) -> bool:
    """Whether it is a tensor without numbers."""
    return isinstance(x, FakeTensor)


def to_shapes(module: nn.Module, shapes: Shapes) -> None:
    """Replace all parameters and buffers of a module by tensors without numbers; those that are shared stay so."""
    new: dict[int, Tensor] = {}
    for part in module.modules():
        for values in (part._parameters, part._buffers):
            for name, value in values.items():
                if value is None or is_shape(value):
                    continue
                if id(value) not in new:
                    shape = shapes.shape_of(value.detach())
                    new[id(value)] = nn.Parameter(shape, value.requires_grad) if values is part._parameters else shape
                values[name] = new[id(value)]  # type: ignore[assignment]


@contextmanager
def gradients_as_part(module: nn.Module, shapes: Shapes, part: str) -> Iterator[None]:
    """Count gradients of the module's parameters to a part as soon as they are there, while it is open."""

    def assign(parameter: Tensor) -> None:
        if parameter.grad is not None:
            shapes.assign(part, [parameter.grad])

    handles = [p.register_post_accumulate_grad_hook(assign) for p in module.parameters() if p.requires_grad]  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _size(values: Tensor) -> int:
    """Return the bytes of a tensor; repeated elements of an expanded one count once."""
    return min(values.numel() * values.element_size(), values.untyped_storage().nbytes())


def _places(index: Any, args: Any) -> Any:
    """Return an index as it is, or in place of a mask the places that it chooses; of a mask without numbers, all."""
    if not isinstance(index, Tensor) or index.dtype not in (torch.bool, torch.uint8) or is_shape(index):
        return index
    if index.dim() != 1:
        raise NotImplementedError(f"an index by a mask of {index.dim()} dimensions cannot be counted")
    with unset_fake_temporarily():
        return index.nonzero()[:, 0]


@cache
def _is_free(func: Any, name: str) -> bool:
    """Whether an operation computes nothing: a view, or memory that is only reserved."""
    return name.startswith((*_FREE, "c10d")) or func.is_view


def _flops(func: Any, name: str, args: Any, kwargs: Any, result: Any) -> int:
    """Return the FLOPs of products, of which a multiply-add has two; 0 of all other operations."""
    from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count  # imports Triton

    if func._overloadpacket in flop_registry:
        return int(flop_registry[func._overloadpacket](*args, **kwargs, out_val=result))
    if name.startswith(_ATTENTION + "_backward"):
        grad, q, k, v = (x.shape for x in args[:4])
        return int(sdpa_backward_flop_count(grad, q, k, v))  # type: ignore[no-untyped-call]
    if name.startswith(_ATTENTION):
        return int(sdpa_flop_count(*(x.shape for x in args[:3])))  # type: ignore[no-untyped-call]
    return 0
