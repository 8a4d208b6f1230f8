"""`python -m perf sweep`: a trial beside the bare run, trials an hour, and the start of a sweep of a thousand."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from perf import harness
from perf.harness import Numbers, child_numbers, command_s, machine, medians, span, verdict
from perf.many_trials import measure_starts, start_lines
from raysl.config.load import load_config
from raysl.storage.folder import Folder
from raysl.tune.trial import Note


@dataclass(frozen=True)
class Work:
    """The training of each trial: name or file of a configuration, and settings on top of it."""

    config: str
    settings: tuple[str, ...]


TINY = Work("quickstart", ("train.epochs=1", "data.limit=64", "optim.warmup=0ep", "benchmarks=[]"))
SMALL = Work("quickstart", ("train.epochs=10",))
BEYOND_S, BEYOND_PERCENT = 5.0, 5.0
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


CASES: dict[str, tuple[Callable[[SweepTask, int, Path], Numbers], Callable[[Numbers, Numbers], list[str]]]] = {
    "overhead": (_overhead, _overhead_lines),
    "concurrency": (_concurrency, _concurrency_lines),
    "scale": (measure_starts, start_lines),
}
"""Functions that measure in an empty folder, and that format the numbers."""


@dataclass(frozen=True)
class Swept:
    """Times at which the trials of a sweep began and ended."""

    seconds: float  # from the command to its exit
    begins: tuple[float, ...]  # of the trials, seconds since 1970, by their ends
    ends: tuple[float, ...]

    @property
    def trial_s(self) -> float:
        """Seconds that one trial more takes: the median from an end to the next, where they run one at a time."""
        return median_step(self.ends)

    @property
    def an_hour(self) -> float:
        """Trials an hour, from the begin of the first one to the end of the last one."""
        return 3600 * len(self.ends) / (self.ends[-1] - min(self.begins))


def median_step(moments: Sequence[float]) -> float:
    """Return the median time from one moment to the next."""
    return median(after - before for before, after in pairwise(moments))


def bare_s(work: Work, storage: Path, name: str) -> float:
    """Return the seconds of `raysl pretrain`, from the command to its exit."""
    return command_s(["pretrain", work.config, *work.settings, f"storage={storage}", f"name={name}"])


def swept(work: Work, storage: Path, name: str, trials: int, concurrent: int) -> Swept:
    """Run `raysl sweep` with one seed per trial, into a folder that must not exist yet."""
    settings = {
        "config": work.config,
        "scheduler": "none",
        "metric": "loss",
        "mode": "min",
        "concurrent": concurrent,
        "space": {"seed": {"grid": list(range(trials))}},
    }
    file = storage / f"{name}.yaml"
    file.write_text(json.dumps(settings))
    seconds = command_s(["sweep", str(file), *work.settings, f"storage={storage}", f"name={name}"])
    notes = [Note.read(Folder(str(file.parent))) for file in (storage / name).glob("trial_*/trial.json")]
    trial_times = sorted((note.ended, note.started) for note in notes if note is not None)
    ends, begins = zip(*trial_times, strict=True)
    return Swept(seconds, begins, ends)


def looped_s(work: Work, storage: Path, name: str, trials: int) -> float:
    """Return the median seconds of a turn of a loop that calls `raysl.pretrain` for each seed, without the first one.

    The cluster stays up.
    """
    task = asdict(work) | {"storage": str(storage), "name": name, "trials": trials}
    return float(child_numbers(loop, task, "the loop")["turn_s"])


def loop(config: str, settings: Sequence[str], storage: str, name: str, trials: int) -> dict[str, float]:
    """Call `raysl.pretrain` for each seed in this process."""
    from raysl.pretraining import pretrain

    ends = []
    for seed in range(trials):
        overrides = [*settings, f"storage={storage}", f"name={name}-{seed}", f"seed={seed}"]
        pretrain(load_config(config, overrides), show_progress=False)
        ends.append(time.perf_counter())
    return {"turn_s": median_step(ends)}
