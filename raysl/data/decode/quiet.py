"""What image libraries say of odd files stays off the screen: what matters of it is an error, and told as one."""

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
    """Let Pillow warn of nothing in this process."""
    if _PILLOW not in warnings.filters:  # it goes when a process restores the filters that it had before
        warnings.filterwarnings("ignore", module=r"PIL\.")


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Drop what C libraries print meanwhile; what Python prints, in any thread, is shown.

    torchvision leaves it to libjpeg, and Pillow to libtiff, to print what is odd to C's stderr, which is a variable.
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
    """C's variable stderr, what it holds, and a stream that goes nowhere; None where there is no glibc."""
    if platform.libc_ver()[0] != "glibc":
        return None
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    variable = ctypes.c_void_p.in_dll(libc, "stderr")
    dropped = libc.fopen(b"/dev/null", b"w")
    return (variable, variable.value, dropped) if variable.value and dropped else None
