"""What a node says of itself. The module is sent by value, so it answers on a node without raysl too."""

import hashlib
import importlib.util
import os
import platform
import time
from pathlib import Path
from typing import Any

from raysl.process.environment import driver_version, free_memory, free_space, version_of

PACKAGES = ("ray", "torch", "raysl")
"""Packages that have to be alike on all nodes."""


def node_facts() -> dict[str, Any]:
    """Return what this node is, in JSON types.

    Returns:
        `python`, `packages` (versions, None where one is missing), `code` (a digest of raysl's source, None without),
        `driver` and `devices` (NVIDIA's driver and how many GPUs it has), `memory` and `shm` (total and free, in GiB),
        `cores` and `load` (processes that run or wait for a core, the mean of a minute), `lacking` (in words, what
        raysl goes without in the node's Ray).
    """
    spec = importlib.util.find_spec("raysl")
    package = Path(spec.origin).parent if spec is not None and spec.origin is not None else None
    return {
        "python": platform.python_version(),
        "packages": {name: version_of(name) for name in PACKAGES},
        "code": None if package is None else _digest(package),
        "driver": driver_version(),
        "devices": len(list(Path("/proc/driver/nvidia/gpus").glob("*"))),
        "memory": free_memory(),
        "shm": free_space(Path("/dev/shm")),
        "cores": os.cpu_count() or 1,
        "load": round(os.getloadavg()[0], 1),
        "lacking": [] if package is None else _lacking(),
    }


class NodeActor:
    """Answers on a node, again and again from one process."""

    def facts(self) -> dict[str, Any]:
        """Return `node_facts`."""
        return node_facts()

    def now(self) -> float:
        """Return the seconds since 1970 by the node's clock."""
        return time.time()


def _lacking() -> list[str]:
    try:
        from raysl.cluster.private import lacking
    except ImportError:  # another version of raysl, which is a finding of its own
        return []
    return lacking()


def _digest(folder: Path) -> str:
    """Return twelve hexadecimal digits of the SHA-256 of a package's source."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]
