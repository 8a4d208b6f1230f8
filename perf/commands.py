"""Running `raysl` commands as child processes, from start to exit."""

import subprocess
import sys
import time
from collections.abc import Sequence

from raysl.errors import RunFailed


def command_s(words: Sequence[str]) -> float:
    """Return the seconds that a `raysl` command takes in a new process.

    Raises:
        RunFailed: if it fails, with its last words.
    """
    begun = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, "-m", "raysl", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    seconds = time.perf_counter() - begun
    if ended.returncode != 0:
        output = "\n".join(ended.stdout.splitlines()[-12:])
        raise RunFailed(f"`raysl {' '.join(words)}` ended with code {ended.returncode}:\n{output}")
    return seconds
