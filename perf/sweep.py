"""`python -m perf sweep`: a trial beside the bare run, trials an hour, and the start of a sweep of a thousand."""

import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from perf.many_trials import ManyTrials, fill, measure_driver
from perf.numbers import machine, medians, rotated, seconds_line, verdict
from perf.trials import Work, bare_s, looped_s, swept

log = logging.getLogger("raysl")

Found = dict[str, Any]

TINY = Work("quickstart", ("train.epochs=1", "data.limit=64", "optim.warmup=0ep", "benchmarks=[]"))
SMALL = Work("quickstart", ("train.epochs=10",))
BEYOND_S, BEYOND_PERCENT = 5.0, 5.0
START_S = 10.0
GROWTH = 1.1
"""Largest ratio of memory with the most trials to memory with the fewest that counts as flat."""
TITLES = {
    "bare": "raysl pretrain, from the command to its exit",
    "only": "raysl sweep of one trial, likewise",
    "start": "  from the command to the begin of its first trial",
    "trial": "each further trial of a sweep of {trials}",
    "turn": "each further turn of a loop of raysl.pretrain",
}
BEYOND = {
    "only - bare": "a sweep of one beyond the bare run",
    "trial - bare": "a trial beyond the bare run",
    "trial - turn": "a trial beyond a turn of the loop",
}


@dataclass(frozen=True, kw_only=True)
class SweepSizes:
    """Sizes of the measurements.

    Args:
        works: what trials train, by name, for `overhead`.
        trials: of a sweep and turns of a loop, for `overhead`.
        side_by_side: what trials train, for `concurrency`.
        at_a_time: numbers of trials at a time; each sweep has twice as many trials, at least four.
        many: numbers of trials, for `scale`.
        with_ray: whether `scale` starts Ray.
    """

    works: Mapping[str, Work]
    trials: int = 3
    side_by_side: Work = SMALL
    at_a_time: Sequence[int] = (1,)
    many: Sequence[int] = (10, 100, 1000)
    with_ray: bool = True

    @classmethod
    def of_machine(cls, trials: int = 3, is_quick: bool = False) -> "SweepSizes":
        """With trials at a time up to the cores of this machine.

        Args:
            trials: of a sweep that is compared with bare runs.
            is_quick: whether all train a few steps alone.
        """
        works = {"tiny": TINY} if is_quick else {"tiny": TINY, "small": SMALL}
        last = TINY if is_quick else SMALL
        # of more threads than cores each would wait for the others
        alone = Work(last.config, (*last.settings, "train.threads=1"))
        return cls(works=works, trials=trials, side_by_side=alone, at_a_time=up_to(os.cpu_count() or 1))


def up_to(cores: int) -> list[int]:
    """1, 2, 4, ... and the number of cores."""
    doubled = [2**power for power in range(cores.bit_length()) if 2**power < cores]
    return [*doubled, cores]


def measure_sweep(
    names: Sequence[str] = ("overhead", "concurrency", "scale"), *, repeats: int = 3, sizes: SweepSizes | None = None
) -> Found:
    """Start runs, loops and sweeps of the same trainings, in turns.

    Args:
        names: keys of `CASES`.
        repeats: of each.
        sizes: how much is measured; default: that of this machine.

    Returns:
        `cases`, by name and in each by what is trained, by trials at a time or by trials: medians and `repeats`; and
        `environment`.

    Raises:
        RunFailed: if a run fails.
    """
    sizes = sizes or SweepSizes.of_machine()
    environment = machine() | {"trials": sizes.trials}
    cases = {}
    for name in names:
        with tempfile.TemporaryDirectory(prefix="raysl_speed_") as folder:
            cases[name] = CASES[name].measure(sizes, repeats, Path(folder))
    return {"cases": cases, "environment": environment}


def sweep_table(numbers: Found) -> str:
    """Format the result of `measure_sweep` as text."""
    return "\n\n".join(
        "\n".join(CASES[name].lines(result, numbers["environment"])) for name, result in numbers["cases"].items()
    )


def _overhead(sizes: SweepSizes, repeats: int, folder: Path) -> Found:
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in sizes.works}
    for repeat in range(repeats):
        for name in rotated(list(sizes.works), repeat):
            measured[name].append(_side_by_side(sizes.works[name], sizes.trials, repeat, folder / f"{name}-{repeat}"))
            shown = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in measured[name][-1].items())
            log.info("overhead, %s, repeat %d of %d: %s", name, repeat + 1, repeats, shown)
    return {
        name: {"seconds": medians(own), "repeats": own, "settings": sizes.works[name].settings}
        for name, own in measured.items()
    }


def _side_by_side(work: Work, trials: int, repeat: int, folder: Path) -> dict[str, float]:
    """Seconds of a training by itself, in a loop and in sweeps, by the names of `TITLES`."""
    folder.mkdir()

    def swept_s() -> dict[str, float]:
        result = swept(work, folder, "sweep", trials, concurrent=1)
        return {"trial": result.trial_s, "start": result.start_s}

    contenders: dict[str, Callable[[], dict[str, float]]] = {
        "bare": lambda: {"bare": bare_s(work, folder, "bare")},
        "only": lambda: {"only": swept(work, folder, "only", 1, concurrent=1).seconds},
        "trial": swept_s,
        "turn": lambda: {"turn": looped_s(work, folder, "turn", trials)},
    }
    result: dict[str, float] = {}
    for name in rotated(list(contenders), repeat):
        result |= contenders[name]()
    return {name: result[name] for name in TITLES}


def _overhead_lines(found: Found, environment: Found) -> list[str]:
    lines = []
    for work, own in found.items():
        lines.append(f"{work}: {' '.join(own['settings'])}")
        for name, title in TITLES.items():
            each = [repeat[name] for repeat in own["repeats"]]
            title = title.format(trials=environment["trials"])
            lines.append(f"    {title:<52}{median(each):>7.1f} s ({min(each):.1f} to {max(each):.1f})")
        for name, title in BEYOND.items():
            lines.append(f"    {title:<52}{_beyond(own['repeats'], *name.split(' - '))}")
    return lines


def _beyond(repeats: Sequence[Mapping[str, float]], own: str, other: str) -> str:
    """Return the extra seconds and per cent of one contender over another within each repeat, and both goals."""
    seconds = [repeat[own] - repeat[other] for repeat in repeats]
    percent = median(100 * (repeat[own] / repeat[other] - 1) for repeat in repeats)
    middle = median(seconds)
    goals = (
        f"{title}: {verdict(is_met)}"
        for title, is_met in (("5 s", middle < BEYOND_S), ("5 %", percent < BEYOND_PERCENT))
    )
    span = f"{min(seconds):+.1f} to {max(seconds):+.1f}"
    return f"{middle:>+7.1f} s ({span}), {percent:+.0f} %  goals under {', '.join(goals)}"


def _concurrency(sizes: SweepSizes, repeats: int, folder: Path) -> Found:
    rates: list[dict[str, float]] = []
    for repeat in range(repeats):
        result = {}
        for name in rotated([str(num) for num in sizes.at_a_time], repeat):
            trials = max(4, 2 * int(name))
            result[name] = swept(sizes.side_by_side, folder, f"at-{name}-{repeat}", trials, int(name)).an_hour
            log.info("%s at a time, repeat %d of %d: %.0f trials an hour", name, repeat + 1, repeats, result[name])
        rates.append({str(num): result[str(num)] for num in sizes.at_a_time})
    first = str(sizes.at_a_time[0])
    relative = [{name: rate / repeat[first] for name, rate in repeat.items()} for repeat in rates]
    settings = sizes.side_by_side.settings
    return {"an_hour": medians(rates), "of_one": medians(relative), "repeats": rates, "settings": settings}


def _concurrency_lines(found: Found, environment: Found) -> list[str]:
    lines = [f"trials an hour on {environment['cpus']} cores: {' '.join(found['settings'])}"]
    for name, rate in found["an_hour"].items():
        each = [repeat[name] for repeat in found["repeats"]]
        span = f"{min(each):.0f} to {max(each):.0f}"
        lines.append(f"    {name:>4} at a time{rate:>8.0f} ({span})  {found['of_one'][name]:.2f} of one at a time")
    return lines


def _scale(sizes: SweepSizes, repeats: int, folder: Path) -> Found:
    tasks = {}
    for num in sizes.many:
        for name, ended in (("new", False), ("ended", True)):
            task = ManyTrials(storage=str(folder), num=num, ended=ended, with_ray=sizes.with_ray)
            if ended:
                fill(task)
            tasks[f"{num} {name}"] = task
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in tasks}
    for repeat in range(repeats):
        for name in rotated(list(tasks), repeat):
            measured[name].append(measure_driver(tasks[name]))
            log.info("%s, repeat %d of %d: %.1f s", name, repeat + 1, repeats, measured[name][-1]["start_s"])
    return {name: {**medians(own), "repeats": own} for name, own in measured.items()}


def _scale_lines(found: Found, environment: Found) -> list[str]:
    lines = [f"{'trials':<12}{'to the first one':>17}{'before Ray':>12}{'CPU':>9}{'memory':>10}{'leaderboard':>36}"]
    for name, own in found.items():
        board = ""
        if "board_s" in own:
            board = f"{own['board_s']:.2f} s, CPU {own['board_cpu_s']:.2f} s, {own['board_memory_mb']:.0f} MB"
        times = f"{own['start_s']:>15.2f} s{own['plan_s']:>10.2f} s{own['cpu_s']:>7.2f} s"
        lines.append(f"{name:<12}{times}{own['memory_mb']:>7.0f} MB{board:>36}".rstrip())
    for kind in ("new", "ended"):
        names = sorted((name for name in found if name.endswith(kind)), key=lambda name: int(name.split()[0]))
        few, most = found[names[0]], found[names[-1]]
        starts = [repeat["start_s"] for repeat in most["repeats"]]
        lines.append(seconds_line(f"start, {names[-1]:<10}", starts, START_S))
        growth = most["memory_mb"] / few["memory_mb"]
        lines.append(f"memory, of that of {names[0]}  {growth:.3f}  goal under {GROWTH}: {verdict(growth < GROWTH)}")
    return lines


@dataclass(frozen=True)
class Case:
    """A case to measure.

    Args:
        measure: sizes, repeats and an empty folder to the numbers.
        lines: numbers and environment to lines of a table.
    """

    measure: Callable[[SweepSizes, int, Path], Found]
    lines: Callable[[Found, Found], list[str]]


CASES = {
    "overhead": Case(_overhead, _overhead_lines),
    "concurrency": Case(_concurrency, _concurrency_lines),
    "scale": Case(_scale, _scale_lines),
}
