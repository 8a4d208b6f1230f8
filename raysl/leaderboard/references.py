"""Numbers without pre-training beside the rows of a leaderboard: raw pixels and untrained networks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from raysl.leaderboard.choice import Choice
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.report.contents import ONLINE_KNN
from raysl.report.verdict import RIVALS, Gain, sentence


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
