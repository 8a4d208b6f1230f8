"""Memory of this process, and how it is allocated."""

import ctypes
import platform
import resource
import sys
from functools import cache
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # of glibc's malloc.h


@cache
def keep_freed_memory() -> None:
    """Make glibc keep freed memory instead of returning it to the system; does nothing without glibc.

    By default glibc maps many large tensors anew each time, depending on thread and order of allocations: fresh pages
    then take a tenth and more of a training step on a CPU.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        # large blocks come from the heap too, the heap is not trimmed, and all threads share one heap
        for option, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_ARENA_MAX, 1)):
            libc.mallopt(option, value)


def resident() -> int:
    """Return the resident bytes of this process; without /proc, their maximum so far."""
    return _status("VmRSS")


def most_resident() -> int:
    """Return the maximum of resident bytes of this process so far.

    On Linux not by `ru_maxrss`, which includes the process that started this one.
    """
    return _status("VmHWM")


def unmapped(pid: int | None = None) -> int:
    """Return the resident bytes of a process without pages of files, which the system can drop at any time.

    Args:
        pid: number of the process. Default: this one. Others need /proc; one that has ended has 0 bytes.

    Without /proc: the maximum of all resident bytes of this process so far.
    """
    return _status("RssAnon", pid)


def _status(field: str, pid: int | None = None) -> int:
    """Return the bytes of a field of /proc/<pid>/status; 0 for a process that has ended, also if none waited for it."""
    try:
        lines = Path(f"/proc/{'self' if pid is None else pid}/status").read_text().splitlines()
    except OSError:
        if pid is not None:
            return 0
        # macOS gives bytes, other systems KiB
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return next((int(line.split()[1]) for line in lines if line.startswith(field)), 0) * 1024
