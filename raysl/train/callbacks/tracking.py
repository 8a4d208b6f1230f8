"""What callbacks for trackers of experiments share: a thread for the tracker, and the id that a resume goes on with."""

import importlib.util
import json
import queue
import threading
import uuid
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typing_extensions import override

from raysl import distributed as dist
from raysl.config.dump import leaves, to_dict
from raysl.errors import log
from raysl.redact import bare_tree, redact
from raysl.storage.records import Damaged, read_record
from raysl.train.callbacks.callback import Callback, CallbackConfig, ConfigError, Run, Step
from raysl.train.file_names import TRACKERS_FILE, replace_text

END_WAIT_S, STOP_WAIT_S = 60.0, 3.0
"""How long the end of a run waits for its tracker, and how long a stop or a failure does."""
MOST_WAITING = 10_000
"""Lines that wait for a slow tracker; later ones are left out."""


class Tracking(Callback):
    """Base of callbacks that send each logged line to a tracker; a tracker that fails or hangs never ends the run.

    A thread of the main rank does all of it. The first error is noted in the run's events, and nothing more is sent.
    """

    package: str
    """The Python package that it needs, and the extra of raysl that brings it."""

    def __init__(self, config: CallbackConfig) -> None:
        super().__init__(config)
        if importlib.util.find_spec(self.package) is None:
            raise ConfigError(
                f"the callback {self.package} needs {self.package}: pip install -e '.[{self.package}]' in raysl's "
                "folder"
            )
        self._sender: Sender | None = None

    @abstractmethod
    def open(self, run_id: str, name: str, settings: dict[str, Any], folder: Path) -> None:
        """Begin the tracker's run, or go on with the one of this id. The sender's thread calls this and the rest.

        Args:
            run_id: made at the run's first start.
            settings: values by dotted key, without credentials.
        """

    @abstractmethod
    def send(self, step: int, numbers: dict[str, float]) -> None:
        """Send the numbers of a step, by the names that they have in TensorBoard."""

    @abstractmethod
    def close(self, status: str) -> None:
        """End the tracker's run for now; `status` is finished, interrupted or failed."""

    @override
    def on_train_start(self, run: Run) -> None:
        if not dist.is_main():
            return
        config = run.state.config
        tree = bare_tree(to_dict(config))
        settings = {".".join(keys): value for keys, value in leaves(tree)}
        with run.writing() as folder:
            run_id = own_id(folder, self.state_key)
        self._sender = Sender(self.state_key)
        self._sender.do(lambda: self.open(run_id, config.name, settings, folder))

    @override
    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        if self._sender is None:
            return
        numbers = {f"train/{name}": float(value) for name, value in line.items()}
        self._sender.do(lambda: self.send(step.index, numbers))
        self._tell(run)

    @override
    def on_non_finite(self, run: Run, step: Step) -> None:
        self._end(run, "failed")

    @override
    def on_train_end(self, run: Run) -> None:
        is_whole = run.state.step >= run.plan.total_steps or run.state.ended is not None
        self._end(run, "finished" if is_whole else "interrupted")

    def _end(self, run: Run, status: str) -> None:
        if self._sender is None:
            return
        self._sender.do(lambda: self.close(status))
        self._sender.finish(END_WAIT_S if status == "finished" else STOP_WAIT_S)
        self._tell(run)
        self._sender = None

    def _tell(self, run: Run) -> None:
        assert self._sender is not None
        if (problem := self._sender.take_problem()) is not None:
            run.note(f"{problem}; the run goes on without it, and metrics.jsonl and TensorBoard have its numbers")


def own_id(folder: Path, key: str) -> str:
    """Return the id under which a run is known to a tracker, made at its first start and kept in its folder.

    A fork, which takes over its parent's checkpoint, has a folder and thus an id of its own.
    """
    path = folder / TRACKERS_FILE
    try:
        ids: dict[str, str] = read_record(path.read_bytes(), str(path), optional={key: str})
    except FileNotFoundError:
        ids = {}
    except Damaged as error:
        log.warning("%s; the trackers get new runs", error)
        ids = {}
    if key not in ids:
        ids[key] = uuid.uuid4().hex[:16]
        replace_text(path, json.dumps(ids))
    return ids[key]


class Sender:
    """A thread that does one thing after another, and stops with the first that fails."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._actions: queue.Queue[Callable[[], None] | None] = queue.Queue(MOST_WAITING)
        self._problem: str | None = None
        self._has_failed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name=f"raysl-{name}", daemon=True)
        self._thread.start()

    def do(self, action: Callable[[], None] | None) -> None:
        """Have something done, after what was asked for before."""
        if self._has_failed:
            return
        try:
            self._actions.put_nowait(action)
        except queue.Full:
            self._fail(f"{self._name} has not taken {MOST_WAITING:,} lines")

    def finish(self, timeout_s: float) -> None:
        """Wait until everything is done."""
        self.do(None)
        self._thread.join(0 if self._has_failed else timeout_s)
        if self._thread.is_alive() and not self._has_failed:
            self._fail(f"{self._name} did not end in {timeout_s:.0f} s")

    def take_problem(self) -> str | None:
        """Return what went wrong, the first time that it is asked for."""
        with self._lock:
            problem, self._problem = self._problem, None
        return problem

    def _work(self) -> None:
        while (action := self._actions.get()) is not None and not self._has_failed:
            try:
                action()
            except Exception as error:  # noqa: BLE001 - whatever a tracker raises, training goes on
                text = (str(error).strip() or "no reason given").splitlines()[0]
                return self._fail(f"{self._name} failed: {redact(f'{type(error).__name__}: {text}')}")

    def _fail(self, problem: str) -> None:
        with self._lock:
            if not self._has_failed:
                self._problem, self._has_failed = problem, True
