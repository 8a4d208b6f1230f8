"""The folder of a run: its settings, its logs, and who is working in it.

`<storage>/<name>/` holds `run.yaml`, `metrics.jsonl`, TensorBoard events, `checkpoint_*/`, `report.json` and
`report.html`. A run is worked on by one driver at a time, which holds the folder's lock.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raysl.checkpoint import check_resumable
from raysl.config.load import differences, dump
from raysl.config.schema import ConfigError, RunConfig
from raysl.config.stored import load_dumped
from raysl.storage import Folder, join
from raysl.train.run_lock import run_lock

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
            changes = differences(load_dumped(self.read("run.yaml").decode()), config)
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
            RunInUse: if another one is at work in this folder.
        """
        with run_lock(self):
            yield


def note_event(logs: Path, event: str) -> None:
    """Add a line to the events of a run, which the driver shows.

    Args:
        logs: local folder of the run's logs.
        event: in words.
    """
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / EVENTS_FILE).open("a") as file:
        file.write(json.dumps({"time": time.time(), "event": event}) + "\n")
