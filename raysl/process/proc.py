"""Processes of this machine, as /proc shows them."""

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessIdentity:
    """What tells one process from every other one, also after its id was given to another.

    Args:
        boot: id of the machine's boot.
        space: namespace of the process id; each container has its own.
        pid: process id in that namespace.
        started: when the process started, in ticks since the boot.
    """

    boot: str
    space: str
    pid: int
    started: str

    @classmethod
    def current(cls) -> "ProcessIdentity | None":
        """Return the identity of this process; None where the system has no /proc."""
        try:
            boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
            return cls(boot, os.readlink(PROC / "self/ns/pid"), os.getpid(), _status(os.getpid())[START_TIME])
        except OSError:
            return None

    def has_ended(self) -> bool:
        """Return whether the process is known to have ended; False where it cannot be seen from here."""
        current = ProcessIdentity.current()
        if current is None or (current.boot, current.space) != (self.boot, self.space):
            return False
        try:
            return _status(self.pid)[START_TIME] != self.started
        except (FileNotFoundError, ProcessLookupError):
            return True


def descendants(pid: int) -> list[int]:
    """Return the ids of all processes below one, parents first; an empty list where the system has no /proc."""
    children: dict[int, list[int]] = {}
    for folder in PROC.glob("[0-9]*"):
        try:
            parent = int(_status(int(folder.name))[PARENT])
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # it has ended since, or is another user's
            continue
        children.setdefault(parent, []).append(int(folder.name))
    family = [pid]
    # the list grows while the loop walks it, until no member has further children
    for member in family:
        family.extend(children.get(member, []))
    return family[1:]


def cpu_ticks(pid: int) -> int:
    """Return the ticks of CPU that a process has used, with its ended children; 0 if it has ended itself."""
    try:
        return sum(int(ticks) for ticks in _status(pid)[TIMES])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def command_line(pid: int) -> str:
    """Return the command line of a process, which it may have changed; empty if it has ended."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


PARENT, TIMES, START_TIME = 1, slice(11, 15), 19  # fields of /proc/<pid>/stat, counted behind the name of the command


def _status(pid: int) -> list[str]:
    # the name of the command is in brackets and may itself hold spaces and brackets
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
