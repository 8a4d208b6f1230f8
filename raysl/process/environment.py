"""The environment of a run: versions, devices, memory, the state of a checkout (as `collect_env` of Detectron2)."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from raysl.process.cpus import usable_cpus
from raysl.redact import redact_variables

PACKAGES = (
    *("raysl", "torch", "torchvision", "ray", "numpy", "pyarrow", "pillow", "safetensors", "omegaconf", "numba"),
    *("scikit-learn", "faiss-cpu", "faiss-gpu", "timm", "tensorboardX", "fsspec", "s3fs", "gcsfs"),
)
"""Packages that raysl needs, and those that it uses where they are installed."""
VARIABLES = ("CUDA_", "NCCL_", "OMP_", "GOMP_", "KMP_", "MKL_", "TORCH_", "PYTORCH_", "RAY_", "RAYSL_", "CUBLAS_")
"""Prefixes of environment variables that change a run."""
JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Variable that Ray sets in the process of a job, with the settings of its submission."""
GIB = 1 << 30


def ray_job() -> dict[str, Any]:
    """Return `runtime_env` and `metadata` of the Ray job that this process was submitted as; empty outside of one."""
    job: dict[str, Any] = json.loads(os.environ.get(JOB_VARIABLE, "{}"))
    return job


def submission_id() -> str:
    """Return the id by which `ray job stop` stops this process; empty outside of a Ray job."""
    return str((ray_job().get("metadata") or {}).get("job_submission_id", ""))


@contextmanager
def setting(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment while inside."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def environment() -> dict[str, Any]:
    """Return the environment of this process.

    Returns:
        `python`, `executable`, `system`, `packages` (versions, None where one is missing), `torch` (its CUDA, cuDNN,
        NCCL, threads, processor features), `devices` (index, name, capability, memory in GiB of each GPU), `driver`,
        `cpu` (model, cores, cores that this process may use), `memory` and `disk` (total and free, in GiB), `shm` (of
        /dev/shm), `git` (folder, revision, whether files differ from it; None outside of a checkout) and `variables`,
        without credentials. All values have JSON types.
    """
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": platform.platform(),
        "packages": {name: version_of(name) for name in PACKAGES},
        "torch": _torch(),
        "devices": _devices(),
        "driver": driver_version(),
        "cpu": {"model": _processor(), "cores": os.cpu_count(), "usable": usable_cpus()},
        "memory": free_memory(),
        "disk": free_space(Path.cwd()),
        "shm": free_space(Path("/dev/shm")),
        "git": _git(Path(__file__).resolve().parents[2]),
        "variables": redact_variables(
            {name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)}
        ),
    }


def problems(facts: dict[str, Any]) -> list[str]:
    """Return a line for each thing in an environment that may fail or be slow, with what helps."""
    lines, packages = [], facts["packages"]
    for name in ("torch", "ray"):
        if packages[name] is None:
            lines.append(f"{name} is not installed; pip install {name}")
    if facts["driver"] is not None and not facts["devices"]:
        built = facts["torch"]["cuda"]
        why = f"torch is built for CUDA {built} and sees none" if built else "torch is built without CUDA"
        lines.append(f"there is a driver for GPUs ({facts['driver']}), and {why}; install the torch for it")
    memory, shm = facts["memory"], facts["shm"]
    if memory and shm and shm["total"] < 0.2 * memory["total"]:
        lines.append(
            f"/dev/shm holds {shm['total']:.1f} of {memory['total']:.1f} GiB of memory, so Ray's object store is on a "
            "disk; start the container with --shm-size, or --ipc=host"
        )
    if facts["disk"] and facts["disk"]["free"] < 1:
        lines.append(f"{facts['disk']['free']:.2f} GiB of the disk here are free; checkpoints need room")
    if (threads := facts["torch"]["threads"]) > facts["cpu"]["usable"]:
        cores = facts["cpu"]["usable"]
        lines.append(f"torch has {threads} threads on {cores} usable core(s); set OMP_NUM_THREADS or train.threads")
    return lines


def environment_text(facts: dict[str, Any]) -> str:
    """Return an environment as lines of `name  value`."""
    packages = {name: number or "not installed" for name, number in facts["packages"].items()}
    rows: list[tuple[str, Any]] = [("python", facts["python"]), ("executable", facts["executable"])]
    rows += [("system", facts["system"]), *packages.items()]
    rows += [(f"torch {name}", value) for name, value in facts["torch"].items()]
    rows += [
        (f"device {each['index']}", f"{each['name']}, capability {each['capability']}, {each['memory']:.1f} GiB")
        for each in facts["devices"]
    ] or [("devices", "no GPU")]
    rows += [("driver", facts["driver"])]
    rows += [("cpu", f"{facts['cpu']['model']}, {facts['cpu']['usable']} of {facts['cpu']['cores']} cores")]
    for name in ("memory", "disk", "shm"):
        space = facts[name]
        rows.append((name, None if space is None else f"{space['total']:.1f} GiB, {space['free']:.1f} free"))
    git = facts["git"]
    rows.append(("git", None if git is None else f"{git['revision']}{', changed' if git['is_changed'] else ''}"))
    rows += facts["variables"].items()
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {'-' if value is None else value}" for name, value in rows)


def version_of(package: str) -> str | None:
    """Return the version of a package; None if it is not there. raysl may be run from its source, not installed."""
    if package == "raysl":
        import raysl

        return raysl.__version__
    try:
        return version(package)
    except PackageNotFoundError:
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

    devices = []
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        memory = round(device.total_memory / GIB, 2)
        devices.append(
            {"index": index, "name": device.name, "capability": f"{device.major}.{device.minor}", "memory": memory}
        )
    return devices


def driver_version() -> str | None:
    """Return the version of NVIDIA's driver in words; None if none is loaded."""
    try:
        first = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):  # no driver is loaded
        return None
    return first.partition(":")[2].strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # no /proc on this system
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def free_memory() -> dict[str, float] | None:
    """Return the `total` and `free` GiB of memory that this machine, or its container, has; None without /proc."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # no /proc on this system
        return None
    facts = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    total, free = facts["MemTotal"], facts["MemAvailable"]
    # a container counts cached files as used memory, though the kernel drops them when it needs room
    if (limit := _read_number(_CGROUP / "memory.max")) is not None and limit < total:
        total, free = limit, min(free, limit - (_read_number(_CGROUP / "memory.current") or 0) + _cached_files())
    return {"total": round(total / GIB, 2), "free": round(free / GIB, 2)}


_CGROUP = Path("/sys/fs/cgroup")


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # not in a container, or one without a limit
        return None


def _cached_files() -> int:
    """Return the bytes of files in memory that the kernel can drop, of this container."""
    lines = (_CGROUP / "memory.stat").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)


def free_space(folder: Path) -> dict[str, float] | None:
    """Return the `total` and `free` GiB of a folder's disk; None if the folder does not exist."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:  # the folder does not exist
        return None
    return {"total": round(usage.total / GIB, 2), "free": round(usage.free / GIB, 2)}


def _git(folder: Path) -> dict[str, Any] | None:
    if not (folder / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        result = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
        return result.stdout.strip()

    try:
        return {
            "folder": str(folder),
            "revision": git("rev-parse", "HEAD"),
            "is_changed": bool(git("status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.SubprocessError):  # git is missing, or refuses the folder
        return None
