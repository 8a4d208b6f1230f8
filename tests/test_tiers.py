"""The guard of the default tier fails whatever starts a process or a server."""

import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests import tiers


def listen() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()


STARTS: dict[str, Callable[[], object]] = {
    "a command": lambda: subprocess.run([sys.executable, "-c", ""]),
    "a fork": os.fork,
    "a shell": lambda: os.system("true"),
    "a process": lambda: multiprocessing.get_context("forkserver").Process(target=print).start(),
    "a server": listen,
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_test_of_the_default_tier_that_starts_something_fails(start: Callable[[], object]) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"mark it with @pytest\.mark\.cluster"):
        start()
    assert len(tiers.guard.started) == 1
    tiers.guard.started.clear()  # else this test fails too


@pytest.mark.cluster
def test_a_test_of_the_cluster_tier_starts_what_it_likes() -> None:
    assert (
        subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True, check=True).stdout == "1\n"
    )
