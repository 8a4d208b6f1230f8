"""Cost of a sweep's driver until its first trial and for its leaderboard, by the number of trials.

Nothing is trained. Each number is measured in a process of its own: a sweep of which nothing is there yet, and one of
which all trials but the last have ended, whose runs' folders were filled beforehand. Ray and Ray Tune start as they do
in any sweep, and are asked to end when the first trial has started.
"""

import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from perf.harness import child_numbers
from raysl.errors import RunFailed, Stopped
from raysl.hashing import hash_words
from raysl.process.memory import most_resident
from raysl.process.signals import handling_signals
from raysl.sweeps.load import from_tree
from raysl.sweeps.run import SweepRun
from raysl.sweeps.start import SweepStart
from raysl.train.file_names import METRICS_FILE
from raysl.tune.trial import Note, Trial, measures_of

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
    run.known()
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
