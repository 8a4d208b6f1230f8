"""Autograd over tensors of a GPU that is not there.

Before torch's engine runs a backward pass over tensors on "cuda", it asks the CUDA build whether the device has a
context, and without a driver that raises. No switch of torch turns the question off: a backend registered for
PrivateUse1 takes it over, but then the engine asserts that tensors on "cuda" have no stream. So the one answer is
replaced in a copy of the table of functions that torch asks, only while `answered` is open, and only in versions whose
table is known.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

KNOWN = ("2.14.", "2.15.")
"""Versions of torch whose table has been looked at."""
_HEAD = 2  # entries before the first function: the offset to the top, and the type
_IS_BUILT, _IS_AVAILABLE, _HAS_CONTEXT = (_HEAD + number for number in (2, 3, 4))  # two destructors come first
_LENGTH = _HEAD + 58  # of the longest table


@contextmanager
def answered() -> Iterator[None]:
    """Let backward passes over pretended tensors run while it is open; check `problem` first."""
    if _works():
        yield
        return
    hooks = _hooks()
    original = ctypes.cast(hooks, ctypes.POINTER(ctypes.c_void_p))[0]
    assert original is not None
    no = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_int8)(lambda hooks, index: False)
    entries = _entries(hooks)
    table = (ctypes.c_void_p * _LENGTH)(*entries[:_LENGTH])
    table[_HAS_CONTEXT] = ctypes.cast(no, ctypes.c_void_p).value
    head = _HEAD * ctypes.sizeof(ctypes.c_void_p)
    ctypes.cast(hooks, ctypes.POINTER(ctypes.c_void_p))[0] = ctypes.addressof(table) + head
    try:
        yield
    finally:
        ctypes.cast(hooks, ctypes.POINTER(ctypes.c_void_p))[0] = original


@cache
def problem() -> str | None:
    """Return why a GPU cannot be pretended here, or None."""
    if torch.cuda.is_available():
        return "there is a GPU: pretended tensors would start it"
    if _works():
        return None
    if not torch.__version__.startswith(KNOWN):
        return f"the table of torch {torch.__version__} is not known; tests/fake_gpu/driver.py has {', '.join(KNOWN)}*"
    try:
        hooks = _hooks()
    except (OSError, AttributeError) as error:
        return f"torch's table is not found: {error}"
    says = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)
    entries = _entries(hooks)
    if says(entries[_IS_BUILT])(hooks) is not True or says(entries[_IS_AVAILABLE])(hooks) is not False:
        return "torch's table has other functions than those of its version"
    return None


@cache
def _works() -> bool:
    """Whether a backward pass runs as it is, as in a build of torch without CUDA."""
    with FakeTensorMode(), torch.autograd.set_multithreading_enabled(False):
        x = torch.ones(2, device="cuda", requires_grad=True)
        try:
            (x * x).sum().backward()
        except RuntimeError:
            return False
    return True


def _hooks() -> int:
    """Return the address of the object that torch asks about CUDA."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    find = library._ZN2at6detail12getCUDAHooksEv  # at::detail::getCUDAHooks()
    find.restype, find.argtypes = ctypes.c_void_p, []
    return int(find())


def _entries(hooks: int) -> "ctypes._Pointer[ctypes.c_void_p]":
    """Return the object's table, from its head on."""
    table = ctypes.cast(hooks, ctypes.POINTER(ctypes.c_void_p))[0]
    assert table is not None
    head = _HEAD * ctypes.sizeof(ctypes.c_void_p)
    return ctypes.cast(table - head, ctypes.POINTER(ctypes.c_void_p))
