"""The folder of a run: its settings, its logs, and who is working in it.

`<storage>/<name>/` holds `run.yaml`, `metrics.jsonl`, TensorBoard events, `checkpoint_*/`, `report.json` and
`report.html`. A run is worked on by one driver at a time, which holds the folder's lock.
"""

import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from raysl.checkpoint import check_resumable
from raysl.config.load import differences, dump
from raysl.config.schema import ConfigError, RunConfig
from raysl.config.stored import stored_settings
from raysl.errors import RunInUse
from raysl.storage import Folder, join, telling

HEARTBEAT_S = 15.0
STALE_S = 60.0
EVENTS_FILE = "events.jsonl"  # starts and resumes
CORRUPT_FILE = "corrupt.jsonl"  # images that were found broken
STARTUP_FILE = "startup.json"  # seconds from the command to the first step, by part
FAILED_FILE = "failed"  # why the loop gave up, where a new attempt would end the same way
STOP_FILE = "stop"  # its appearance asks the workers to save and stop


class RunFolder(Folder):
    """A run's folder at a local path or a URI."""

    @classmethod
    def of(cls, config: RunConfig) -> "RunFolder":
        """The folder of a run."""
        return cls(join(config.storage, config.name))

    def claim(self, config: RunConfig) -> None:
        """Write the run's settings, or check that those written before are the same and can be gone on from.

        Raises:
            ConfigError: if another run has this name (the message lists what differs), or its newest checkpoint is of
                another format or method.
        """
        self.make()
        if self.exists("run.yaml"):
            before = stored_settings(self.read("run.yaml").decode(), self.uri_of("run.yaml"), config)
            changes = differences(before, config)
            if changes:
                listed = "\n  ".join(changes)
                raise ConfigError(
                    f"a run named {config.name!r} with other settings is in {self.uri}:\n  {listed}\n"
                    "give this one another name=, or go back to those settings to resume it"
                )
            for name in self.checkpoints()[-1:]:
                check_resumable(self.child(name), config)
        self.write("run.yaml", dump(config).encode())

    def checkpoints(self) -> list[str]:
        """Names of the checkpoints that are whole, oldest first."""
        return [name for name in self.names() if name.startswith("checkpoint_") and self.exists(f"{name}/meta.json")]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only driver of the run.

        Raises:
            ConfigError: if another one is at work in this folder.
        """
        with _local_lock(Path(self.path), self.uri) if self.is_local else _remote_lock(self):
            yield


@contextmanager
def _local_lock(folder: Path, uri: str) -> Iterator[None]:
    """A lock of the operating system's, which ends with the process however that ends."""
    with telling("write", join(uri, ".lock")):
        opened = (folder / ".lock").open("a+")
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            raise _in_use(uri, file.read().strip() or "another process") from error
        file.truncate(0)
        file.write(_me())
        file.flush()
        yield


@contextmanager
def _remote_lock(folder: RunFolder) -> Iterator[None]:
    """A note that is renewed every few seconds; one that has not been for a minute counts as left behind."""
    token = uuid.uuid4().hex
    if folder.exists(".lock"):
        note = json.loads(folder.read(".lock"))
        age = time.time() - note["time"]
        if age < STALE_S:
            raise _in_use(folder.uri, f"{note['who']}, last seen {age:.0f} s ago")
    folder.write(".lock", _note(token))
    if json.loads(folder.read(".lock"))["token"] != token:
        raise _in_use(folder.uri, "another process that started at the same time")
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(HEARTBEAT_S):
            with suppress(ConfigError):  # a network that fails for a moment: the next beat tries again
                folder.write(".lock", _note(token))

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        folder.remove(".lock")


def _note(token: str) -> bytes:
    return json.dumps({"who": _me(), "token": token, "time": time.time()}).encode()


def _me() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _in_use(uri: str, who: str) -> RunInUse:
    return RunInUse(f"the run in {uri} is in use by {who}; wait for it, stop it, or give this one another name=")


def note_event(logs: Path, event: str) -> None:
    """Add a line to the events of a run, which the driver shows.

    Args:
        logs: local folder of the run's logs.
        event: in words.
    """
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / EVENTS_FILE).open("a") as file:
        file.write(json.dumps({"time": time.time(), "event": event}) + "\n")
