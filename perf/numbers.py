"""Reported numbers from measured repeats: medians, ratios, goals, and their JSON file."""

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from raysl.errors import ConfigError

Repeat = Mapping[str, float]


def choose_cases(names: Sequence[str], cases: Iterable[str]) -> list[str]:
    """Return the cases to measure, in the order of `cases`; all if none is named.

    Raises:
        ConfigError: if there is no such case.
    """
    known = list(cases)
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"--only {unknown[0]}: there is no such case; known: {', '.join(known)}")
    return [name for name in known if not names or name in names]


def medians(repeats: Sequence[Repeat]) -> dict[str, float]:
    """The median over repeats of each number."""
    return {name: median(repeat[name] for repeat in repeats) for name in repeats[0]}


def ratios(repeats: Sequence[Repeat], names: Iterable[str]) -> dict[str, float]:
    """The median over repeats of ratios taken inside each repeat, so that a slow spell of the machine cancels out.

    Args:
        repeats: numbers by name.
        names: ratios such as `b/a`; those of which a side was not measured are left out.
    """
    result = {}
    for name in names:
        above, _, below = name.partition("/")
        if above in repeats[0] and below in repeats[0]:
            result[name] = median(repeat[above] / repeat[below] for repeat in repeats)
    return result


def rotated(names: Sequence[str], repeat: int) -> list[str]:
    """Return the order of a repeat: each starts one contender later, and every other one is reversed."""
    cut = repeat % len(names)
    order = [*names[cut:], *names[:cut]]
    return order[::-1] if repeat % 2 else order


def verdict(is_met: bool) -> str:
    """Return `ok` or `short` for a goal."""
    return "ok" if is_met else "short"


def seconds_line(title: str, seconds: Sequence[float], goal: float) -> str:
    """A line of a table: the median of measured seconds, their span, and whether the median is below the goal."""
    middle = median(seconds)
    span = f"{min(seconds):.1f} to {max(seconds):.1f}"
    return f"{title}{middle:>7.2f} s ({span})  goal under {goal:.0f} s: {verdict(middle < goal)}"


def machine() -> dict[str, Any]:
    """Describe the machine and versions of a measurement."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "load_before": load,
        "python": platform.python_version(),
        **{name: _version(name) for name in ("raysl", "torch", "ray")},
    }


def check_writable(path: Path | None) -> None:
    """Refuse a JSON file that cannot be written, before minutes of measuring.

    Raises:
        ConfigError: if its folder does not exist, or it is a folder.
    """
    if path is not None and (not path.parent.is_dir() or path.is_dir()):
        raise ConfigError(f"--json {path}: cannot write a file there; its folder must exist")


def write(path: Path | None, numbers: dict[str, Any]) -> None:
    """Write the numbers as JSON if a file is given."""
    if path is not None:
        path.write_text(json.dumps(numbers, indent=1) + "\n")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # no /proc on this system
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
