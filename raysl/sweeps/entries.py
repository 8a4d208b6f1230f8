"""The entries of the leaderboard, from the runs of a sweep."""

import math
from collections.abc import Callable, Mapping, Sequence

from raysl.leaderboard.entry import Entry, Status
from raysl.leaderboard.leaderboard import MOST_POINTS, thinned
from raysl.storage.folder import Folder
from raysl.sweeps.record import Note, Record
from raysl.sweeps.trial import Trial


def make_entries(
    records: Sequence[Record], folder: Folder, protocols: Callable[[Trial], dict[str, str]]
) -> list[Entry]:
    """Return the entries in the order of drawing; for a run that was trained in parts, of its newest part.

    Args:
        protocols: returns the protocols of a trial's measurements, see `Entry.protocols`.
    """
    newest = {record.trial.name: record for record in records}
    return [make_entry(record, index, folder, protocols(record.trial)) for index, record in enumerate(newest.values())]


def make_entry(record: Record, index: int, folder: Folder, protocols: Mapping[str, str] | None = None) -> Entry:
    """Return the entry of a run; that of a stopped run ends at the epoch of the verdict."""
    trial, verdict = record.trial, record.verdict
    until = math.inf if verdict is None else verdict.epoch
    nothing = Note("paused", 0)
    note, last = record.note if record.note is not None and verdict is None else nothing, record.last or nothing
    return Entry(
        trial=trial.name,
        index=index,
        status=_status(record),
        config=trial.config,
        settings=dict(trial.settings),
        seed=trial.seed,
        epochs=record.epochs,
        epoch=record.epoch,
        metrics={name: value for name, value in record.metrics.items() if not math.isnan(value)},
        intervals=note.intervals,
        units=note.units,
        protocols=dict(protocols or {}),
        course={name: thinned(curve, MOST_POINTS) for name, curve in record.logged.curves(until).items()},
        costs=last.costs,
        draws=record.draws,
        reason=verdict.reason if verdict is not None else record.failure or note.reason,
        parents=[(parent.trial, float(parent.epoch)) for parent in trial.parents],
        path=folder.uri_of(trial.name),
        checkpoint=last.checkpoint,
        started=last.started or None,
        ended=last.ended or None,
    )


def _status(record: Record) -> Status:
    if record.verdict is not None:
        return "stopped"
    if record.is_running:
        return "running"
    if record.failure is not None:
        return "failed"
    return "finished" if record.has_ended and record.trial.until is None else "waiting"
