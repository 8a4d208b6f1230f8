"""`pretended_gpu()`: while it is open, device "cuda" works without a GPU, and a watch notes what happens on it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from tests.fake_gpu import driver
from tests.fake_gpu.watch import CUDA, READ, Watch, is_on_gpu

needs_pretended_gpu = pytest.mark.skipif(driver.problem() is not None, reason=driver.problem() or "")
"""Skips a test where a GPU cannot be pretended."""


@contextmanager
def pretended_gpu() -> Iterator[Watch]:
    """Pretend a GPU: `torch.device("cuda")` takes tensors that have shapes and types, and no numbers.

    Modules move by `.to("cuda")`, autograd, autocast, optimizers and loss scaling run. Threads are not watched, so a
    loop has to make its batches on the calling thread: see `tests.fake_gpu.training`.
    """
    watch = Watch()
    with ExitStack() as stack:
        stack.enter_context(driver.answered())
        for target, name, stand_in in _stand_ins(watch):
            stack.enter_context(mock.patch.object(target, name, stand_in))
        swaps = torch.__future__.get_swap_module_params_on_conversion()
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, swaps)
        torch.__future__.set_swap_module_params_on_conversion(True)  # a parameter stays the same object on its way
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))  # modes belong to a thread
        stack.enter_context(watch.fake)
        stack.enter_context(watch)
        yield watch


class Moment:
    """A `torch.cuda.Event` and `torch.cuda.Stream` that are always done."""

    device = CUDA

    def __init__(self, *args: Any, **options: Any) -> None: ...

    def record(self, *streams: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def wait(self, *streams: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def record_event(self, *events: Any) -> "Moment":
        return Moment()

    def elapsed_time(self, other: Any) -> float:
        return 1.0


def _stand_ins(watch: Watch) -> Iterator[tuple[Any, str, Any]]:
    """Yield what is replaced in torch: its questions to the driver, and what C++ reads past the watch."""
    cuda = torch.cuda
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: False,
        "is_bf16_supported": lambda *args, **options: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "current_stream": lambda *args: Moment(),
        "stream": lambda *args: nullcontext(),
        "Event": Moment,
        "Stream": Moment,
        "synchronize": lambda *args: watch.note(READ, "torch.cuda.synchronize"),
        "manual_seed_all": lambda seed: None,
        "is_current_stream_capturing": lambda: False,
        "max_memory_allocated": lambda *args: 0,
        "memory_allocated": lambda *args: 0,
        "memory_reserved": lambda *args: 0,
        "memory_summary": lambda *args: "",
        "mem_get_info": lambda *args: (0, 0),
        "get_device_properties": lambda *args: SimpleNamespace(total_memory=80 << 30),
        "get_device_capability": lambda *args: (9, 0),
        "get_rng_state": lambda *args: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda *args: None,
    }
    for name, answer in answers.items():
        yield cuda, name, answer
    yield torch.cuda.amp.common, "amp_definitely_not_available", lambda: False
    yield torch.Tensor, "record_stream", lambda values, stream: None
    yield torch.Tensor, "pin_memory", lambda values, *args: _pinned(watch, values)
    yield FakeTensor, "tolist", lambda values: values.cpu().tolist()
    yield torch, "empty", _empty(watch)
    yield torch, "tensor", _tensor(torch.tensor)
    # its memory of tensors refers to them weakly, and parameters with such references cannot be swapped
    yield watch.fake.fake_tensor_converter, "set_tensor_memo", lambda real, values: None
    get, put = Tensor.__getitem__, Tensor.__setitem__
    yield Tensor, "__getitem__", lambda values, index: get(values, _as_tensors(values, index))
    yield (
        Tensor,
        "__setitem__",
        lambda values, index, given: put(values, _as_tensors(values, index), _as_tensors(values, given)),
    )


def _pinned(watch: Watch, values: Tensor) -> Tensor:
    if is_on_gpu(values):
        raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")
    return values if watch.is_pinned(values) else watch.pin(values.detach().clone())


def _empty(watch: Watch) -> Any:
    real = torch.empty

    def empty(*args: Any, pin_memory: bool = False, **options: Any) -> Tensor:
        made = real(*args, **options)
        return watch.pin(made) if pin_memory else made

    return empty


def _tensor(real: Any) -> Any:
    def tensor(data: Any, *, device: Any = None, **options: Any) -> Tensor:
        made: Tensor = real(data, **options)
        return made if device is None else made.to(device)

    return tensor


def _as_tensors(values: Tensor, index: Any) -> Any:
    """Turn lists and arrays among the indices of a GPU's tensor into tensors of the CPU, as torch does in C++."""
    if not is_on_gpu(values):
        return index
    if isinstance(index, tuple):
        return tuple(_as_tensors(values, part) for part in index)
    return torch.as_tensor(index) if isinstance(index, list | np.ndarray | range) else index
