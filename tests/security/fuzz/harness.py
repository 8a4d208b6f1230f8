"""A target of the fuzz in child processes with limits on memory and time; what failed is kept as files."""

import hashlib
import multiprocessing
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from raysl.data.decode.decode import CorruptImage
from raysl.errors import ConfigError, RunFailed
from tests.frames import path_in_raysl
from tests.security.fuzz.mutate import mutate

CORPUS = Path(__file__).parents[1] / "corpus"
ALLOWED = (ConfigError, RunFailed, CorruptImage)
"""Errors that name a file or an image for the reader."""
INPUT_S, MEMORY_BYTES = 20, 3 << 30
"""Of one input; memory beside what the process has when it begins."""
MOST_KEPT = 40


class Hang(BaseException):
    """An input takes longer than `INPUT_S`."""


@dataclass(frozen=True)
class Target:
    """Something that reads files.

    Args:
        name: of the target.
        seeds: good files by kind.
        read: reads a file of a kind, in an empty folder.
    """

    name: str
    seeds: Callable[[Path], dict[str, list[bytes]]]
    read: Callable[[str, bytes, Path], object]


@dataclass
class Outcome:
    """What a fuzz has seen: inputs tried, and those that failed, by what failed."""

    num: int = 0
    failures: dict[str, tuple[str, bytes]] = field(default_factory=dict)


def fuzz(target: Target, seconds: float, seed: int = 0) -> Outcome:
    """Change files and have the target read them, for some time, in processes that may die."""
    outcome, end = Outcome(), time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="raysl_fuzz_") as folder:
        current = Path(folder, "current")
        while (left := end - time.monotonic()) > 0 and len(outcome.failures) < MOST_KEPT:
            seed += 1
            receiver, sender = multiprocessing.Pipe(duplex=False)
            context = multiprocessing.get_context("fork")
            child = context.Process(target=_work, args=(target, seed, left, current, sender))
            child.start()
            sender.close()
            _receive(receiver, outcome, current, end)
            child.join(5)
            if child.is_alive():
                child.kill()
                child.join()
            if child.exitcode not in (0, None):
                kind, content = _read_current(current)
                outcome.failures.setdefault(f"the process ended with {child.exitcode}", (kind, content))
    return outcome


def attempt(target: Target, kind: str, content: bytes, folder: Path) -> str | None:
    """Have the target read a file; return what failed, as text that is equal for equal causes."""
    signal.signal(signal.SIGALRM, _hang)
    signal.alarm(INPUT_S)
    try:
        target.read(kind, content, folder)
    except ALLOWED:
        return None
    except (Exception, Hang, SystemExit) as error:  # noqa: BLE001 - any other error is a finding
        return _describe(error)
    finally:
        signal.alarm(0)
    return None


def _hang(signum: int, frame: FrameType | None) -> None:
    raise Hang(f"longer than {INPUT_S} s")


def _describe(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if path_in_raysl(frame.filename) is not None]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} at {where}"


def _work(target: Target, seed: int, seconds: float, current: Path, sender: Any) -> None:
    """Try inputs in this process until the time is over, and send each that fails."""
    import logging
    import warnings

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    draws, end = random.Random(seed), time.monotonic() + seconds
    with tempfile.TemporaryDirectory(dir=current.parent) as folder:  # the parent removes it where this process dies
        seeds = target.seeds(Path(folder, "seeds"))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES,) * 2)
        num = 0
        while time.monotonic() < end:
            kind = draws.choice(list(seeds))
            content = mutate(draws, draws.choice(seeds[kind]), seeds[kind])
            current.write_bytes(kind.encode() + b"\n" + content)
            place = Path(folder, "input")
            place.mkdir()
            failure = attempt(target, kind, content, place)
            shutil.rmtree(place, ignore_errors=True)
            num += 1
            if failure is not None or num % 50 == 0:
                sender.send((num, failure, kind, content if failure else b""))
                num = 0
        sender.send((num, None, "", b""))


def _receive(receiver: Any, outcome: Outcome, current: Path, end: float) -> None:
    with suppress(EOFError, OSError):
        while receiver.poll(max(1.0, end + 2 * INPUT_S - time.monotonic())):
            num, failure, kind, content = receiver.recv()
            outcome.num += num
            if failure is not None:
                before = outcome.failures.get(failure)
                if before is None or len(content) < len(before[1]):
                    outcome.failures[failure] = (kind, content)


def _read_current(current: Path) -> tuple[str, bytes]:
    kind, _, content = current.read_bytes().partition(b"\n")
    return kind.decode(), content


def keep(target: Target, outcome: Outcome, folder: Path = CORPUS) -> list[Path]:
    """Write the inputs that failed as files of the corpus; returns them."""
    kept = []
    for kind, content in outcome.failures.values():
        name = f"{kind}-{hashlib.sha256(content).hexdigest()[:8]}"
        path = folder / target.name / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        kept.append(path)
    return kept
