"""Notes of a group of workers that starts in the events of its run: failures before it, its size and its step."""

from collections.abc import Sequence
from pathlib import Path

import torch

from raysl.plan.plan import TrainPlan
from raysl.process.screen import counted
from raysl.runs.failures import FailureNotes, step_before
from raysl.runs.ray_log import note_failures
from raysl.train.callbacks.logs import parse_metrics
from raysl.train.disk import Disk
from raysl.train.file_names import EVENTS_FILE, METRICS_FILE, parse_events
from raysl.train.state import TrainState


def note_failed(notes: FailureNotes, logs: Path) -> int | None:
    """Note in events.jsonl what was lost before this group of workers; return the updates that had been done by then.

    Returns:
        None if nothing was lost just before.
    """
    failures, (group, _) = notes.all(), notes.group()
    events_file, metrics_file = logs / EVENTS_FILE, logs / METRICS_FILE
    events, metrics = (file.read_bytes() if file.exists() else b"" for file in (events_file, metrics_file))
    with events_file.open("ab") as file:
        file.write(note_failures(events, failures))
    # steps reach the board with a delay, so a line that was logged later counts
    step = step_before(failures, group)
    return (
        None
        if step is None
        else max([step, *(int(line["step"]) for line in parse_metrics(metrics, str(metrics_file))[-1:])])
    )


def announce(
    plan: TrainPlan, state: TrainState, nodes: Sequence[str], disk: Disk, failed_step: int | None = None
) -> None:
    """Note the start in events.jsonl, which the driver shows.

    Args:
        nodes: addresses of the nodes of all workers.
        failed_step: updates that had been done when workers were lost just before.
    """
    rows = str(plan.rows[0]) if len(set(plan.rows)) == 1 else f"{min(plan.rows)} to {max(plan.rows)}"
    workers, threads = counted(plan.world, "worker"), counted(torch.get_num_threads(), "thread")
    where = f"{workers} on {state.device.type}, {rows} images each, {threads}"
    what = f"resumed at step {state.step}" if state.step else "started"
    if failed_step is not None:
        what = f"going on at step {state.step}, {counted(max(0, failed_step - state.step), 'step')} again,"
    if change := _size_change(plan, state, disk.logs):
        disk.note(change)
    disk.note(f"{what} on {where}", nodes=nodes)
    if state.device.type == "cuda" and not state.config.train.deterministic:
        disk.note("GPU runs do not repeat bit for bit without train.deterministic=true")


def _size_change(plan: TrainPlan, state: TrainState, logs: Path) -> str | None:
    """Return a line if an elastic run begins or goes on with fewer workers than its most, or with all of them after."""
    most = state.config.train.most_workers
    if not state.config.train.is_elastic:
        return None
    fewer, all_again = f" of {most} workers", f" all {most} workers"
    if plan.world < most:
        return f"{f'going on from step {state.step}' if state.step else 'starting'} with {plan.world}{fewer}"
    file = logs / EVENTS_FILE
    events = [note["event"] for note in parse_events(file.read_bytes())] if file.exists() else []
    sizes = [event for event in events if event.endswith((fewer, all_again))]
    return f"going on from step {state.step} with{all_again}" if sizes and sizes[-1].endswith(fewer) else None
