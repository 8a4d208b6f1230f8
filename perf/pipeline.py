"""`python -m perf pipeline`: from encoded images to SimCLR's two views, compared with other libraries.

Several programs read the same JPEG files and make normalised float batches of them. Each turn starts one program,
warms it up, measures it and ends it: nothing else runs on the CPUs meanwhile, and no program has batches that it made
before its turn. CPU time, which other processes disturb less, is shown beside the speed. Another version of raysl, in
another checkout, can take part: its contenders have the same letters in capitals.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path

from perf import checkouts, dali
from perf.harness import Numbers, interleaved, machine, medians, ratios, scratch_folder, verdict
from perf.pictures import STORED, write_pictures
from perf.processes import Child, Lineup, cpu_seconds
from perf.streams import StreamTask, parts_of_local
from raysl.errors import ConfigError
from raysl.report.summary import aligned

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
PEERS = {"g": ("DALI", dali.is_installed), "i": ("stable-pretraining", lambda: bool(find_spec("stable_pretraining")))}
"""Contenders of the extra `peers`: their libraries, and whether they can be imported."""
DETAILS = ("ratios", "repeats", "parts", "longest_s", "memory_gb", "cpu_us", "cpu_ratios")
CHECKOUT = Path(__file__).parents[1]
WARMUP_S = 30.0  # behind the first batch: further processes of Ray start, and import for many seconds on few CPUs
FLUSH_S = 0.5  # for the batches that were made while CPU time was read
NICENESS = 15  # of Ray's workers; all contenders take it over

CONTENDERS = {
    "a": ("DataLoader, torchvision v2 on PIL", "vision_pil"),
    "b": ("DataLoader, torchvision v2 on tensors", "vision_tensor"),
    "c": ("DataLoader, lightly", "lightly"),
    "d": ("raysl in one process", "raysl_local"),
    "e": ("raysl on Ray", "raysl_ray"),
    "f": ("decoding alone", "decode"),
    "g": ("DALI on CPUs", "dali"),
    "h": ("DataLoader, lightly on tensors", "lightly_tensor"),
    "i": ("DataLoader, stable-pretraining", "stable"),
}
"""Titles and data paths of `perf.streams`."""
CONTENDERS |= {name.upper(): (f"{name} of the other version", CONTENDERS[name][1]) for name in "def"}


def contender_names(only: str | None = None) -> str:
    """Return the contenders to measure: all that are installed, or those named by their letters."""
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


def measure(
    only: str | None = None,
    *,
    sizes: Sequence[int] = tuple(STORED),
    repeats: int = 5,
    seconds: float = 3.0,
    threads: int | None = None,
    beside: Path | None = None,
) -> Numbers:
    """Measure images a second of each contender, at each size of the views.

    Returns:
        `{"32": {"a": images/s, ...}, "224": {...}}`, and under the same sizes `ratios`, `repeats`, `parts` (of d, in
        microseconds an image), `longest_s` (longest wait for a batch), `memory_gb` (largest of all turns), `cpu_us`
        (microseconds of CPU time an image, of all processes; Linux only), `cpu_ratios` (to the other version); and
        `environment`.
    """
    if unknown := [size for size in sizes if size not in STORED]:
        raise ConfigError(f"--size {unknown[0]}: there are pictures for {' and '.join(map(str, STORED))}")
    names = contender_names(only)
    if beside is not None:
        beside = checkouts.full_path(beside)
        names += "".join(name.upper() for name in names if name.upper() in CONTENDERS)
    threads = threads or os.cpu_count() or 1
    environment = machine() | {"threads": threads, "seconds": seconds, "batch": BATCH, "beside": beside and str(beside)}
    numbers: Numbers = {"environment": environment, **{key: {} for key in DETAILS}}
    for size in sizes:
        with scratch_folder() as folder:
            file = str(folder / "pictures.parquet")
            write_pictures(Path(file), size, PICTURES[size])
            task = StreamTask(
                name="",
                socket="",
                folder=str(folder),
                file=file,
                size=size,
                batch_size=BATCH[size],
                threads=threads,
                niceness=NICENESS,
            )

            def turn(name: str, repeat: int, task: StreamTask = task) -> dict[str, float]:
                checkout = beside if beside is not None and name.isupper() else CHECKOUT
                return _turn(replace(task, name=f"{name}{repeat + 1}"), CONTENDERS[name][1], checkout, seconds)

            turns = interleaved(names, repeats, turn, f"{size} px")
            if "d" in names:
                numbers["parts"][str(size)] = parts_of_local(task, num_batches=8)
        speeds, details = _summary(names, size, turns)
        numbers[str(size)] = speeds
        for key, value in details.items():
            numbers[key][str(size)] = value
    return numbers


def table(numbers: Numbers) -> str:
    """Format the result of `measure` as text."""
    lines = []
    for size, goals in GOALS.items():
        key = str(size)
        if key not in numbers:
            continue
        stored = "x".join(map(str, reversed(STORED[size])))
        rows = [["", f"{size} px from {stored} JPEG", "images/s", "CPU us", "longest wait", "memory"]]
        for name, speed in numbers[key].items():
            cpu = f"{numbers['cpu_us'][key][name]:.0f}" if name in numbers["cpu_us"][key] else "-"
            wait, memory = 1000 * numbers["longest_s"][key][name], numbers["memory_gb"][key][name]
            rows.append([name, CONTENDERS[name][0], f"{speed:,.0f}", cpu, f"{wait:.0f} ms", f"{memory:.2f} GB"])
        lines += aligned(rows, 2)
        for ratio, value in numbers["ratios"][key].items():
            goal = (goals | BESIDE_GOALS)[ratio]
            label = ratio.replace("best", f"best of {OTHERS}")
            lines.append(f"{label} {value:.2f}  goal at least {goal}: {verdict(value >= goal)}")
        lines += [f"CPU time {ratio} {value:.2f}" for ratio, value in numbers["cpu_ratios"][key].items()]
        if key in numbers["parts"]:
            parts = ", ".join(f"{name} {value:.0f}" for name, value in numbers["parts"][key].items())
            lines.append(f"an image in d on one thread, microseconds: {parts}")
        lines.append("")
    return "\n".join(lines).rstrip()


def _summary(names: str, size: int, turns: Sequence[Mapping[str, Numbers]]) -> tuple[dict[str, float], Numbers]:
    """Return the images a second of each contender, and the further numbers of the turns at one size."""
    speeds = [{name: turn[name]["images_per_s"] for name in names} for turn in turns]
    others = [[speed[name] for name in OTHERS if name in speed] for speed in speeds]
    with_best = [speed | ({"best": max(best)} if best else {}) for speed, best in zip(speeds, others, strict=True)]
    cpu_us = [{name: turn[name]["cpu_us"] for name in names if "cpu_us" in turn[name]} for turn in turns]
    return medians(speeds), {
        "ratios": ratios(with_best, GOALS[size] | BESIDE_GOALS),
        "repeats": speeds,
        "cpu_us": medians(cpu_us),
        "cpu_ratios": ratios(cpu_us, BESIDE_GOALS),
        **{key: {name: max(turn[name][key] for turn in turns) for name in names} for key in ("longest_s", "memory_gb")},
    }


def _turn(task: StreamTask, program: str, checkout: Path, seconds: float) -> dict[str, float]:
    """Start a contender, measure it once its processes are warm, and end it.

    Returns:
        `images_per_s`, `longest_s`, `memory_gb` and, on Linux, `cpu_us`.
    """
    folder = Path(task.folder) / task.name
    folder.mkdir()
    with Lineup(folder) as lineup:
        task = replace(task, socket=lineup.socket, folder=str(folder))
        command = checkouts.stream_command(program, json.dumps(asdict(task)))
        lineup.add(task.name, Child(command, folder / f"{task.name}.log", **checkouts.options(checkout)))
        lineup.turn(task.name, warmup_s=0.0, seconds=WARMUP_S, is_last=False)
        cpu_s, start = cpu_seconds(), time.perf_counter()
        (report,) = lineup.turn(task.name, warmup_s=FLUSH_S, seconds=seconds, is_last=False)
        # No other contender runs, so what this process and its children use is the contender's.
        elapsed, end_cpu_s = time.perf_counter() - start, cpu_seconds()
        lineup.turn(task.name, warmup_s=0.0, seconds=0.0, is_last=True)
    if cpu_s is None or end_cpu_s is None:
        return report
    return {**report, "cpu_us": 1e6 * (end_cpu_s - cpu_s) / elapsed / report["images_per_s"]}
