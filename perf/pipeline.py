"""`python -m perf pipeline`: from encoded images to SimCLR's two views, compared with other libraries.

Several programs read the same JPEG files and make normalised float batches of them. Each turn starts one program,
warms it up, measures it and ends it: nothing else runs on the CPUs meanwhile, and no program has batches that it made
before its turn. The order changes from repeat to repeat, so that slow spells of the machine affect all programs alike;
CPU time, which other processes disturb less, is shown beside the speed. Another version of raysl, in another checkout,
can take part: its contenders have the same letters in capitals.
"""

import logging
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from perf import dali, stable
from perf.checkouts import package_of
from perf.numbers import machine, medians, ratios, rotated, verdict
from perf.pictures import STORED, write_pictures
from perf.processes import CheckoutChild, Lineup, Running, cpu_seconds
from perf.streams import StreamTask, parts_of_local
from perf.turns import Line, Starter
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
DETAILS = ("ratios", "repeats", "parts", "longest_s", "memory_gb", "cpu_us", "cpu_ratios")
CHECKOUT = Path(__file__).parents[1]
WARMUP_S = 3.0  # behind the first batch, while further processes start
FLUSH_S = 0.5  # for the batches that were made while CPU time was read
NICENESS = 15  # of Ray's workers; all contenders take it over

Turn = Mapping[str, float]
"""Numbers of a turn: `images_per_s`, `longest_s`, `memory_gb` and, on Linux, `cpu_us`."""


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
        repeats: turns of each contender.
        seconds: duration of the measurement in a turn.
        threads: threads or processes of each contender; default: one a CPU.
        beside: a checkout of another version, whose contenders D, E and F are measured with d, e and f.

    Returns:
        `{"32": {"a": images/s, ...}, "224": {...}}`, and under the same sizes `ratios`, `repeats`, `parts` (of d, in
        microseconds an image), `longest_s` (longest wait for a batch), `memory_gb` (largest of all turns), `cpu_us`
        (microseconds of CPU time an image, of all processes; Linux only), `cpu_ratios` (to the other version); and
        `environment`.

    Raises:
        ConfigError: if `beside` is not a checkout of raysl.
        RunFailed: if a contender fails.
    """
    if beside is not None:
        beside = _checked(beside)
        names += "".join(name.upper() for name in names if name.upper() in CONTENDERS)
    threads = threads or os.cpu_count() or 1
    numbers: dict[str, Any] = {"environment": machine() | {"threads": threads, "seconds": seconds, "batch": BATCH}}
    numbers["environment"]["beside"] = None if beside is None else str(beside)
    numbers |= {key: {} for key in DETAILS}
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="raysl_speed_") as folder:
            task = _task(Path(folder), size, threads)
            turns = [_repeat(task, names, repeat, seconds, beside) for repeat in range(repeats)]
            if "d" in names:
                numbers["parts"][str(size)] = parts_of_local(task, num_batches=8)
        speeds, details = _summary(names, size, turns)
        numbers[str(size)] = speeds
        for key, value in details.items():
            numbers[key][str(size)] = value
    return numbers


def pipeline_table(numbers: dict[str, Any]) -> str:
    """Format the result of `measure_pipeline` as text."""
    lines = []
    for size, parts in GOALS.items():
        key = str(size)
        if key not in numbers:
            continue
        stored = "x".join(map(str, reversed(STORED[size])))
        head = f"{size} px from {stored} JPEG"
        lines.append(f"{head:<41}{'images/s':>10}{'CPU us':>8}{'longest wait':>14}{'memory':>10}")
        for name, speed in numbers[key].items():
            memory = f"{numbers['memory_gb'][key][name]:.2f} GB"
            cpu = f"{numbers['cpu_us'][key][name]:.0f}" if name in numbers["cpu_us"][key] else "-"
            wait = f"{1000 * numbers['longest_s'][key][name]:.0f} ms"
            title = CONTENDERS[name].title if name.islower() else f"{name.lower()} of the other version"
            lines.append(f"{name}  {title:<38}{speed:>10,.0f}{cpu:>8}{wait:>14}{memory:>10}")
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


def _summary(names: str, size: int, turns: Sequence[Mapping[str, Turn]]) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the images a second of each contender, and what else the turns at one size say."""
    speeds = [{name: turn[name]["images_per_s"] for name in names} for turn in turns]
    best = [max((speed[name] for name in OTHERS if name in speed), default=0.0) for speed in speeds]
    with_best = [speed | ({"best": value} if value else {}) for speed, value in zip(speeds, best, strict=True)]
    cpu_us = [{name: turn[name]["cpu_us"] for name in names if "cpu_us" in turn[name]} for turn in turns]
    return medians(speeds), {
        "ratios": ratios(with_best, GOALS[size] | BESIDE_GOALS),
        "repeats": speeds,
        "cpu_us": medians(cpu_us),
        "cpu_ratios": ratios(cpu_us, BESIDE_GOALS),
        **{key: {name: max(turn[name][key] for turn in turns) for name in names} for key in ("longest_s", "memory_gb")},
    }


def _task(folder: Path, size: int, threads: int) -> StreamTask:
    """Write the images to a folder, and return the settings of all contenders."""
    file = folder / "pictures.parquet"
    write_pictures(file, size, PICTURES[size])
    return StreamTask(
        name="",
        socket="",
        folder=str(folder),
        file=str(file),
        size=size,
        batch_size=BATCH[size],
        threads=threads,
        niceness=NICENESS,
    )


def _repeat(task: StreamTask, names: str, repeat: int, seconds: float, beside: Path | None) -> dict[str, Turn]:
    """Run a turn of each contender."""
    turns = {}
    for name in rotated(names, repeat):
        contender = CONTENDERS[name]
        log.info("repeat %d, %s: %s, %d px", repeat + 1, name, contender.title, task.size)
        checkout = beside if beside is not None and name.isupper() else CHECKOUT
        start = partial(CheckoutChild, contender.program, checkout=checkout)
        turns[name] = _turn(start, replace(task, name=f"{name}{repeat + 1}"), seconds)
    shown = "  ".join(f"{name} {turns[name]['images_per_s']:,.0f}" for name in names)
    log.info("repeat %d, images/s: %s", repeat + 1, shown)
    return turns


def _turn(start: Callable[[StreamTask], Running], task: StreamTask, seconds: float) -> Turn:
    """Start a contender, measure it once its processes are warm, and end it.

    Raises:
        RunFailed: if it fails.
    """
    folder = Path(task.folder) / task.name
    folder.mkdir()
    with ExitStack() as stack:
        starter = Starter(folder)
        lineup = Lineup[StreamTask](starter)
        stack.callback(lineup.end)
        stack.enter_context(starter)
        lineup.add(start, replace(task, socket=starter.path, folder=str(folder)))
        line = starter.lines[task.name][0]
        try:
            _take(line, warmup_s=0.0, seconds=WARMUP_S)
            cpu_s, begun = cpu_seconds(), time.perf_counter()
            report = _take(line, warmup_s=FLUSH_S, seconds=seconds)
            # No other contender runs, so what this process and its children use is the contender's.
            elapsed, end_cpu_s = time.perf_counter() - begun, cpu_seconds()
            # A process that ends takes its CPU time out of the sum, so it ends only now.
            _take(line, warmup_s=0.0, seconds=0.0, is_last=True)
        except (EOFError, OSError) as error:
            lineup.end()
            lineup.running[task.name].check()  # says more of what went wrong
            raise RunFailed(f"contender {task.name} ended before its time") from error
        if cpu_s is None or end_cpu_s is None:
            return report
        return {**report, "cpu_us": 1e6 * (end_cpu_s - cpu_s) / elapsed / report["images_per_s"]}


def _take(line: Line, *, warmup_s: float, seconds: float, is_last: bool = False) -> Turn:
    """Have a contender take batches: some seconds untimed, then some seconds timed."""
    line.send({"warmup_s": warmup_s, "seconds": seconds, "is_last": is_last})
    return line.receive()


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
