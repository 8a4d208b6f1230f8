"""`python -m perf pipeline`: from encoded images to SimCLR's two views, compared with other libraries.

Several programs read the same JPEG files and make normalised float batches of them. All are alive at once and take
turns on the same CPUs, in an order that changes from repeat to repeat, so that slow spells of the machine meet all of
them alike; CPU time, which other processes disturb less, is shown beside the speed. A turn first takes what a program
has made ahead while it waited. Another version of raysl, in a checkout of its own, can take part: its contenders have
the same letters in capitals.
"""

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ray

from perf import dali, stable
from perf.numbers import machine, medians, ratios, rotated, verdict
from perf.older import package_of
from perf.pictures import STORED, write_pictures
from perf.processes import Child, Lineup, Older, RayRun, Running, cpu_seconds
from perf.streams import StreamTask, parts_of_local, raysl_ray
from perf.turns import Starter
from raysl.cluster.connection import connect
from raysl.errors import ConfigError, RunFailed

log = logging.getLogger("raysl")

BATCH = {32: 256, 224: 32}
PICTURES = {32: 8192, 224: 256}
GOALS = {
    32: {"d/best": 5.0, "e/d": 0.85, "e/best": 12.0, "e/g": 1.0},
    224: {"d/best": 2.5, "e/d": 0.85, "e/best": 7.0, "e/g": 1.0},
}
BESIDE_GOALS = {"d/D": 0.97, "e/E": 0.97, "f/F": 0.97}
"""Least share of the speed of another version, at any size."""
OTHERS = "abchi"
"""Contenders of which the fastest is `best`."""
PEERS = {"g": ("DALI", dali.is_installed), "i": ("stable-pretraining", stable.is_installed)}
"""Contenders of the extra `peers`: their libraries, and whether they can be imported."""
ON_RAY = "e"
DETAILS = ("ratios", "repeats", "parts", "longest_s", "memory_gb", "cpu_us", "cpu_ratios")
WARMUP_S = 2.0  # for what was made ahead between turns


@dataclass(frozen=True)
class Contender:
    """A data path of `perf.streams`."""

    title: str
    program: str


CONTENDERS = {
    "a": Contender("DataLoader, torchvision v2 on PIL", "vision_pil"),
    "b": Contender("DataLoader, torchvision v2 on tensors", "vision_tensor"),
    "c": Contender("DataLoader, lightly", "lightly"),
    "d": Contender("raysl in one process", "raysl_local"),
    "e": Contender("raysl on Ray", "raysl_ray"),
    "f": Contender("decoding alone", "decode"),
    "g": Contender("DALI on CPUs", "dali"),
    "h": Contender("DataLoader, lightly on tensors", "lightly_tensor"),
    "i": Contender("DataLoader, stable-pretraining", "stable"),
}
CONTENDERS |= {name.upper(): CONTENDERS[name] for name in "def"}


def contender_names(only: str | None = None) -> str:
    """Return the contenders to measure: all that are installed, or those named by their letters.

    Raises:
        ConfigError: if there is no such contender, or it is not installed.
    """
    known = "".join(name for name in CONTENDERS if name.islower())
    for name in only or "":
        if name not in known:
            raise ConfigError(f"--only {only}: there is no contender {name!r}; write some of {known}")
    for name, (library, is_installed) in PEERS.items():
        if not is_installed():
            if name in (only or ""):
                raise ConfigError(f"--only {only}: {library} is not installed; run `pip install -e '.[peers]'`")
            known = known.replace(name, "")
    return only or known


def measure_pipeline(
    names: str = "abcdefh",
    *,
    sizes: Sequence[int] = (32, 224),
    repeats: int = 5,
    seconds: float = 3.0,
    threads: int | None = None,
    beside: Path | None = None,
) -> dict[str, Any]:
    """Measure images a second of each contender, at each size of the views.

    Args:
        names: keys of `CONTENDERS` in small letters.
        sizes: sides of the views in pixels, keys of `perf.pictures.STORED`.
        repeats: turns of each.
        seconds: that a turn measures.
        threads: of each contender; default: one a CPU.
        beside: a checkout of another version, whose contenders D, E and F are measured with d, e and f.

    Returns:
        `{"32": {"a": images/s, ...}, "224": {...}}`, and under the same sizes `ratios`, `repeats`, `parts` (of d, in
        microseconds an image), `longest_s` (longest wait for a batch), `memory_gb` (at the first and the last turn),
        `cpu_us` (microseconds of CPU time an image, of all processes; Linux only), `cpu_ratios` (to the other
        version); and `environment`.

    Raises:
        ConfigError: if `beside` is not a checkout of raysl.
        RunFailed: if a contender fails.
    """
    if beside is not None:
        beside = _checked(beside)
        names += "".join(name.upper() for name in names if name.upper() in CONTENDERS)
    threads = threads or os.cpu_count() or 1
    found: dict[str, Any] = {"environment": machine() | {"threads": threads, "seconds": seconds, "batch": BATCH}}
    found["environment"]["beside"] = None if beside is None else str(beside)
    details: dict[str, dict[str, Any]] = {key: {} for key in DETAILS}
    for size in sizes:
        with _ready(names, size, threads, beside) as (lineup, task):
            turns = [_repeat(lineup, names, repeat, seconds, repeat == repeats - 1) for repeat in range(repeats)]
            if "d" in names:
                details["parts"][str(size)] = parts_of_local(task, num_batches=8)
        speeds = [{name: turn[name]["images_per_s"] for name in names} for turn in turns]
        found[str(size)] = medians(speeds)
        best = [max((turn[name] for name in OTHERS if name in turn), default=0.0) for turn in speeds]
        with_best = [turn | ({"best": value} if value else {}) for turn, value in zip(speeds, best, strict=True)]
        details["ratios"][str(size)] = ratios(with_best, GOALS[size] | BESIDE_GOALS)
        details["repeats"][str(size)] = speeds
        cpu_us = [{name: turn[name]["cpu_us"] for name in names if "cpu_us" in turn[name]} for turn in turns]
        details["cpu_us"][str(size)] = medians(cpu_us)
        details["cpu_ratios"][str(size)] = ratios(cpu_us, BESIDE_GOALS)
        details["longest_s"][str(size)] = {name: max(turn[name]["longest_s"] for turn in turns) for name in names}
        details["memory_gb"][str(size)] = {
            name: [turns[0][name]["memory_gb"], turns[-1][name]["memory_gb"]] for name in names
        }
    return found | details


def pipeline_table(numbers: dict[str, Any]) -> str:
    """Format the result of `measure_pipeline` as text."""
    lines = []
    for size, parts in GOALS.items():
        key = str(size)
        if key not in numbers:
            continue
        stored = "x".join(map(str, reversed(STORED[size])))
        head = f"{size} px from {stored} JPEG"
        lines.append(f"{head:<41}{'images/s':>10}{'CPU us':>8}{'longest wait':>14}{'memory, first to last':>24}")
        for name, speed in numbers[key].items():
            memory = " to ".join(f"{value:.2f}" for value in numbers["memory_gb"][key][name])
            cpu = f"{numbers['cpu_us'][key][name]:.0f}" if name in numbers["cpu_us"][key] else "-"
            wait = f"{1000 * numbers['longest_s'][key][name]:.0f} ms"
            title = CONTENDERS[name].title if name.islower() else f"{name.lower()} of the other version"
            lines.append(f"{name}  {title:<38}{speed:>10,.0f}{cpu:>8}{wait:>14}{memory + ' GB':>24}")
        for ratio, goal in (parts | BESIDE_GOALS).items():
            if ratio in numbers["ratios"][key]:
                value = numbers["ratios"][key][ratio]
                label = ratio.replace("best", f"best of {OTHERS}")
                lines.append(f"{label} {value:.2f}  goal at least {goal}: {verdict(value >= goal)}")
        for ratio, value in numbers["cpu_ratios"][key].items():
            lines.append(f"CPU time {ratio} {value:.2f}")
        if key in numbers["parts"]:
            spent = ", ".join(f"{name} {value:.0f}" for name, value in numbers["parts"][key].items())
            lines.append(f"an image in d on one thread, microseconds: {spent}")
        lines.append("")
    return "\n".join(lines).rstrip()


class _Lineup(Lineup[StreamTask]):
    """The started contenders, each waiting for its turn."""

    def run(self, name: str, seconds: float, is_last: bool) -> dict[str, float]:
        """Have a contender run a turn, and return its report."""
        line = self.starter.lines[name][0]
        cpu_s, start = cpu_seconds(), time.perf_counter()
        try:
            line.send({"warmup_s": WARMUP_S, "seconds": seconds, "is_last": is_last})
            report = line.receive()
        except (EOFError, OSError) as error:
            self.running[name].end()
            self.running[name].check()  # says more of what went wrong
            raise RunFailed(f"contender {name} ended before its time") from error
        # All others wait, so what this process and its children use is the contender's.
        seconds, end_cpu_s = time.perf_counter() - start, cpu_seconds()
        if cpu_s is None or end_cpu_s is None:
            return report
        return report | {"cpu_us": 1e6 * (end_cpu_s - cpu_s) / seconds / report["images_per_s"]}


@contextmanager
def _ready(names: str, size: int, threads: int, beside: Path | None) -> Iterator[tuple[_Lineup, StreamTask]]:
    """Start the contenders one by one; the one on Ray first, whose niceness the others take over."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="raysl_speed_")))
        file = folder / "pictures.parquet"
        write_pictures(file, size, PICTURES[size])
        if ON_RAY in names and not ray.is_initialized():
            connect()
            stack.callback(ray.shutdown)
        starter = Starter(folder)
        lineup = _Lineup(starter)
        stack.callback(lineup.end)
        stack.enter_context(starter)
        task = StreamTask(
            name="",
            socket=starter.path,
            folder=str(folder),
            file=str(file),
            size=size,
            batch_size=BATCH[size],
            threads=threads,
        )
        for name in sorted(names, key=lambda name: name.lower() != ON_RAY):
            contender = CONTENDERS[name]
            log.info("starting %s: %s, %d px", name, contender.title, size)
            start = _start(name, beside)
            task = replace(task, name=name, niceness=max(task.niceness, lineup.add(start, replace(task, name=name))))
            lineup.run(name, 0.0, is_last=False)
        yield lineup, task


def _start(name: str, beside: Path | None) -> Callable[[StreamTask], Running]:
    """Return the function that starts a contender."""
    program = CONTENDERS[name].program
    if name.isupper():
        assert beside is not None
        return partial(Older, program, checkout=beside)
    return partial(RayRun, program=raysl_ray) if name == ON_RAY else partial(Child, program, module="perf.streams")


def _checked(checkout: Path) -> Path:
    """Return the full path of a checkout of raysl.

    Raises:
        ConfigError: if it is none.
    """
    if package_of(checkout) is None:
        raise ConfigError(
            f"--beside {checkout}: no perf/streams.py there; give a checkout of raysl, "
            "which `git worktree add FOLDER COMMIT` makes"
        )
    return checkout.resolve()


def _repeat(lineup: _Lineup, names: str, repeat: int, seconds: float, is_last: bool) -> dict[str, dict[str, float]]:
    turns = {name: lineup.run(name, seconds, is_last) for name in rotated(names, repeat)}
    shown = "  ".join(f"{name} {turns[name]['images_per_s']:,.0f}" for name in names)
    log.info("repeat %d, images/s: %s", repeat + 1, shown)
    return turns
