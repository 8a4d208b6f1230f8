"""`python -m perf sweep`: a trial beside the bare run, trials an hour, and the start of a sweep of a thousand."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from perf import harness
from perf.harness import Numbers, machine, medians, span, verdict
from perf.many_trials import ManyTrials, fill, measure_driver
from perf.trials import Work, bare_s, looped_s, swept

TINY = Work("quickstart", ("train.epochs=1", "data.limit=64", "optim.warmup=0ep", "benchmarks=[]"))
SMALL = Work("quickstart", ("train.epochs=10",))
BEYOND_S, BEYOND_PERCENT = 5.0, 5.0
START_S = 10.0
MANY = (10, 100, 1000)  # numbers of trials of the case `scale`
GROWTH = 1.1
"""Largest ratio of memory with the most trials to memory with the fewest that counts as flat."""
TITLES = {
    "bare": "raysl pretrain, from the command to its exit",
    "only": "raysl sweep of one trial, likewise",
    "trial": "each further trial of a sweep of {trials}",
    "turn": "each further turn of a loop of raysl.pretrain",
}
BEYOND = {
    "only - bare": "a sweep of one beyond the bare run",
    "trial - bare": "a trial beyond the bare run",
    "trial - turn": "a trial beyond a turn of the loop",
}


@dataclass(frozen=True)
class SweepTask:
    """What is trained and how often."""

    works: Mapping[str, Work]  # trainings of `overhead`, by name; `concurrency` has the last one
    trials: int = 3  # of a sweep, and turns of a loop, for `overhead`
    at_a_time: Sequence[int] = (1,)  # numbers of trials; each sweep has twice as many trials, at least four


def up_to(cores: int) -> list[int]:
    """Return 1, 2, 4, ... and the number of cores."""
    return [2**power for power in range(cores.bit_length()) if 2**power < cores] + [cores]


def measure(
    names: Sequence[str] = (),
    *,
    repeats: int = 3,
    trials: int = 3,
    is_quick: bool = False,
    task: SweepTask | None = None,
) -> Numbers:
    """Start runs, loops and sweeps of the same trainings, in turns.

    Returns:
        `cases`, by name and in each by what is trained, by trials at a time or by trials: medians and `repeats`; and
        `environment`.
    """
    works = {"tiny": TINY} if is_quick else {"tiny": TINY, "small": SMALL}
    task = task or SweepTask(works, trials, up_to(os.cpu_count() or 1))
    cases = {}
    environment = machine() | {"trials": task.trials}
    for name in harness.choose_cases(names, CASES):
        with harness.scratch_folder() as folder:
            cases[name] = CASES[name][0](task, repeats, folder)
    return {"cases": cases, "environment": environment}


def table(numbers: Numbers) -> str:
    """Format the result of `measure` as text."""
    environment = numbers["environment"]
    return "\n\n".join("\n".join(CASES[name][1](result, environment)) for name, result in numbers["cases"].items())


def _overhead(task: SweepTask, repeats: int, folder: Path) -> Numbers:
    """Seconds of each training by itself, in a loop and in sweeps, by the names of `TITLES`."""
    results = {}
    for name, work in task.works.items():

        def seconds(who: str, repeat: int, name: str = name, work: Work = work) -> float:
            storage = folder / f"{name}-{repeat}"
            storage.mkdir(exist_ok=True)
            if who == "bare":
                return bare_s(work, storage, who)
            if who == "turn":
                return looped_s(work, storage, who, task.trials)
            if who == "only":
                return swept(work, storage, who, 1, concurrent=1).seconds
            return swept(work, storage, who, task.trials, concurrent=1).trial_s

        measured = harness.interleaved(TITLES, repeats, seconds, f"{name}, seconds")
        results[name] = {"seconds": medians(measured), "repeats": measured, "settings": work.settings}
    return results


def _overhead_lines(result: Numbers, environment: Numbers) -> list[str]:
    lines = []
    for work, numbers in result.items():
        lines.append(f"{work}: {' '.join(numbers['settings'])}")
        for name, title in TITLES.items():
            each = [repeat[name] for repeat in numbers["repeats"]]
            title = title.format(trials=environment["trials"])
            lines.append(f"    {title:<52}{median(each):>7.1f} s {span(each, '.1f')}")
        for name, title in BEYOND.items():
            lines.append(f"    {title:<52}{_beyond(numbers['repeats'], *name.split(' - '))}")
    return lines


def _beyond(repeats: Sequence[Mapping[str, float]], name: str, other: str) -> str:
    """Return the extra seconds and per cent of one contender over another within each repeat, and both goals."""
    seconds = [repeat[name] - repeat[other] for repeat in repeats]
    percent = median(100 * (repeat[name] / repeat[other] - 1) for repeat in repeats)
    middle = median(seconds)
    goals = f"5 s: {verdict(middle < BEYOND_S)}, 5 %: {verdict(percent < BEYOND_PERCENT)}"
    return f"{middle:>+7.1f} s {span(seconds, '+.1f')}, {percent:+.0f} %  goals under {goals}"


def _concurrency(task: SweepTask, repeats: int, folder: Path) -> Numbers:
    last = list(task.works.values())[-1]
    # with more threads than cores each trial would wait for the others
    work = Work(last.config, (*last.settings, "train.threads=1"))

    def an_hour(name: str, repeat: int) -> float:
        trials = max(4, 2 * int(name))
        return swept(work, folder, f"at-{name}-{repeat}", trials, int(name)).an_hour

    rates = harness.interleaved(map(str, task.at_a_time), repeats, an_hour, "trials an hour")
    return {"an_hour": medians(rates), "repeats": rates, "settings": work.settings}


def _concurrency_lines(result: Numbers, environment: Numbers) -> list[str]:
    lines = [f"trials an hour on {environment['cpus']} cores: {' '.join(result['settings'])}"]
    for name, rate in result["an_hour"].items():
        lines.append(f"    {name:>4} at a time{rate:>8.0f} {span([each[name] for each in result['repeats']], '.0f')}")
    return lines


def _scale(task: SweepTask, repeats: int, folder: Path) -> Numbers:
    tasks = {}
    for num in MANY:
        for name, ended in (("new", False), ("ended", True)):
            tasks[f"{num} {name}"] = ManyTrials(storage=str(folder), num=num, ended=ended)
            if ended:
                fill(tasks[f"{num} {name}"])
    measured = harness.interleaved(tasks, repeats, lambda name, _: measure_driver(tasks[name]), "driver")
    by_name = {name: [repeat[name] for repeat in measured] for name in tasks}
    return {name: {**medians(numbers), "repeats": numbers} for name, numbers in by_name.items()}


def _scale_lines(result: Numbers, environment: Numbers) -> list[str]:
    lines = [f"{'trials':<12}{'to the first one':>17}{'before Ray':>12}{'CPU':>9}{'memory':>10}{'leaderboard':>36}"]
    for name, numbers in result.items():
        board = ""
        if "board_s" in numbers:
            memory = f"{numbers['board_memory_mb']:.0f} MB"
            board = f"{numbers['board_s']:.2f} s, CPU {numbers['board_cpu_s']:.2f} s, {memory}"
        times = f"{numbers['start_s']:>15.2f} s{numbers['plan_s']:>10.2f} s{numbers['cpu_s']:>7.2f} s"
        lines.append(f"{name:<12}{times}{numbers['memory_mb']:>7.0f} MB{board:>36}".rstrip())
    for kind in ("new", "ended"):
        names = sorted((name for name in result if name.endswith(kind)), key=lambda name: int(name.split()[0]))
        few, most = result[names[0]], result[names[-1]]
        starts = [repeat["start_s"] for repeat in most["repeats"]]
        lines.append(harness.goal_line(f"start, {names[-1]:<10}", starts, START_S, " s", ".1f"))
        growth = most["memory_mb"] / few["memory_mb"]
        lines.append(f"memory, of that of {names[0]}  {growth:.3f}  goal under {GROWTH}: {verdict(growth < GROWTH)}")
    return lines


CASES: dict[str, tuple[Callable[[SweepTask, int, Path], Numbers], Callable[[Numbers, Numbers], list[str]]]] = {
    "overhead": (_overhead, _overhead_lines),
    "concurrency": (_concurrency, _concurrency_lines),
    "scale": (_scale, _scale_lines),
}
"""Functions that measure in an empty folder, and that format the numbers."""
