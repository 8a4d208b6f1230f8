"""The plan of a sweep in words: its trials, those that have ended, and those to be measured again."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from raysl.leaderboard.entry import Entry
from raysl.leaderboard.flat import shown
from raysl.process.screen import counted, duration
from raysl.sweeps.record import Record
from raysl.tune.trial import Trial

MOST_LISTED = 1000


def trial_lines(entries: Sequence[Entry]) -> list[str]:
    """Return one aligned line per trial: its name, progress and settings."""
    rows = [
        (
            entry.trial,
            entry.status if entry.epoch is None or entry.status == "finished" else f"{entry.status} at {entry.epoch:g}",
            " ".join(
                [
                    *([entry.config] if entry.config else []),
                    *(f"{key}={shown(value)}" for key, value in entry.settings.items()),
                    f"seed={entry.seed}",
                ]
            ),
        )
        for entry in entries[:MOST_LISTED]
    ]
    width = max((len(status) for _, status, _ in rows), default=0)
    lines = [f"{name}  {status.ljust(width)}  {settings}" for name, status, settings in rows]
    return lines + ([f"... and {len(entries) - MOST_LISTED} more"] if len(entries) > MOST_LISTED else [])


def summary(entries: Sequence[Entry], num_trials: int, hours: float | None, how: str = "") -> str:
    """Return a summary: all known trials, and the time for those that are left.

    Args:
        hours: hours for the trials that are left; None if no estimate is possible yet.
        how: basis of the estimate.
    """
    counts = Counter(entry.status for entry in entries)
    ended = ", ".join(f"{counts[name]} {name}" for name in ("finished", "stopped", "failed") if counts[name])
    text = counted(num_trials, "trial") + (f" ({ended} before)" if ended else "")
    if len(entries) < num_trials:
        text += f", of which {num_trials - len(entries)} depend on the results of the others"
    return f"{text}; {time_left(hours, how)}"


def time_left(hours: float | None, how: str = "") -> str:
    """Return the time for the trials that are left, in words; `hours` and `how` as in `summary`."""
    if hours is None:
        return "how long they take is known when the first one has ended"
    return f"about {duration(3600 * hours)} for what is left{how}"


def outdated(records: Sequence[Record], measures: Callable[[Trial], Mapping[str, list[str]]]) -> list[str]:
    """Return a line for each benchmark that has to be measured again because its code has changed.

    Args:
        measures: returns the digests of a trial's settings and code now, by benchmark.
    """
    counts: Counter[str] = Counter()
    for record in records:
        if record.note is None or record.note.status != "finished":
            continue
        for name, (settings, code) in measures(record.trial).items():
            before = record.note.measures.get(name)
            counts[name] += before is not None and before[0] == settings and before[1] != code
    return [
        f"the code of {name} has changed: {counted(num, 'trial')} will be measured again by it, and not trained"
        for name, num in counts.items()
        if num
    ]
