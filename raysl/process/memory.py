"""What memory this process has, and how it gets it from the system."""

import ctypes
import platform
import resource
import sys
from functools import cache
from pathlib import Path

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


def resident() -> int:
    """Bytes that this process has resident now; where there is no /proc, the most that it had."""
    return _status("VmRSS")


def most_resident() -> int:
    """The most bytes that this process had resident so far.

    Linux counts into `ru_maxrss` what the process that started this one had, so that is for other systems.
    """
    return _status("VmHWM")


def unmapped() -> int:
    """Bytes that this process has resident now, without pages of files, which the system takes back as it needs them;
    where there is no /proc, the most that it had in all.
    """
    return _status("RssAnon")


def _status(field: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024
