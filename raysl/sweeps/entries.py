"""The entries of the leaderboard, from the runs of a sweep."""

import math
from collections.abc import Callable, Mapping, Sequence

from raysl.leaderboard.entry import Entry
from raysl.leaderboard.leaderboard import MOST_POINTS, thinned
from raysl.storage.folder import Folder
from raysl.sweeps.record import Record
from raysl.tune.note import Note
from raysl.tune.trial import Trial


def make_entries(
    records: Sequence[Record], folder: Folder, protocols: Callable[[Trial], dict[str, str]]
) -> list[Entry]:
    """Return the entries in the order in which the trials were chosen.

    Args:
        protocols: returns the protocols of a trial's measurements, see `Entry.protocols`.
    """
    return [make_entry(record, index, folder, protocols(record.trial)) for index, record in enumerate(records)]


def make_entry(record: Record, index: int, folder: Folder, protocols: Mapping[str, str] | None = None) -> Entry:
    """Return the entry of a run; that of a stopped run ends at the epoch at which it was stopped."""
    trial, nothing = record.trial, Note("paused", 0)
    note, last = record.note if record.note is not None and record.has_ended else nothing, record.note or nothing
    return Entry(
        trial=trial.name,
        index=index,
        status=record.status,
        config=trial.config,
        settings=dict(trial.settings),
        seed=trial.seed,
        epochs=record.epochs,
        epoch=record.epoch,
        metrics={name: value for name, value in record.metrics.items() if not math.isnan(value)},
        intervals=note.intervals,
        units=note.units,
        protocols=dict(protocols or {}),
        course={name: thinned(curve, MOST_POINTS) for name, curve in record.logged.curves(record.until).items()},
        costs=last.costs,
        draws=record.draws,
        reason=record.reason or note.reason,
        parents=record.parents,
        path=folder.uri_of(trial.name),
        checkpoint=last.checkpoint,
        started=last.started or None,
        ended=last.ended or None,
    )
