"""Files that every run writes into its folder: logged lines, and how long the start took."""

import json
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from typing_extensions import override

from raysl import distributed as dist
from raysl.methods.method import StepOutput
from raysl.schedule import Step
from raysl.storage.records import Damaged, check_types, read_record
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.disk import Disk
from raysl.train.files import METRICS_FILE, STARTUP_FILE, append

log = logging.getLogger("raysl")


class MetricsLog(Callback):
    """Appends each logged line to a local `metrics.jsonl`; a start cuts off lines after the restored step."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / METRICS_FILE

    @override
    def on_train_start(self, run: Run) -> None:
        if dist.is_main():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            before = self.path.read_bytes() if self.path.exists() else b""
            lines = [line for line in parse_metrics(before) if line["step"] <= run.state.step]
            # a draft first: a full disk leaves the former file as it is
            draft = self.path.with_name(f"{self.path.name}.part")
            draft.write_text("".join(json.dumps(line) + "\n" for line in lines))
            draft.rename(self.path)
            for line in lines:
                run.metrics.update({name: value for name, value in line.items() if name != "step"})

    @override
    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        if dist.is_main():
            head = {"step": step.index, "epoch": step.index / step.epoch_len}
            append(self.path, (json.dumps(head | line) + "\n").encode())


def parse_metrics(content: bytes) -> list[dict[str, float]]:
    r"""Return the lines of a `metrics.jsonl`, up to the first that a kill or a power loss left damaged.

    >>> parse_metrics(b'{"step": 1, "loss": 2.5}\n{"step": 2, "lo')
    [{'step': 1, 'loss': 2.5}]
    """
    lines = []
    texts = content.splitlines()
    for number, text in enumerate(texts):
        try:
            line = read_record(text, METRICS_FILE, _PLACES)
            if not all(type(value) in (float, int) for value in line.values()):  # a million lines a second
                check_types(line, METRICS_FILE, dict.fromkeys(line, float))
            lines.append(line)
        except Damaged as error:
            if number + 1 < len(texts):
                log.warning("of %s only the first %d lines are read: %s", METRICS_FILE, number, error)
            break
    return lines


_PLACES = {"step": int}


class Startup(Callback):
    """Writes `startup.json` after the first step: seconds from the command to that step, by part.

    Args:
        folder: local folder to write into.
        marks: moments so far, in seconds since the epoch by name; "command" is the first.
        put_logs: called when the file is written, so that the driver sees it soon.
        disk: writes it.
    """

    def __init__(
        self,
        folder: Path,
        marks: dict[str, float],
        put_logs: Callable[[], None] = lambda: None,
        disk: Disk | None = None,
    ) -> None:
        self.folder = folder
        self.marks = marks
        self.put_logs = put_logs
        self.disk = disk or Disk()
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
        self.disk.write(self.folder, lambda: self._write(content))

    def _write(self, content: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / f"{STARTUP_FILE}.part"
        draft.write_text(content)
        draft.rename(self.folder / STARTUP_FILE)
        self.put_logs()


class OnDisk(Callback):
    """Calls other callbacks that write into a run's folder at the start, with each logged line, and at the end.

    Args:
        writers: callbacks without a state, called in this order. A call that fails is repeated with the same line.
        logs: local folder that they write to.
        disk: calls them.
    """

    def __init__(self, writers: Sequence[Callback], logs: Path, disk: Disk) -> None:
        self.writers = writers
        self.logs = logs
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
            self.disk.write(self.logs, partial(call, writer))
