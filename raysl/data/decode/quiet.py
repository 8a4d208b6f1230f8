"""Silencing the warnings of image libraries: whatever matters is raised as an error."""

import ctypes
import platform
import re
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from threading import Lock, local
from typing import Any


def quiet_module(name: str) -> None:
    """Silence the warnings of a library's modules in this process.

    Args:
        name: package of the library, such as "PIL".
    """
    pattern = rf"{name}\."
    # the filter is lost when a process restores earlier ones
    if ("ignore", None, Warning, re.compile(pattern), 0) not in warnings.filters:
        warnings.filterwarnings("ignore", module=pattern)


def quiet_libraries() -> AbstractContextManager[None]:
    """Return a block in which what C libraries print is dropped; what Python prints, in any thread, is shown.

    libjpeg (under torchvision) and libtiff (under Pillow) print warnings to C's stderr, which is a variable. A block
    inside another one of the same thread does nothing, so a block around a batch makes those around its images free.

    >>> with quiet_libraries(), quiet_libraries():
    ...     print("shown")
    shown
    """
    return _NOTHING if _thread.is_quiet else _quiet()


@contextmanager
def _quiet() -> Iterator[None]:
    global _num_inside
    streams = _streams()
    if streams is None:
        yield
        return
    variable, shown, dropped = streams
    with _LOCK:
        _num_inside += 1
        variable.value = dropped
    _thread.is_quiet = True
    try:
        yield
    finally:
        _thread.is_quiet = False
        with _LOCK:
            _num_inside -= 1
            # C's variable is shared by all threads: only the last one to leave may bring the messages back
            if _num_inside == 0:
                variable.value = shown


class _Thread(local):
    """What a thread knows of itself."""

    is_quiet = False


_NOTHING = nullcontext()
_LOCK = Lock()
_num_inside = 0
_thread = _Thread()


@cache
def _streams() -> tuple[Any, int, int] | None:
    """Return C's variable stderr, its value, and a stream to /dev/null; None without glibc."""
    if platform.libc_ver()[0] != "glibc":
        return None
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    variable = ctypes.c_void_p.in_dll(libc, "stderr")
    dropped = libc.fopen(b"/dev/null", b"w")
    return (variable, variable.value, dropped) if variable.value and dropped else None
