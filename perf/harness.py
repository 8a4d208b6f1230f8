"""The harness of `python -m perf`: interleaved repeats and their medians, child processes, and lines of tables.

It imports neither torch nor Ray, which would count as memory of the child processes that it starts. Measurements raise
ConfigError for options that mean nothing, and RunFailed, with the end of the output, where a process fails.
"""

import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from raysl.errors import ConfigError, RunFailed
from raysl.process.environment import version_of

log = logging.getLogger("raysl")

LAST_LINES = 20  # of the output of a failed process, which its error message shows

Numbers = dict[str, Any]
Repeat = Mapping[str, float]
"""A number of each contender."""
T = TypeVar("T")


def choose_cases(names: Sequence[str], cases: Iterable[str]) -> list[str]:
    """Return the cases to measure, in the order of `cases`; all if none is named.

    Raises:
        ConfigError: if there is no such case.
    """
    known = list(cases)
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"--only {unknown[0]}: there is no such case; known: {', '.join(known)}")
    return [name for name in known if not names or name in names]


def interleaved(
    names: Iterable[str], repeats: int, measure: Callable[[str, int], T], title: str = ""
) -> list[dict[str, T]]:
    """Measure each contender once per repeat, in an order that changes: slow spells of the machine affect all alike.

    Returns:
        Results of each repeat, in the order of `names`. A title is logged with each measurement.
    """
    names, results = list(names), []
    for repeat in range(repeats):
        measured = {}
        for name in rotated(names, repeat):
            measured[name] = measure(name, repeat)
            if title:
                log.info("%s, repeat %d of %d, %s: %s", title, repeat + 1, repeats, name, _shown(measured[name]))
        results.append({name: measured[name] for name in names})
    return results


def rotated(names: Sequence[str], repeat: int) -> list[str]:
    """Return the order of a repeat: each starts one contender later, and every other one is reversed."""
    cut = repeat % len(names)
    order = [*names[cut:], *names[:cut]]
    return order[::-1] if repeat % 2 else order


def medians(repeats: Sequence[Repeat]) -> dict[str, float]:
    """Return the median over repeats of each number."""
    return {name: median(repeat[name] for repeat in repeats) for name in repeats[0]}


def each_ratio(repeats: Sequence[Repeat], name: str) -> list[float]:
    """Return a ratio such as `b/a` inside each repeat; nothing if one of its sides was not measured."""
    above, _, below = name.partition("/")
    return [repeat[above] / repeat[below] for repeat in repeats] if {above, below} <= repeats[0].keys() else []


def ratios(repeats: Sequence[Repeat], names: Iterable[str]) -> dict[str, float]:
    """Return medians of ratios taken inside each repeat, so that a slow spell of the machine cancels out."""
    values = {name: each_ratio(repeats, name) for name in names}
    return {name: median(each) for name, each in values.items() if each}


def span(values: Sequence[float], form: str = ".2f") -> str:
    """Return the smallest and the largest value, as in `(0.97 to 1.02)`."""
    return f"({min(values):{form}} to {max(values):{form}})"


def verdict(is_met: bool) -> str:
    """Return `ok` or `short` for a goal."""
    return "ok" if is_met else "short"


def goal_line(title: str, values: Sequence[float], goal: float, unit: str = "", form: str = ".2f") -> str:
    """Return a line of a table: the median of values, their span, and whether it is at most the goal."""
    middle = median(values)
    return f"{title}{middle:>7.2f}{unit} {span(values, form)}  goal at most {goal:g}{unit}: {verdict(middle <= goal)}"


def machine() -> Numbers:
    """Describe the machine and versions of a measurement."""
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        **{name: version_of(name) for name in ("raysl", "torch", "ray")},
    }


def check_writable(path: Path | None) -> None:
    """Refuse a JSON file that cannot be written, before minutes of measuring.

    Raises:
        ConfigError: if its folder does not exist, or it is a folder.
    """
    if path is not None and (not path.parent.is_dir() or path.is_dir()):
        raise ConfigError(f"--json {path}: cannot write a file there; its folder must exist")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="raysl_speed_") as folder:
        yield Path(folder)


def run_child(command: Sequence[str], title: str, **options: Any) -> str:
    """Run a command to its end with options of `subprocess.run`, and return its standard output.

    Raises:
        RunFailed: if it fails, with its title and the end of its output.
    """
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, **options)
    if ended.returncode != 0:
        raise RunFailed(f"{title} ended with code {ended.returncode}:\n{last_lines(ended.stdout + ended.stderr)}")
    output: str = ended.stdout
    return output


def last_lines(output: str) -> str:
    """Return the end of the output of a process."""
    return "\n".join(output.splitlines()[-LAST_LINES:])


def command_s(arguments: Sequence[str]) -> float:
    """Return the seconds that a `raysl` command takes in a new process, from its start to its exit.

    Raises:
        RunFailed: if it fails.
    """
    start = time.perf_counter()
    run_child([sys.executable, "-m", "raysl", *arguments], f"`raysl {' '.join(arguments)}`")
    return time.perf_counter() - start


def child_words(function: Callable[..., Any], arguments: Numbers) -> list[str]:
    """Return the words behind `python -m` that call a function in a new process."""
    return ["perf.harness", function.__module__, function.__name__, json.dumps(arguments)]


def child_numbers(function: Callable[..., Any], arguments: Numbers, title: str, **options: Any) -> Numbers:
    """Call a function in a new process, and return its numbers; see `run_child`."""
    output = run_child([sys.executable, "-m", *child_words(function, arguments)], title, **options)
    numbers: Numbers = json.loads(output.splitlines()[-1])
    return numbers


def _shown(result: Any) -> str:
    if isinstance(result, Mapping):
        return ", ".join(f"{name} {value:,.1f}" for name, value in result.items())
    return f"{result:,.1f}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # no /proc on this system
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def main() -> None:
    """`python -m perf.harness MODULE FUNCTION ARGUMENTS`: print the result of a function as a line of JSON."""
    module, name, text = sys.argv[1:]
    print(json.dumps(getattr(import_module(module), name)(**json.loads(text))), flush=True)


if __name__ == "__main__":
    main()
