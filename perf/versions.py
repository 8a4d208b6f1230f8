"""Versions of raysl that are measured beside each other: the present one, and one in a checkout of its own."""

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any

from perf.checkouts import environment
from perf.numbers import verdict
from raysl.errors import ConfigError

NOW, BEFORE = "raysl", "before"


@dataclass(frozen=True)
class Version:
    """A version of raysl.

    Args:
        name: `NOW` or `BEFORE`.
        checkout: its folder; None is the version that measures.
    """

    name: str = NOW
    checkout: Path | None = None

    def start(self, words: Sequence[str], output: "IO[Any] | int") -> "subprocess.Popen[bytes]":
        """Start a `raysl` command, which writes what it says to `output`."""
        variables = dict(os.environ) if self.checkout is None else environment(self.checkout)
        return subprocess.Popen(
            [sys.executable, "-m", "raysl", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=variables,
            cwd=self.checkout,
        )


def versions(beside: Path | None) -> list[Version]:
    """Return the versions to measure.

    Args:
        beside: folder of another version; None measures the present one alone.

    Raises:
        ConfigError: if it is not a checkout of raysl.
    """
    if beside is None:
        return [Version()]
    if not (beside / "raysl" / "__main__.py").is_file():
        raise ConfigError(
            f"--beside {beside}: no raysl/__main__.py there; give a checkout of raysl, "
            "which `git worktree add FOLDER COMMIT` makes"
        )
    return [Version(), Version(BEFORE, beside.resolve())]


def ratio_line(title: str, pairs: Iterable[tuple[float, float]], goal: float) -> str:
    """A line of a table: the median of the ratios of pairs, their span, and whether the median is at most the goal."""
    values = [value / other for value, other in pairs]
    span = f"{min(values):.2f} to {max(values):.2f}"
    return f"{title}{median(values):>7.2f} ({span})  goal at most {goal}: {verdict(median(values) <= goal)}"
