"""The processes that a process has started, and those that these have started."""

from pathlib import Path

PROC = Path("/proc")


def descendants(pid: int) -> list[int]:
    """Ids of the processes below one, parents first; none where the system has no /proc."""
    children: dict[int, list[int]] = {}
    for folder in PROC.glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):  # it has ended since
            continue
        children.setdefault(parent, []).append(int(folder.name))
    found = [pid]
    for member in found:
        found.extend(children.get(member, []))
    return found[1:]


def command_of(pid: int) -> str:
    """The command line of a process, empty if it has ended: what it calls itself, where it has changed that."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
