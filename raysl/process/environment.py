"""What a run depends on beside its settings: versions, devices, memory, the state of a checkout (Detectron2's
`collect_env`)."""

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from raysl.redact import redact

PACKAGES = (
    *("raysl", "torch", "torchvision", "ray", "numpy", "pyarrow", "pillow", "safetensors", "omegaconf", "numba"),
    *("scikit-learn", "faiss-cpu", "faiss-gpu", "timm", "tensorboardX", "fsspec", "s3fs", "gcsfs"),
)
"""Those that raysl builds on, and those that it makes use of where they are."""
VARIABLES = ("CUDA_", "NCCL_", "OMP_", "MKL_", "TORCH_", "PYTORCH_", "RAY_", "RAYSL_", "CUBLAS_")
"""What the names of variables that change a run begin with."""
GIB = 1 << 30


def environment() -> dict[str, Any]:
    """The environment of this process.

    Returns:
        `python`, `executable`, `system`, `packages` (versions, None where one is missing), `torch` (its CUDA, cuDNN,
        NCCL, threads, processor features), `devices` (index, name, capability, memory in GiB of each GPU), `driver`,
        `cpu` (model, cores, cores that this process may use), `memory` and `disk` (total and free, in GiB), `shm` (of
        /dev/shm), `git` (folder, revision, whether files differ from it; None where raysl is no checkout) and
        `variables`, without credentials. Made of JSON's types.
    """
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "torch": _torch(),
        "devices": _devices(),
        "driver": _driver(),
        "cpu": {"model": _processor(), "cores": os.cpu_count(), "usable": _usable_cores()},
        "memory": _memory(),
        "disk": _space(Path.cwd()),
        "shm": _space(Path("/dev/shm")),
        "git": _git(Path(__file__).resolve().parents[2]),
        "variables": {name: redact(value) for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)},
    }


def problems(found: dict[str, Any]) -> list[str]:
    """What is likely to go wrong, or to be slow, in an environment, and what helps; a line each."""
    lines, packages = [], found["packages"]
    for name in ("torch", "ray"):
        if packages[name] is None:
            lines.append(f"{name} is not installed; pip install {name}")
    if found["driver"] is not None and not found["devices"]:
        built = found["torch"]["cuda"]
        why = f"torch is built for CUDA {built} and sees none" if built else "torch is built without CUDA"
        lines.append(f"there is a driver for GPUs ({found['driver']}), and {why}; install the torch for it")
    memory, shm = found["memory"], found["shm"]
    if memory and shm and shm["total"] < 0.2 * memory["total"]:
        lines.append(
            f"/dev/shm holds {shm['total']:.1f} of {memory['total']:.1f} GiB of memory, so Ray's object store is on a "
            "disk; start the container with --shm-size, or --ipc=host"
        )
    if found["disk"] and found["disk"]["free"] < 1:
        lines.append(f"{found['disk']['free']:.2f} GiB of the disk here are free; checkpoints need room")
    if (threads := found["torch"]["threads"]) > found["cpu"]["usable"]:
        cores = found["cpu"]["usable"]
        lines.append(f"torch has {threads} threads on {cores} usable core(s); set OMP_NUM_THREADS or train.threads")
    return lines


def environment_text(found: dict[str, Any]) -> str:
    """An environment as lines of `name  value`, for people."""
    packages = {name: number or "not installed" for name, number in found["packages"].items()}
    rows: list[tuple[str, Any]] = [("python", found["python"]), ("executable", found["executable"])]
    rows += [("system", found["system"]), *packages.items()]
    rows += [(f"torch {name}", value) for name, value in found["torch"].items()]
    rows += [(f"device {device['index']}", _told_device(device)) for device in found["devices"]]
    rows += [] if found["devices"] else [("devices", "no GPU")]
    rows += [("driver", found["driver"])]
    rows += [("cpu", f"{found['cpu']['model']}, {found['cpu']['usable']} of {found['cpu']['cores']} cores")]
    rows += [(name, _told_space(found[name])) for name in ("memory", "disk", "shm")]
    rows += [("git", _told_git(found["git"])), *found["variables"].items()]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {'-' if value is None else value}" for name, value in rows)


def environment_json(found: dict[str, Any]) -> str:
    """An environment as JSON, with `problems`."""
    return json.dumps({**found, "problems": problems(found)}, indent=1)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        if package == "raysl":  # run from its source
            import raysl

            return raysl.__version__
        return None


def _torch() -> dict[str, Any]:
    import torch

    backends: Any = torch.backends
    nccl = None
    if torch.cuda.is_available():
        from torch.cuda.nccl import version as nccl_version

        nccl = ".".join(str(part) for part in nccl_version())  # type: ignore[no-untyped-call]
    cudnn = backends.cudnn.version() if backends.cudnn.is_available() else None
    return {
        "cuda": torch.version.cuda,
        "cudnn": cudnn,
        "nccl": nccl,
        "threads": torch.get_num_threads(),
        "cpu_capability": backends.cpu.get_cpu_capability(),
        "mkldnn": backends.mkldnn.is_available(),
    }


def _devices() -> list[dict[str, Any]]:
    import torch

    found = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        memory = round(facts.total_memory / GIB, 2)
        found.append(
            {"index": index, "name": facts.name, "capability": f"{facts.major}.{facts.minor}", "memory": memory}
        )
    return found


def _driver() -> str | None:
    try:
        first = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):  # none is loaded
        return None
    return first.partition(":")[2].strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # no /proc on this system
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> dict[str, float] | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # no /proc on this system
        return None
    facts = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return {"total": round(facts["MemTotal"] / GIB, 2), "free": round(facts["MemAvailable"] / GIB, 2)}


def _space(folder: Path) -> dict[str, float] | None:
    try:
        usage = shutil.disk_usage(folder)
    except OSError:  # there is no such folder
        return None
    return {"total": round(usage.total / GIB, 2), "free": round(usage.free / GIB, 2)}


def _git(folder: Path) -> dict[str, Any] | None:
    """State of the checkout that a folder is the root of."""
    if not (folder / ".git").exists():
        return None

    def ask(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()

    try:
        return {
            "folder": str(folder),
            "revision": ask("rev-parse", "HEAD"),
            "is_changed": bool(ask("status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.SubprocessError):  # git is missing, or refuses the folder
        return None


def _told_device(device: dict[str, Any]) -> str:
    return f"{device['name']}, capability {device['capability']}, {device['memory']:.1f} GiB"


def _told_space(space: dict[str, float] | None) -> str | None:
    return None if space is None else f"{space['total']:.1f} GiB, {space['free']:.1f} free"


def _told_git(state: dict[str, Any] | None) -> str | None:
    return None if state is None else f"{state['revision']}{', changed' if state['is_changed'] else ''}"
