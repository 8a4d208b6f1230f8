"""CPUs of this machine that this process may use, and what other work leaves of them.

Commands load this module before torch and Ray, so it imports neither.
"""

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from raysl.process.proc import PROC, cpu_ticks, descendants

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_SPIN = {"GOMP_SPINCOUNT": "10000"}
WAIT_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Environment variables that say how long OpenMP's threads spin, read when torch is loaded."""
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}
"""The variable that makes all threads share one heap, read when a process starts."""
LOOK_S = 0.3
"""Least time over which the use of CPUs is measured."""
TOLERANCE = 0.25
"""Share of the CPUs that other work may take before a run counts on fewer of them."""


def thread_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that suit processes with many threads, without what the environment chooses itself.

    * A thread of OpenMP spins for some milliseconds at each barrier until the slowest one arrives. Beside other work it
      takes that time from the very threads that it waits for.
    * glibc gives threads heaps of their own, which return freed memory again and again. Ray trains in such a thread,
      where a step of a small ViT on a CPU took a fifth longer. `keep_freed_memory` does not change such heaps.

    >>> thread_variables({"OMP_WAIT_POLICY": "passive"})
    {'MALLOC_ARENA_MAX': '1'}
    """
    spin = {} if any(name in environment for name in WAIT_SETTINGS) else _SPIN
    return spin | {name: value for name, value in ONE_HEAP.items() if name not in environment}


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use: its affinity, and the quota of its container."""
    num = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text().split()
    except OSError:  # not in a container
        return num
    return num if quota == "max" else max(1, min(num, math.ceil(int(quota) / int(period))))


@dataclass(frozen=True)
class Cpus:
    """The CPUs of a machine on which a run counts for its threads."""

    usable: int
    free: int

    @classmethod
    def here(cls) -> "Cpus":
        """Return the CPUs of this machine as if nothing else ran on it."""
        return cls(usable_cpus(), usable_cpus())

    def threads(self, num_workers: int) -> int:
        """Return the threads of each of several workers on the machine.

        >>> Cpus(usable=8, free=5).threads(num_workers=2)
        2
        """
        return max(1, self.free // num_workers)


@dataclass(frozen=True)
class CpuTime:
    """Seconds of CPU up to a moment.

    Args:
        idle: seconds in which CPUs of the machine were idle, over all of them.
        used: seconds that this process and those below it have used.
    """

    when: float
    idle: float
    used: float

    @classmethod
    def now(cls) -> "CpuTime | None":
        """Return the times up to now; None where the system has no /proc."""
        try:
            # first line: cpu, user, nice, system, idle, iowait, ...; a CPU is free in the last two of these
            idle = [int(ticks) for ticks in (PROC / "stat").read_text().split(maxsplit=6)[4:6]]
        except OSError:
            return None
        used = sum(cpu_ticks(pid) for pid in (os.getpid(), *descendants(os.getpid())))
        second = os.sysconf("SC_CLK_TCK")
        return cls(time.monotonic(), sum(idle) / second, used / second)

    def free_until(self, end: "CpuTime", usable: int) -> Cpus:
        """Return the CPUs that were free between two moments: idle, or used by this process and those below it.

        All usable CPUs count as free as long as other work takes at most a quarter of them, so that the number of
        threads does not depend on small things that come and go.

        >>> CpuTime(when=0.0, idle=0.0, used=0.0).free_until(CpuTime(when=2.0, idle=0.4, used=2.4), usable=2)
        Cpus(usable=2, free=1)
        """
        free = (end.idle - self.idle + end.used - self.used) / (end.when - self.when)
        return Cpus(usable, usable if free >= (1 - TOLERANCE) * usable else max(1, int(free)))


def measure_cpus(since: CpuTime) -> Cpus:
    """Return the CPUs that were free since a moment, at least `LOOK_S` ago; wait as long as that is not over."""
    time.sleep(max(0.0, since.when + LOOK_S - time.monotonic()))
    end = CpuTime.now()
    assert end is not None, "the system had /proc a moment ago"
    return since.free_until(end, usable_cpus())
