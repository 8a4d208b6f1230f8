"""Ctrl-C and SIGTERM: the first one ends a run without losing what it has trained, the second one ends it at once.

Both are handled even where a shell makes a background process ignore Ctrl-C.
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
from raysl.process.screen import mute_native_code, stderr_descriptor, unmute_native_code

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ONE_REQUEST_S = 0.5  # `timeout` sends a signal to its child and to their group: the child may get it twice


class Signals:
    """The signals that a process has received, and what it does about them.

    Attributes:
        received: the first signal, or None.
        left: results that stay if the process ends now, in words.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.left = "nothing was saved yet"
        self.is_ending = False
        self._save: Callable[[], bool] = lambda: False
        self._is_loading = False

    @contextmanager
    def saving(self, save: Callable[[], bool]) -> Iterator[None]:
        """Make the first signal call `save`, in the main thread, while inside.

        Args:
            save: makes the work inside end by itself and returns True; or returns False if there is nothing to save.
        """
        before, self._save = self._save, save
        try:
            if self.is_ending:  # a library has caught the exception of the handler
                raise KeyboardInterrupt
            yield
        finally:
            self._save = before

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Make the first signal end the process at once, while inside: an exception of the handler inside an import may
        be lost, or leave a lock that another thread waits for."""
        self._is_loading = True
        try:
            yield
        finally:
            self._is_loading = False

    @property
    def stopped(self) -> Stopped:
        """The error to raise for a signal when there is nothing to save."""
        number = self.received or signal.SIGINT
        how = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
        return Stopped(f"{how}; {self.left}", 128 + number)

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """Handle a signal, in the main thread."""
        if self.received is not None:
            return  # `_end_on_second` ends the process
        self.received = signal.Signals(signum)
        mute_native_code()  # Ray's core logs the end of its own processes as errors
        if not self._save():
            self.is_ending = True
            _show(self.stopped)
            if self._is_loading:
                end_at_once(self.stopped.code)
            raise KeyboardInterrupt


_active: Signals | None = None


@contextmanager
def handling_signals() -> Iterator[Signals]:
    """Handle Ctrl-C and SIGTERM while inside; does nothing inside another such block or outside the main thread.

    Raises:
        Stopped: in place of the exception that a signal raised inside; its message has been shown.
    """
    global _active
    if threading.current_thread() is not threading.main_thread():
        yield Signals()
        return
    if _active is not None:
        yield _active
        return
    unmute_native_code()
    signals = _active = Signals()
    # a handler that C code has installed is unknown to Python, which returns None for it
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in SIGNALS}
    install_handlers()
    try:
        with _end_on_second():
            yield signals
    except Stopped as stopped:
        _show(stopped)
        raise
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code == signal.SIGTERM and not signals.is_ending:
            signals.received, signals.is_ending = signal.SIGTERM, True  # by Ray's handler, while Ray starts
            _show(signals.stopped)
        if signals.is_ending or isinstance(error, KeyboardInterrupt):
            raise signals.stopped from None
        raise
    finally:
        _active = None
        for number, handler in before.items():
            signal.signal(number, handler)


def install_handlers() -> None:
    """Install the handlers of the active block, again after a library has replaced them."""
    if _active is not None and threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, _active.handle)


@contextmanager
def _end_on_second() -> Iterator[None]:
    """Make the second signal end this process at once: Python's handlers wait for the main thread, which may be busy.

    Signals within `ONE_REQUEST_S` of the first one do not count.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    # Python writes each signal's number to the pipe at once, even while the main thread is busy
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def watch() -> None:
        first: float | None = None
        with os.fdopen(reader, "rb", buffering=0) as file:
            while content := file.read(1):
                if content[0] not in SIGNALS:
                    continue
                if first is None:
                    first = time.monotonic()
                    signal.alarm(0)  # Ray's core, while it starts, has this process aborted 3 s after a SIGTERM
                elif time.monotonic() - first > ONE_REQUEST_S:
                    end_at_once(128 + content[0])

    threading.Thread(target=watch, name="raysl-signals", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        # the thread reads the end of the pipe, and ends
        os.close(writer)


def _show(stopped: Stopped) -> None:
    line = f"raysl: {stopped}"
    try:
        print(line, file=sys.stderr, flush=True)
    except RuntimeError:  # the signal came while another line was written to the same file
        os.write(stderr_descriptor(), f"{line}\n".encode())


def end_at_once(code: int, message: str = "") -> None:
    """End this process and all that it has started, now, with an exit code and a message on stderr."""
    for pid in descendants(os.getpid()):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    if os.isatty(screen := stderr_descriptor()):
        os.write(screen, b"\x1b[?25h\n")  # show the cursor, which a progress bar hides
    if message:
        print(message, file=sys.stderr, flush=True)
    os._exit(code)


def end_on_any_signal(code: int) -> None:
    """Make any further signal end this process at once with a code: for the last things that it does."""
    for number in SIGNALS:
        signal.signal(number, lambda signum, frame: end_at_once(code))
