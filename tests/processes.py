"""What tests that end processes wait for."""

import time
from collections.abc import Callable
from pathlib import Path


def wait_until(is_so: Callable[[], bool], timeout_s: float = 20) -> None:
    """Until something is so; a failed test where it is not in time."""
    end = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def has_ended(pid: int) -> bool:
    """Whether a process is no more; a killed one runs on for a moment, and is a zombie where nobody waits for it."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"
