"""The runs of a sweep as the leaderboard has them."""

import math
from collections.abc import Sequence

from raysl.leaderboard.entry import Entry, Objective, Status
from raysl.leaderboard.leaderboard import MOST_POINTS, thinned
from raysl.storage import Folder
from raysl.sweeps.record import Note, Record

NO_CURVES = ("step", "epoch", "lr", "images_per_s", "step_s", "data_wait", "memory_gb")
"""What is logged and is no learning curve."""


def entries_of(records: Sequence[Record], folder: Folder, judged_by: Objective) -> list[Entry]:
    """The runs of a sweep in the order of drawing; of a run that was trained in parts, the newest part.

    Args:
        records: of the trials.
        folder: of the sweep.
        judged_by: number that the scheduler looks at.
    """
    newest = {record.trial.name: record for record in records}
    return [entry_of(record, place, folder, judged_by) for place, record in enumerate(newest.values())]


def entry_of(record: Record, index: int, folder: Folder, judged_by: Objective) -> Entry:
    """A run as the leaderboard has it: of one that was stopped, nothing that came after its last epoch.

    Args:
        record: of the trial.
        index: its place in the order of drawing.
        folder: of the sweep.
        judged_by: number that the scheduler looks at.
    """
    trial, verdict = record.trial, record.verdict
    lines = [line for line in record.lines if verdict is None or line["epoch"] <= verdict.epoch]
    note = record.note if record.note is not None and verdict is None else Note("paused", 0)
    metrics: dict[str, float] = {}
    for line in lines:
        metrics |= line
    metrics = {name: value for name, value in {**metrics, **note.metrics}.items() if name not in ("step", "epoch")}
    if verdict is not None and (value := record.course.at(verdict.epoch)) is not None:
        metrics[judged_by.metric] = value
    return Entry(
        trial=trial.name,
        index=index,
        status=_status(record),
        config=trial.config,
        settings=dict(trial.settings),
        seed=trial.seed,
        epochs=record.epochs,
        epoch=_epoch(record, lines),
        metrics={name: value for name, value in metrics.items() if not math.isnan(value)},
        intervals=note.intervals,
        units=note.units,
        course=_curves(lines),
        costs={} if record.last is None else record.last.costs,
        draws=record.draws,
        reason=record.failure or (verdict.reason if verdict is not None else note.reason),
        parents=[(parent.trial, float(parent.epoch)) for parent in trial.parents],
        path=folder.uri_of(trial.name),
        checkpoint=None if record.last is None else record.last.checkpoint,
        started=None if record.last is None else record.last.started,
        ended=None if record.last is None else record.last.ended,
    )


def _status(record: Record) -> Status:
    if record.verdict is not None:
        return "stopped"
    if record.is_running:
        return "running"
    if record.failure is not None:
        return "failed"
    return "finished" if record.has_ended and record.trial.until is None else "waiting"


def _epoch(record: Record, lines: Sequence[dict[str, float]]) -> float | None:
    if record.verdict is not None:
        return record.verdict.epoch
    if record.has_ended and record.note is not None:
        return record.note.epoch
    return lines[-1]["epoch"] if lines else None


def _curves(lines: Sequence[dict[str, float]]) -> dict[str, list[tuple[float, float]]]:
    """Learning curves by name, of at most `MOST_POINTS`."""
    names = dict.fromkeys(name for line in lines for name in line if name not in NO_CURVES)
    curves = {}
    for name in names:
        points = [(line["epoch"], line[name]) for line in lines if name in line and math.isfinite(line[name])]
        curves[name] = thinned(points, MOST_POINTS)
    if seconds := _seconds(lines):
        curves["seconds"] = thinned(seconds, MOST_POINTS)
    return curves


def _seconds(lines: Sequence[dict[str, float]]) -> list[tuple[float, float]]:
    """Seconds of training by epoch, from the steps and how long each took."""
    points: list[tuple[float, float]] = []
    spent, before = 0.0, 0.0
    for line in lines:
        if "step_s" in line:
            spent += line["step_s"] * (line["step"] - before)
            before = line["step"]
            points.append((line["epoch"], round(spent, 3)))
    return points
