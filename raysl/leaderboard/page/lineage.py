"""Who took weights from whom: runs of a population as stretches of epochs on the lines of their members."""

from collections.abc import Sequence
from dataclasses import dataclass

from raysl.leaderboard.entry import Entry


@dataclass(frozen=True)
class Stretch:
    """One run on the drawing.

    Args:
        run: the run.
        lane: line of its member, from 0.
        start, end: epochs between which it trained itself.
        parent: the run whose weights it began with; None of one that began anew, or whose parent is not known.
    """

    run: Entry
    lane: int
    start: float
    end: float
    parent: Entry | None


def lineage(entries: Sequence[Entry]) -> list[Stretch]:
    """The runs that have come anywhere, in the order of drawing; empty where none has taken weights.

    A run without a member of its own takes its parent's line where that is free from its start on, or else the first
    that is.
    """
    if not any(entry.parents for entry in entries):
        return []
    named = {entry.trial: entry for entry in entries}
    found: dict[str, Stretch] = {}
    ends: dict[int, float] = {}
    for entry in sorted(entries, key=lambda entry: entry.index):
        start = entry.parents[0][1] if entry.parents else 0.0
        if entry.epoch is None or entry.epoch < start:
            continue
        parent = named.get(entry.parents[0][0]) if entry.parents else None
        lane = entry.member
        if lane is None:
            above = found.get(parent.trial) if parent else None
            free = [lane for lane, end in ends.items() if end <= start]
            lane = above.lane if above and above.lane in free else min(free, default=len(ends))
        ends[lane] = entry.epoch
        found[entry.trial] = Stretch(entry, lane, start, entry.epoch, parent)
    return list(found.values())
