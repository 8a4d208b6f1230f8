"""Ctrl-C and SIGTERM: the first one ends a run without losing what it has trained, the second one ends it at once.

Both are heeded even where a shell has a process in the background ignore Ctrl-C: who sends a signal means it.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from raysl.errors import Stopped
from raysl.process.proc import descendants

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ONE_REQUEST_S = 0.5  # `timeout` sends its signal to its child and to the group of both: the child may get it twice


class Signals:
    """Whether this process was asked to end, and what it does then.

    Attributes:
        asked: the signal that came first, or None.
        left: what an end at this moment leaves, in words.
    """

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self.left = "nothing was trained yet"
        self.is_ending = False
        self._save: Callable[[], bool] = lambda: False

    @contextmanager
    def saving(self, save: Callable[[], bool]) -> Iterator[None]:
        """While inside, the first signal calls `save`, in the main thread.

        Args:
            save: has the work inside end by itself, and says True; or False, where there is nothing to save yet.
        """
        before, self._save = self._save, save
        try:
            if self.is_ending:  # a library kept the exception to itself
                raise KeyboardInterrupt
            yield
        finally:
            self._save = before

    @property
    def stopped(self) -> Stopped:
        """What is raised for a signal where nothing has to be saved."""
        number = self.asked or signal.SIGINT
        how = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
        return Stopped(f"{how}; {self.left}", 128 + number)

    def heed(self, signum: int, frame: FrameType | None) -> None:
        """The handler of the signals."""
        if self.asked is not None:
            return  # `_watched` ends the process
        self.asked = signal.Signals(signum)
        if not self._save():
            self.is_ending = True
            _tell(self.stopped)
            raise KeyboardInterrupt


_active: Signals | None = None


@contextmanager
def heeding() -> Iterator[Signals]:
    """While inside, the signals are heeded; inside another such block, and outside the main thread, nothing changes.

    Raises:
        Stopped: in place of what a signal raised inside; its message has been shown.
    """
    global _active
    if threading.current_thread() is not threading.main_thread():
        yield Signals()
        return
    if _active is not None:
        yield _active
        return
    signals = _active = Signals()
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in SIGNALS}
    install()
    try:
        with _watched():
            yield signals
    except Stopped as stopped:
        _tell(stopped)
        raise
    except BaseException as error:
        if signals.is_ending or isinstance(error, KeyboardInterrupt):
            raise signals.stopped from None
        raise
    finally:
        _active = None
        for number, handler in before.items():
            signal.signal(number, handler)


def install() -> None:
    """Make the block that is active handle the signals, again where a library has put a handler of its own there."""
    if _active is not None and threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, _active.heed)


@contextmanager
def _watched() -> Iterator[None]:
    """Have the second signal end this process whatever it is doing: Python's handlers wait for the main thread.

    What comes within `ONE_REQUEST_S` of the first one is no second one.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def watch() -> None:
        first: float | None = None
        with os.fdopen(reader, "rb", buffering=0) as file:
            while content := file.read(1):
                if content[0] not in SIGNALS:
                    continue
                if first is None:
                    first = time.monotonic()
                elif time.monotonic() - first > ONE_REQUEST_S:
                    end_at_once(128 + content[0])

    threading.Thread(target=watch, name="raysl-signals", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)


def _tell(stopped: Stopped) -> None:
    line = f"raysl: {stopped}"
    try:
        print(line, file=sys.stderr, flush=True)
    except RuntimeError:  # the signal came while another line was written to the same file
        os.write(2, f"{line}\n".encode())


def end_at_once(code: int, message: str = "") -> None:
    """End this process now, and all that it has started."""
    for pid in descendants(os.getpid()):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    if os.isatty(2):
        os.write(2, b"\x1b[?25h\n")  # the cursor, which a progress bar hides
    if message:
        print(message, file=sys.stderr, flush=True)
    os._exit(code)


def hurry(code: int) -> None:
    """From here on a signal ends this process at once with a code: for the last things that it does."""
    for number in SIGNALS:
        signal.signal(number, lambda signum, frame: end_at_once(code))
