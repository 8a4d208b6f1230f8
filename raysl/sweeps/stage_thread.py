"""The thread in which a sweep reads and writes its storage, so that the loop of Ray Tune waits for no storage."""

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType

from raysl.sweeps.record import Record
from raysl.sweeps.stage import Stage

TICK_S = 0.2
ANSWER_S = 1.0
"""Seconds for which Tune's loop waits for the trial that follows one that has ended."""
ABANDON_S = 5.0
"""Seconds for which an error waits for what the thread does at that moment."""


class StageThread:
    """Runs a stage in a thread of its own: Tune's loop hands over events and takes trials.

    As a context manager: the thread starts at the beginning of the block, and its end waits for all events.

    Args:
        stage: touched by that thread alone while inside, but for `is_ending`.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._events: deque[Callable[[], None]] = deque()
        self._change = threading.Condition()
        self._ready: Record | None = None
        self._is_over = False
        self._is_busy = False
        self._is_closing = False
        self._is_abandoned = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="raysl-sweep", daemon=True)

    def __enter__(self) -> "StageThread":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._change:
            self._is_closing, self._is_abandoned = True, error is not None
            self._change.notify_all()
        if error is not None:
            self._thread.join(ABANDON_S)
            return
        while self._thread.is_alive():
            self._thread.join(TICK_S)  # in pieces, so that signals are handled
        if self._error is not None:
            raise self._error

    def do(self, event: Callable[[], None]) -> None:
        """Have the thread call something soon; returns at once."""
        with self._change:
            self._events.append(event)
            self._change.notify_all()

    def take(self) -> Record | None:
        """Return a trial to start now, or None; wait at most `ANSWER_S` for events that were handed over."""
        with self._change:
            self._change.wait_for(lambda: not self._events and not self._is_busy, ANSWER_S)
            if self._error is not None:
                raise self._error
            if self.stage.is_ending:
                return None
            record, self._ready = self._ready, None
            self._change.notify_all()
            return record

    @property
    def is_over(self) -> bool:
        """Whether no further trial will come."""
        return self.stage.is_ending or self._is_over

    def _work(self) -> None:
        try:
            while not self._is_abandoned and (not self._is_closing or self._events or self.stage.ends):
                self._step()
            if self._ready is not None:
                self.stage.take_back(self._ready)
            self.stage.outbox.close()
        except BaseException as error:  # noqa: BLE001 - `take` raises it in the thread of Tune's loop
            self._error = error
        finally:
            with self._change:
                self._events.clear()
                self._is_busy = False
                self._change.notify_all()

    def _step(self) -> None:
        """Handle the events, look at the trials if it is time, and hold the next trial ready."""
        with self._change:
            self._change.wait_for(lambda: bool(self._events), TICK_S)
            events = list(self._events)
            self._events.clear()
            self._is_busy = bool(events)
        for event in events:
            event()
        self.stage.look_now_and_then()
        is_over = False
        if self._ready is None and not self._is_closing:
            self._ready = self.stage.start()  # nobody else sets it, though `take` may take it at once
            is_over = self._ready is None and self.stage.is_over()
        with self._change:
            self._is_over, self._is_busy = is_over, False
            self._change.notify_all()
