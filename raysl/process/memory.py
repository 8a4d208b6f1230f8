"""Memory of this process, and how it is allocated."""

import ctypes
import platform
import resource
import sys
from collections.abc import Sequence
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
    if pid is None:
        return _status("RssAnon")
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return _field(lines, "RssAnon")


def _status(field: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return _field(lines, field)


def _field(lines: Sequence[str], field: str) -> int:
    """Bytes of a field of /proc/<pid>/status; 0 for a process that has ended and was not waited for."""
    return next((int(line.split()[1]) for line in lines if line.startswith(field)), 0) * 1024
