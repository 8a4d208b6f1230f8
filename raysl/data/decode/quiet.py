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

_PILLOW = ("ignore", None, Warning, re.compile(r"PIL\."), 0)


def quiet_pillow() -> None:
    """Silence Pillow's warnings in this process."""
    if _PILLOW not in warnings.filters:  # the filter is lost when a process restores earlier ones
        warnings.filterwarnings("ignore", module=r"PIL\.")


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
