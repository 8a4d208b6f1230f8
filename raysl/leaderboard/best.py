"""The best runs of a leaderboard with their configurations, and how far they are above untrained networks."""

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from raysl.config.dump import write
from raysl.leaderboard.choice import Choice
from raysl.leaderboard.entry import Entry
from raysl.leaderboard.flat import shown
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.redact import redact_uri
from raysl.report.contents import ONLINE_KNN
from raysl.report.verdict import RIVALS, Gain, sentence
from raysl.storage.folder import Folder, cut, join

NUM_BEST = 3
"""Rows whose configurations are written, and whose neighbours are shown."""
RUN_FILE = "run.yaml"


@dataclass(frozen=True)
class BestRun:
    """One of the best rows with its best run.

    Args:
        rank: number from 1.
        run: best run of its seeds.
    """

    rank: int
    row: Choice
    run: Entry

    @property
    def file(self) -> str:
        """Name of its configuration beside the page."""
        return f"best_{self.rank}.yaml"

    def command(self, board: Leaderboard) -> str:
        """Return the command that trains it anew; for a remote sweep, in a folder with a copy of `file`."""
        is_local = board.facts.path and "://" not in board.facts.path
        return f"raysl pretrain {shlex.quote(join(board.facts.path, self.file) if is_local else self.file)}"


def best_runs(board: Leaderboard) -> list[BestRun]:
    """Return the first rows of the first section that have the first objective and did not fail, each with its best
    run."""
    first, rows = board.facts.objectives[0], board.sections[0].choices[:NUM_BEST]
    rows = [row for row in rows if row.value(first.metric) is not None and not row.is_failed]
    return [BestRun(rank, row, row.best(first)) for rank, row in enumerate(rows, 1)]


def folder_of(run: Entry, sweep: Folder) -> Folder:
    """Return the folder of a run; one inside the sweep's folder shares its credentials."""
    parent, name = cut(run.path)
    return sweep.child(name) if parent == redact_uri(sweep.uri) else Folder(run.path)


def runnable(best: BestRun, text: str, board: Leaderboard) -> str:
    """Return a run's `run.yaml` as a configuration of its own, whose name says which sweep and trial it is from."""
    name = f"{board.facts.name.replace('/', '-')}-{best.run.trial.removeprefix('trial_')}"
    numbers = ", ".join(_describe(best, objective.metric) for objective in board.facts.objectives)
    head = f"# Rank {best.rank} of {board.facts.name}: {numbers}; run {best.run.trial}, seed {best.run.seed}.\n"
    head += f"# {best.command(board)}\n"
    # a function as replacement, since re.sub would interpret backslashes in a text
    text = re.sub(r"^name: .*$", lambda _: write({"name": name}).strip(), text, count=1, flags=re.MULTILINE)
    if board.facts.path:
        storage = write({"storage": cut(board.facts.path)[0]}).strip()
        text = re.sub(r"^storage: .*$", lambda _: storage, text, count=1, flags=re.MULTILINE)
    return head + text


def _describe(best: BestRun, metric: str) -> str:
    number = best.row.numbers.get(metric)
    if number is None:
        return f"no {metric}"
    interval = ""
    if number.interval is not None:
        interval = f" (95 %: {shown(number.interval[0])} to {shown(number.interval[1])})"
    return f"{metric} {shown(number.mean)}{interval}"


@dataclass(frozen=True)
class Reference:
    """The number of one rival over all rows.

    Args:
        rival: untrained or pixels.
        metric: number whose rival it is; of the online kNN that of the benchmark, which has the same vote.
        mean, low, high: over the rows, which only differ where the rival does: in seed, network or size of images.
    """

    rival: str
    metric: str
    mean: float
    low: float
    high: float


def references(rows: Sequence[Choice], metric: str) -> list[Reference]:
    """Return raw pixels, then untrained networks, as far as a benchmark measured them."""
    measured = []
    for rival in ("pixels", "untrained"):
        for name in (metric, ONLINE_KNN.sub(r"knn/k\1/top1", metric)):
            values = [value for row in rows if (value := row.value(f"{name}/{rival}")) is not None]
            if values:
                measured.append(Reference(rival, name, math.fsum(values) / len(values), min(values), max(values)))
                break
    return measured


def gains(row: Choice, metric: str, unit: str = "", is_lower_better: bool = False) -> dict[str, Gain]:
    """Return the differences between a row and its own rivals, by the names of the rivals.

    The interval is the number's: of several seeds that of their mean, of one seed, whose rival has one over the same
    test images, as much wider as two of them are.
    """
    by_rival: dict[str, Gain] = {}
    for reference in references([row], metric):
        number = row.numbers.get(reference.metric) or row.numbers.get(metric)
        if number is None:
            continue
        change, wider = number.mean - reference.mean, math.sqrt(2) if number.n == 1 else 1.0
        ends = None if number.interval is None else [change + wider * (end - number.mean) for end in number.interval]
        by_rival[reference.rival] = Gain(change, None if ends is None else (ends[0], ends[1]), is_lower_better, unit)
    return {rival: by_rival[rival] for rival in RIVALS if rival in by_rival}


def verdict(board: Leaderboard) -> str:
    """Return a sentence on the best row beside its rivals; empty where they were not measured."""
    if board.best is None:
        return ""
    row, objective = board.choices[0], board.facts.objectives[0]
    name = next((one.metric for one in references([row], objective.metric)), objective.metric)
    by_rival = gains(row, objective.metric, board.units.get(name, ""), objective.mode == "min")
    if not by_rival:
        return ""
    measured = "" if name == objective.metric else f", by {name}"
    return f"The best by {objective.metric} is {sentence(by_rival)}{measured}."
