"""How this process gets its memory from the system."""

import ctypes
import platform
from functools import cache

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # of glibc's malloc.h


@cache
def keep_freed_memory() -> None:
    """Have glibc keep what is freed instead of giving it back to the system; does nothing where there is no glibc.

    By default it maps large tensors anew each time, or not, as the order of allocations and the thread happen to have
    it: a tenth and more of a training step on a CPU goes into fresh pages.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        for option, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_ARENA_MAX, 1)):
            libc.mallopt(option, value)
