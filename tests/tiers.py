"""The tiers of the suite. Tests of the default tier start no process, no server and no Ray; one that does fails.

`thorough` marks the tests that start none either and take longer than some tenths of a second: a check of all methods
where the default tier has a few (`each`), of a further network, of a whole training. `cluster` marks the tests that
start something: those that use a fixture of `STARTERS`, and those with `@pytest.mark.cluster`. `slow` and `gpu` tests
may start what they like. A test is in one tier.
"""

import socket
import sys
from collections.abc import Container, Generator, Iterable
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

TIERS = frozenset({"cluster", "slow", "thorough"})
STARTERS = frozenset({"run_ranks", "shared_ray", "own_ray", "small_ray", "browser", "s3_bucket"})
"""Fixtures that start processes."""
ONCE = frozenset({"lscpu", "fc-list"})
"""Programs that libraries run once: scikit-learn counts cores by the first in a process's first neighbour search,
matplotlib lists the fonts by the second in the first import on a machine."""
_EVENTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}


def each(values: Iterable[str], now: Container[str]) -> list[Any]:
    """Values of a parameter: those of `now` for the default tier, the others for `thorough`."""
    return [pytest.param(value, marks=() if value in now else pytest.mark.thorough) for value in values]


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use a fixture which starts processes."""
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if len(tiers := sorted(marks & TIERS)) > 1:
            raise pytest.UsageError(f"{item.nodeid} is in two tiers: {' and '.join(tiers)}; leave out one mark")
        if STARTERS & set(getattr(item, "fixturenames", ())) and not marks & {"slow", "gpu", "cluster"}:
            item.add_marker("cluster")


class Guard:
    """Fails a test of the default tier at the moment that it starts a process or a server."""

    def __init__(self) -> None:
        self.is_on = False
        self.started: list[str] = []
        sys.addaudithook(self._audit)
        self._watch(BaseProcess, "start")  # a fork server forks where no audit hook of this process sees it
        self._watch(socket.socket, "listen")

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if self.is_on and event in _EVENTS and not (event == "subprocess.Popen" and args[1][0] in ONCE):
            self._refuse(f"{event} {args[1] if event == 'subprocess.Popen' else ''}")

    def _watch(self, kind: type, name: str) -> None:
        real = getattr(kind, name)

        def watched(*args: Any, **options: Any) -> Any:
            if self.is_on:
                self._refuse(f"{kind.__name__}.{name}")
            return real(*args, **options)

        setattr(kind, name, watched)

    def _refuse(self, what: str) -> None:
        self.started.append(what)
        pytest.fail(f"a test of the default tier started a process: {what}; mark it with @pytest.mark.cluster")


guard = Guard()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Guard the tests of the default tier, their fixtures too."""
    guard.started.clear()
    guard.is_on = not {"cluster", "slow", "gpu"} & {mark.name for mark in item.iter_markers()}
    try:
        return (yield)
    finally:
        guard.is_on = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test whose code, or another thread, kept the guard's failure to itself."""
    result = yield
    if guard.started:
        pytest.fail(f"a test of the default tier started a process: {guard.started[0]}")
    return result
