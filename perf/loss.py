"""`python -m perf loss`: forward and backward of each loss at realistic sizes, beside lightly's and a plain form.

Contenders of one case take turns in this process, on the same numbers. Memory is that of processes of their own: the
most that each has resident, less what it has when its numbers are made. Freed memory is kept while time is taken, as in
a training worker (`raysl.process.memory`): nobody pays for pages.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

import torch

from perf import harness
from perf.harness import Numbers, each_ratio, log, machine, medians, span, verdict
from perf.loss_cases import CASES, Case, Contenders, Sizes
from raysl.process.memory import keep_freed_memory, most_resident, resident
from raysl.process.screen import counted

COLUMNS = ("raysl", "lightly", "faiss", "plain")
RATIOS = [f"raysl/{peer}" for peer in COLUMNS[1:]]


def measure(
    names: Sequence[str] = (), *, repeats: int = 5, sizes: Sizes | None = None, with_memory: bool = True
) -> Numbers:
    """Measure seconds and memory of each contender of each case.

    Returns:
        By case: `seconds` (medians), `ratios` (medians over repeats, each taken inside one), `repeats`, `memory_mb`;
        and `environment`.
    """
    sizes, names = sizes or Sizes(), harness.choose_cases(names, CASES)
    keep_freed_memory()
    results: Numbers = {}
    for name in names:
        case, contenders = CASES[name], CASES[name].build(sizes)
        measured: list[dict[str, float]] = []
        if case.is_timed:
            for run in contenders.values():
                run()
            measured = harness.interleaved(contenders, repeats, partial(_turn, contenders))
        children = {}
        for who in contenders if with_memory else ():
            task = {"case": name, "contender": who, "sizes": asdict(sizes)}
            children[who] = harness.child_numbers(measure_memory, task, f"{who} at {name}")
        results[name] = {
            "seconds": medians(measured) if measured else {who: child["seconds"] for who, child in children.items()},
            "ratios": harness.ratios(measured, RATIOS) if measured else {},
            "repeats": measured,
            "memory_mb": {who: child["memory_mb"] for who, child in children.items()},
        }
        log.info("%s", _lines(case, results[name], sizes)[0])
    return {
        "cases": results,
        "environment": machine() | {"threads": torch.get_num_threads(), "sizes": asdict(sizes)},
    }


def table(numbers: Numbers) -> str:
    """Format the result of `measure` as text."""
    environment = numbers["environment"]
    sizes = Sizes(**environment["sizes"])
    lines = [f"{'':<62}" + "".join(f"{name:>11}" for name in COLUMNS)]
    for name, case in CASES.items():
        if name in numbers["cases"]:
            lines += _lines(case, numbers["cases"][name], sizes)
    return "\n".join([*lines, f"{counted(environment['threads'], 'thread')}, load before {environment['load_before']}"])


def _lines(case: Case, result: Numbers, sizes: Sizes) -> list[str]:
    """Return the line of a case, one for its memory, and one for each goal."""
    seconds, memory_mb = result["seconds"], result["memory_mb"]
    times = [f"{1000 * seconds[name]:,.1f} ms" if name in seconds else "" for name in COLUMNS]
    memory = [f"{memory_mb[name]:,.1f} MB" if name in memory_mb else "" for name in COLUMNS]
    lines = [
        f"{title:<62}" + "".join(f"{cell:>11}" for cell in cells)
        for title, cells in ((case.title.format_map(asdict(sizes)), times), ("", memory))
    ]
    for ratio, goal in case.goals.items():
        if ratio in result["ratios"]:
            value, each = result["ratios"][ratio], each_ratio(result["repeats"], ratio)
            lines.append(f"    {ratio} {value:.2f} {span(each)}  goal at most {goal}: {verdict(value <= goal)}")
    if case.most_mb is not None and "raysl" in memory_mb:
        is_met = memory_mb["raysl"] <= case.most_mb
        lines.append(f"    memory  goal at most {case.most_mb:,.0f} MB: {verdict(is_met)}")
    return lines


def _turn(contenders: Contenders, who: str, repeat: int) -> float:
    return _seconds(contenders[who])


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure_memory(case: str, contender: str, sizes: Numbers) -> dict[str, float]:
    """Measure memory in MB, and seconds, of the first run of a contender in this process."""
    run = CASES[case].build(Sizes(**sizes))[contender]
    before = resident()
    seconds = _seconds(run)
    return {"memory_mb": max(most_resident() - before, 0) / 2**20, "seconds": seconds}
