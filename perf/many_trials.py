"""Cost of a sweep's driver until its first trial and for its leaderboard, by the number of trials.

Nothing is trained. Each number is measured in a process of its own: a sweep of which nothing is there yet, and one of
which all trials but the last have ended, whose runs' folders were filled beforehand. Ray and Ray Tune start as they do
in any sweep, and are asked to end when the first trial has started.
"""

import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from perf.harness import Numbers, child_numbers, goal_line, interleaved, medians, verdict
from raysl.errors import RunFailed, Stopped
from raysl.hashing import hash_words
from raysl.process.memory import most_resident
from raysl.process.signals import handling_signals
from raysl.sweeps.load import from_tree
from raysl.sweeps.run import SweepRun
from raysl.sweeps.start import SweepStart
from raysl.train.file_names import METRICS_FILE
from raysl.tune.trial import Note, Trial, measures_of

START_S = 10.0
MANY = (10, 100, 1000)  # numbers of trials
GROWTH = 1.1
"""Largest ratio of memory with the most trials to memory with the fewest that counts as flat."""
SPACE = {"optim.lr": {"loguniform": [0.02, 0.5]}, "method.temperature": {"uniform": [0.1, 1.0]}}
LINES = 60  # that each run has logged
NUMBERS = ("lr", "loss", "contrastive_top1", "embedding_std", "effective_rank", "images_per_s", "step_s", "data_wait")


@dataclass(frozen=True, kw_only=True)
class ManyTrials:
    """A sweep to simulate.

    Args:
        storage: a local folder.
        num: number of trials.
        ended: whether all but the last have ended before.
        with_ray: whether Ray and Ray Tune are started, to the first trial.
    """

    storage: str
    num: int
    ended: bool = False
    with_ray: bool = True

    def sweep(self) -> SweepRun:
        """Build the sweep as `raysl sweep` does from its file."""
        tree = {"trials": self.num, "scheduler": "asha", "metric": "knn_k20_top1", "space": SPACE}
        tree["scheduler_args"] = {"grace_period": 5}
        run_settings = {"name": f"sweep-{self.num}-{self.ended}", "storage": self.storage}
        return SweepRun.of("quickstart", from_tree(tree, ""), settings=run_settings)


def measure_driver(task: ManyTrials) -> dict[str, float]:
    """Measure the driver in a process of its own.

    Returns:
        `start_s` from the call to the start of the first trial, `plan_s` of it before Ray is started, `memory_mb`
        (the most resident) by then; of trials that have ended before `board_s` of writing the leaderboard's files, and
        `board_memory_mb` by then. `cpu_s` and `board_cpu_s` are seconds of the processor that the driver alone took.
    """
    return child_numbers(simulate, asdict(task), f"the start of {task.num} trials")


def fill(task: ManyTrials) -> None:
    """Write logs and notes of all trials except the last, as if they had ended."""
    run = task.sweep()
    if len(run.planned) != task.num:
        raise RunFailed(f"the space of the simulated sweep has {len(run.planned)} trials and not {task.num}")
    for index, trial in enumerate(list(run.planned.values())[:-1]):
        _write_end(run, trial, index)


def _write_end(run: SweepRun, trial: Trial, index: int) -> None:
    base = run.bases[trial.config]
    folder = run.folder.child(trial.name)
    folder.make()
    skill = hash_words(7, index) / 2**64
    lines = []
    for number in range(1, LINES + 1):
        share = number / LINES
        line = {"step": 22 * number, "epoch": round(share * base.train.epochs, 4)}
        line |= {name: round((1 + at) * (1 - share * skill), 9) for at, name in enumerate(NUMBERS)}
        lines.append(line | {"knn_k20_top1": 100 * skill * share})
    folder.write(METRICS_FILE, "".join(json.dumps(line) + "\n" for line in lines).encode())
    Note(
        status="finished",
        until=base.train.epochs,
        epoch=base.train.epochs,
        metrics={"knn_k20_top1": 100 * skill, "knn/k20/top1": 100 * skill, "low_shot/top1": 80 * skill},
        costs={"seconds": 60.0, "step_s": 0.05, "memory_gb": 1.2},
        measures=measures_of(base),
        checkpoint=folder.uri_of("checkpoint_1760"),
        started=1000.0 + index,
        ended=1060.0 + index,
    ).write(folder)


def simulate(**settings: Any) -> dict[str, float]:
    """Measure the numbers of `measure_driver` in this process, for the settings of `ManyTrials`."""
    task = ManyTrials(**settings)
    begun, cpu_begun = time.perf_counter(), time.process_time()
    run = task.sweep()
    run.folder.make()
    run.current_board()
    start = SweepStart(run)
    numbers = {"plan_s": time.perf_counter() - begun}

    def note(trial: Trial) -> None:
        start.ending.is_set = True
        if "start_s" not in numbers:
            numbers["start_s"], numbers["cpu_s"] = time.perf_counter() - begun, time.process_time() - cpu_begun
            numbers["memory_mb"] = most_resident() / 2**20

    if task.with_ray:
        run.ledger.begin = note  # type: ignore[method-assign]
        with handling_signals() as signals, suppress(Stopped):
            start.run(signals)
    else:
        note(next(iter(run.planned.values())))
        numbers["start_s"] = numbers["plan_s"]
    if task.ended:
        begun, cpu_begun = time.perf_counter(), time.process_time()
        run.board.write("done")
        numbers |= {"board_s": time.perf_counter() - begun, "board_cpu_s": time.process_time() - cpu_begun}
        numbers["board_memory_mb"] = most_resident() / 2**20
    return numbers


def measure_starts(_: object, repeats: int, folder: Path) -> Numbers:
    """Measure the driver of sweeps of `MANY` trials, new ones and ones that have nearly ended."""
    tasks = {}
    for num in MANY:
        for name, ended in (("new", False), ("ended", True)):
            tasks[f"{num} {name}"] = ManyTrials(storage=str(folder), num=num, ended=ended)
            if ended:
                fill(tasks[f"{num} {name}"])
    measured = interleaved(tasks, repeats, lambda name, _: measure_driver(tasks[name]), "driver")
    by_name = {name: [repeat[name] for repeat in measured] for name in tasks}
    return {name: {**medians(numbers), "repeats": numbers} for name, numbers in by_name.items()}


def start_lines(result: Numbers, _: Numbers) -> list[str]:
    """Format the result of `measure_starts` as lines."""
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
        lines.append(goal_line(f"start, {names[-1]:<10}", starts, START_S, " s", ".1f"))
        growth = most["memory_mb"] / few["memory_mb"]
        lines.append(f"memory, of that of {names[0]}  {growth:.3f}  goal under {GROWTH}: {verdict(growth < GROWTH)}")
    return lines
