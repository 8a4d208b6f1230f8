"""`python -m perf loss`: forward and backward of each loss at realistic sizes, beside lightly's and a plain form.

Contenders of one case take turns in this process, on the same numbers, so that slow spells of the machine meet all of
them alike. Memory is that of processes of their own: the most that each has resident, less what it has when its numbers
are made. Freed memory is kept while time is taken, as in a training worker (`raysl.process.memory`): nobody pays for
pages.
"""

import json
import logging
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from perf.loss_cases import CASES, Case, Contenders, Sizes
from perf.numbers import choose_cases, machine, medians, ratios, rotated, verdict
from raysl.errors import RunFailed
from raysl.process.memory import keep_freed_memory, most_resident, resident
from raysl.process.screen import counted

log = logging.getLogger("raysl")

PEERS = ("lightly", "faiss", "plain")
RATIOS = [f"raysl/{peer}" for peer in PEERS]


def measure_loss(
    names: Sequence[str] = (), *, repeats: int = 5, sizes: Sizes | None = None, with_memory: bool = True
) -> dict[str, Any]:
    """Seconds and memory of each contender of each case.

    Args:
        names: keys of `CASES`; default: all.
        repeats: turns of each contender.
        sizes: of everything; default: realistic ones.
        with_memory: whether to start each once more, in a process of its own.

    Returns:
        By case: `seconds` (medians), `ratios` (medians over repeats, each taken inside one), `repeats`, `memory_mb`;
        and `environment`.

    Raises:
        ConfigError: if there is no such case.
        RunFailed: if a process fails.
    """
    sizes = sizes or Sizes()
    names = choose_cases(names, CASES)
    keep_freed_memory()
    found: dict[str, Any] = {}
    for name in names:
        case = CASES[name]
        contenders = case.build(sizes)
        found[name] = _timed(contenders, repeats) if case.is_timed else {"ratios": {}, "repeats": []}
        memory = {who: _process(name, who, sizes) for who in contenders} if with_memory else {}
        found[name]["memory_mb"] = {who: numbers["memory_mb"] for who, numbers in memory.items()}
        if not case.is_timed:
            found[name]["seconds"] = {who: numbers["seconds"] for who, numbers in memory.items()}
        log.info("%s", _lines(case, found[name], sizes)[0])
    return {"cases": found, "environment": machine() | {"threads": torch.get_num_threads(), "sizes": asdict(sizes)}}


def loss_table(numbers: dict[str, Any]) -> str:
    """Format the result of `measure_loss` as text."""
    sizes = Sizes(**numbers["environment"]["sizes"])
    lines = [f"{'':<62}{'raysl':>11}{'lightly':>11}{'faiss':>11}{'plain':>11}"]
    for name, case in CASES.items():
        if name in numbers["cases"]:
            lines += _lines(case, numbers["cases"][name], sizes)
    threads, load = numbers["environment"]["threads"], numbers["environment"]["load_before"]
    return "\n".join([*lines, f"{counted(threads, 'thread')}, load before {load}"])


def _lines(case: Case, found: dict[str, Any], sizes: Sizes) -> list[str]:
    """Return the line of a case, one for its memory, and one for each goal."""
    seconds = [_cell(found["seconds"].get(who), 1000, "ms") for who in ("raysl", *PEERS)]
    memory = [_cell(found["memory_mb"].get(who), 1, "MB") for who in ("raysl", *PEERS)]
    lines = [f"{case.title.format_map(asdict(sizes)):<62}{''.join(seconds)}", f"{'':<62}{''.join(memory)}"]
    for ratio, goal in case.goals.items():
        if ratio in found["ratios"]:
            each = [ratios([repeat], [ratio])[ratio] for repeat in found["repeats"]]
            value, span = found["ratios"][ratio], f"{min(each):.2f} to {max(each):.2f}"
            lines.append(f"    {ratio} {value:.2f} ({span})  goal at most {goal}: {verdict(value <= goal)}")
    if case.most_mb is not None and "raysl" in found["memory_mb"]:
        is_met = found["memory_mb"]["raysl"] <= case.most_mb
        lines.append(f"    memory  goal at most {case.most_mb:,.0f} MB: {verdict(is_met)}")
    return lines


def _cell(value: float | None, factor: float, unit: str) -> str:
    return f"{'' if value is None else f'{factor * value:,.1f} {unit}':>11}"


def _timed(contenders: Contenders, repeats: int) -> dict[str, Any]:
    for run in contenders.values():
        run()
    measured = []
    for repeat in range(repeats):
        seconds = {name: _seconds(contenders[name]) for name in rotated(list(contenders), repeat)}
        measured.append({name: seconds[name] for name in contenders})
    return {"seconds": medians(measured), "ratios": ratios(measured, RATIOS), "repeats": measured}


def _seconds(run: Any) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _process(case: str, contender: str, sizes: Sizes) -> dict[str, float]:
    """Measure one contender in a process of its own."""
    task = json.dumps({"case": case, "contender": contender, "sizes": asdict(sizes)})
    done = subprocess.run([sys.executable, "-m", "perf.loss", task], capture_output=True, text=True)
    if done.returncode:
        raise RunFailed(f"{contender} failed at {case}:\n{done.stderr[-2000:]}")
    numbers: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return numbers


def measure_memory(case: str, contender: str, sizes: Sizes) -> dict[str, float]:
    """Memory in MB, and seconds, of the first run of a contender in this process."""
    run = CASES[case].build(sizes)[contender]
    before = resident()
    seconds = _seconds(run)
    return {"memory_mb": max(most_resident() - before, 0) / 2**20, "seconds": seconds}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(measure_memory(given["case"], given["contender"], Sizes(**given["sizes"]))))
