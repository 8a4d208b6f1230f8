"""Silencing the warnings of image libraries: whatever matters is raised as an error."""

import ctypes
import platform
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

_PILLOW = ("ignore", None, Warning, re.compile(r"PIL\."), 0)


def quiet_pillow() -> None:
    """Silence Pillow's warnings in this process."""
    if _PILLOW not in warnings.filters:  # the filter is lost when a process restores earlier ones
        warnings.filterwarnings("ignore", module=r"PIL\.")


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Drop what C libraries print inside this block; what Python prints, in any thread, is shown.

    libjpeg (under torchvision) and libtiff (under Pillow) print warnings to C's stderr, which is a variable.
    """
    global _num_inside
    streams = _streams()
    if streams is None:
        yield
        return
    variable, shown, dropped = streams
    with _LOCK:
        _num_inside += 1
        variable.value = dropped
    try:
        yield
    finally:
        with _LOCK:
            _num_inside -= 1
            if _num_inside == 0:
                variable.value = shown


_LOCK = Lock()
_num_inside = 0


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
