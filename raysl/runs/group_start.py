"""What a group of workers checks and notes when it starts: its folder, failures before it, its size and its step."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import ray.util
import torch

from raysl import distributed as dist
from raysl.cluster.board import Board
from raysl.errors import ConfigError, StorageError
from raysl.plan.plan import TrainPlan
from raysl.process.screen import counted, named
from raysl.runs.failures import FailureNotes, step_before
from raysl.runs.folder import PROBE_FILE, RunFolder
from raysl.runs.ray_log import note_failures
from raysl.storage.folder import outlast
from raysl.train.callbacks.logs import parse_metrics
from raysl.train.disk import Disk
from raysl.train.file_names import EVENTS_FILE, METRICS_FILE, parse_events
from raysl.train.state import TrainState

_SEEN = "folder seen"


def find_folder(folder: RunFolder, board: Board) -> None:
    """Look for the driver's note in the run's folder from all nodes; every rank calls it.

    Workers that replace others wait for it for up to half an hour, since those have seen it.

    Raises:
        StorageError: if a node does not see the folder any more.
        ConfigError: if a node has never seen it.
    """
    if not folder.is_local:
        return
    # the answer of rank 0 counts for all: each branch has collective calls that every rank must join
    if dist.gather_objects(board.read(_SEEN))[0]:
        outlast(partial(_check_seen, folder, board))
    elif blind := _blind_nodes(folder, board):
        raise ConfigError(
            f"storage {folder.uri} is a local folder that the {named('node', blind)} do not share with the driver; "
            "give storage= a folder that all nodes share, or a URI such as s3://bucket/runs"
        )
    if dist.is_main():
        board.write(_SEEN, True)


def _check_seen(folder: RunFolder, board: Board) -> None:
    if blind := _blind_nodes(folder, board):
        raise StorageError(
            f"the folder {folder.uri} has gone on the {named('node', blind)}; bring it back, then the same command "
            "goes on"
        )


def _blind_nodes(folder: RunFolder, board: Board) -> list[str]:
    """Return the nodes whose workers do not see the driver's note, the key of the board, in the run's folder."""
    try:
        sees = folder.read(PROBE_FILE).decode() == board.key
    except ConfigError:
        sees = False
    return sorted({name for name in dist.gather_objects("" if sees else ray.util.get_node_ip_address()) if name})


def note_failed(notes: FailureNotes, logs: Path) -> int | None:
    """Note in events.jsonl what was lost before this group of workers; return the updates that had been done by then.

    Returns:
        None if nothing was lost just before.
    """
    failures, (group, _) = notes.all(), notes.group()
    with (logs / EVENTS_FILE).open("ab") as file:
        file.write(note_failures((logs / EVENTS_FILE).read_bytes(), failures))
    if (step := step_before(failures, group)) is None:
        return None
    metrics = logs / METRICS_FILE
    lines = parse_metrics(metrics.read_bytes(), str(metrics)) if metrics.exists() else []
    # steps reach the board with a delay, so a line that was logged later counts
    return max([step, *(int(line["step"]) for line in lines[-1:])])


def announce(
    plan: TrainPlan, state: TrainState, nodes: Sequence[str], disk: Disk, failed_step: int | None = None
) -> None:
    """Note the start in events.jsonl, which the driver shows.

    Args:
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
