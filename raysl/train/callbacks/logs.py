"""Files that every run writes into its folder: logged lines, and how long the start took."""

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from typing_extensions import override

from raysl import distributed as dist
from raysl.errors import log
from raysl.storage.folder import Folder, outlast
from raysl.storage.records import Damaged, check_types, read_record
from raysl.train.callbacks.callback import Callback, Run, Step, StepOutput
from raysl.train.disk import Disk
from raysl.train.file_names import METRICS_FILE, STARTUP_FILE, append, note_event, replace_text


class MetricsLog(Callback):
    """Appends each logged line to a local `metrics.jsonl`; a start cuts off lines after the restored step.

    Of a file with damaged lines a start keeps the others, and a copy as `metrics.jsonl.damaged`.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / METRICS_FILE

    @override
    def on_train_start(self, run: Run) -> None:
        if dist.is_main():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            before = self.path.read_bytes() if self.path.exists() else b""
            good, damaged = split_metrics(before)
            if damaged:
                aside = self.path.with_name(f"{self.path.name}.damaged")
                aside.write_bytes(before)
                text = f"{_damage(str(self.path), damaged)}; the file as it was is {aside.name}"
                note_event(self.path.parent, text)  # the driver shows it
                log.warning("%s", text)
            # a line of step 0 is logged again by a start from there
            lines = [line for line in good if line["step"] <= run.state.step > 0]
            replace_text(self.path, "".join(json.dumps(line) + "\n" for line in lines))
            for line in lines:
                run.metrics.update({name: value for name, value in line.items() if name != "step"})

    @override
    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        if dist.is_main():
            head = {"step": step.index, "epoch": step.index / step.epoch_len}
            append(self.path, (json.dumps(head | line) + "\n").encode())


def read_metrics(folder: Folder) -> list[dict[str, float]]:
    """Return the lines that a run has logged, see `parse_metrics`; a storage that fails is waited for."""
    content = outlast(partial(folder.read_if_there, METRICS_FILE))
    return parse_metrics(content, folder.uri_of(METRICS_FILE))


def parse_metrics(content: bytes, where: str = METRICS_FILE) -> list[dict[str, float]]:
    r"""Return the lines of a `metrics.jsonl` without damaged ones, of which a warning tells.

    >>> parse_metrics(b'{"step": 1, "loss": 2.5}\n{"step": 2, "lo')
    [{'step': 1, 'loss': 2.5}]

    Args:
        where: path or URI of the file, for the warning.
    """
    lines, damaged = split_metrics(content)
    if damaged:
        log.warning("%s", _damage(where, damaged))
    return lines


def split_metrics(content: bytes) -> tuple[list[dict[str, float]], list[str]]:
    r"""Return the whole lines of a `metrics.jsonl`, and what is wrong with each other line.

    A last line without an end, as a kill leaves it, is in neither list.

    >>> split_metrics(b'{"step": 1}\n[2]\n{"step": 3}\n{"step": 4')
    ([{'step': 1}, {'step': 3}], ['line 2: it is [2], not an object'])
    """
    lines: list[dict[str, float]] = []
    damaged = []
    texts = content.splitlines()
    for number, text in enumerate(texts, 1):
        try:
            lines.append(_parse_line(text))
        except Damaged as error:
            if number < len(texts) or content.endswith(b"\n"):
                damaged.append(f"line {number}: {str(error).removeprefix(f'{METRICS_FILE} is damaged: ')}")
    return lines, damaged


def _parse_line(text: bytes) -> dict[str, float]:
    line: dict[str, float] = read_record(text, METRICS_FILE, _PLACES)
    if not all(type(value) is float or _is_small(value) for value in line.values()):  # a million lines a second
        check_types(line, METRICS_FILE, dict.fromkeys(line, float))
        raise Damaged(f"{METRICS_FILE} is damaged: a number has more than 63 bits")
    if line["step"] < 0:
        raise Damaged(f"{METRICS_FILE} is damaged: its step is {line['step']}")
    return line


def _damage(where: str, damaged: Sequence[str]) -> str:
    count = "1 damaged line is" if len(damaged) == 1 else f"{len(damaged)} damaged lines are"
    return f"{where}: {count} left out: {damaged[0]}" + (", ..." if len(damaged) > 1 else "")


_PLACES = {"step": int}


def _is_small(value: object) -> bool:
    return type(value) is int and value.bit_length() < 64


class Startup(Callback):
    """Writes `startup.json` after the first step: seconds from the command to that step, by part.

    Args:
        marks: moments so far, in seconds since the epoch by name; "command" is the first.
        put_logs: called when the file is written, so that the driver sees it soon.
    """

    def __init__(self, disk: Disk, marks: dict[str, float], put_logs: Callable[[], None] = lambda: None) -> None:
        self.disk = disk
        self.marks = marks
        self.put_logs = put_logs
        self.is_written = False

    @override
    def on_train_start(self, run: Run) -> None:
        self.marks = self.marks | {"method": time.time()}

    @override
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        if self.is_written or not dist.is_main():
            return
        self.is_written = True
        moments = {**self.marks, "first step": time.time()}
        names, times = list(moments), list(moments.values())
        parts = {
            name: round(after - before, 2) for name, before, after in zip(names[1:], times, times[1:], strict=False)
        }
        content = json.dumps({"total": round(times[-1] - times[0], 2), **parts})
        self.disk.write(lambda: self._write(content))

    def _write(self, content: str) -> None:
        self.disk.logs.mkdir(parents=True, exist_ok=True)
        replace_text(self.disk.logs / STARTUP_FILE, content)
        self.put_logs()


class OnDisk(Callback):
    """Calls other callbacks that write into a run's folder at the start, with each logged line, and at the end.

    Args:
        writers: callbacks without a state, called in this order. A call that fails is repeated with the same line.
    """

    def __init__(self, writers: Sequence[Callback], disk: Disk) -> None:
        self.writers = writers
        self.disk = disk

    @override
    def on_train_start(self, run: Run) -> None:
        self._each(lambda writer: writer.on_train_start(run))
        self.disk.settle()  # they look at the step that is restored

    @override
    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        self._each(lambda writer: writer.on_log(run, step, line))

    @override
    def on_train_end(self, run: Run) -> None:
        self._each(lambda writer: writer.on_train_end(run))

    def _each(self, call: Callable[[Callback], None]) -> None:
        for writer in self.writers:
            self.disk.write(partial(call, writer))
