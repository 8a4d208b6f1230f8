"""The folder of a run: its settings, its logs, and who is working in it.

`<storage>/<name>/` holds `run.yaml`, `metrics.jsonl`, TensorBoard events, `checkpoint_*/`, `report.json` and
`report.html`. A run is worked on by one driver at a time, which holds the folder's lock.
"""

import logging
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from raysl.checkpoint.files import Found, newest_whole
from raysl.config.dump import differences, dump
from raysl.config.load import stored_settings
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError, RunInUse
from raysl.runs.extend import check_length
from raysl.storage.addresses import cut, join
from raysl.storage.folder import Folder
from raysl.storage.owner import Owner, own_folder
from raysl.train.files import EVENTS_FILE, event_line

log = logging.getLogger("raysl")

PROBE_FILE = ".probe"  # written by the driver, so that workers can tell whether they see the same folder
STOP_FILE = "stop"  # its appearance asks the workers to save and stop


class RunFolder(Folder):
    """A run's folder at a local path or a URI."""

    @classmethod
    def of(cls, config: RunConfig) -> "RunFolder":
        """The folder of a run."""
        return cls(join(config.storage, config.name))

    def claim(self, config: RunConfig, found: Found | None = None) -> None:
        """Write the run's settings, or check that those written before are the same but for what may change.

        Args:
            config: the settings of this start, which are those that count from now on.
            found: the run's newest whole checkpoint, if it has one.

        Raises:
            ConfigError: if another run has this name (the message lists what differs), this one has become shorter, or
                longer without `train.extend`.
        """
        self.make()
        extended = None
        if self.exists("run.yaml"):
            before = stored_settings(self.read("run.yaml").decode(), self.uri_of("run.yaml"), config)
            changes = [*differences(before, config), *_other_workers(before, config)]
            if changes:
                listed = "\n  ".join(changes)
                raise ConfigError(
                    f"a run named {config.name!r} with other settings is in {self.uri}:\n  {listed}\n"
                    "give this one another name=, or go back to those settings to resume it"
                )
            if found is not None:
                extended = check_length(_epochs(found, before, config), config, found)
        self.write("run.yaml", dump(config).encode())
        if extended is not None:
            self.note(extended)
            log.info(extended)

    def newest(self) -> Found:
        """The newest whole checkpoint; newer ones that are not whole are told of."""
        found = newest_whole(self)
        for reason in found.passed_over:
            log.warning("passed over %s", reason)
        return found

    def note(self, event: str) -> None:
        """Add a line to the events, while no worker does."""
        self.write(EVENTS_FILE, self.read_if_there(EVENTS_FILE) + event_line(event))

    def locked(self) -> AbstractContextManager[Owner | None]:
        """Be the only driver of the run while inside; yields the owner of a remote one, which its worker checks, too.

        Raises:
            RunInUse: if another one is at work in this folder.
        """
        return own_folder(self)

    def is_in_use(self) -> bool:
        """Whether another driver is at work in this folder."""
        try:
            with self.locked():
                return False
        except RunInUse:
            return True

    def wait_until_free(self, stop: threading.Event | None = None) -> bool:
        """Return when no other driver is at work here: True; or once an event is set: False."""
        stop = stop or threading.Event()
        log.info("%s waits for another process that has it in hand", cut(self.uri)[1])
        while self.is_in_use():
            if stop.wait(self.look_every_s):
                return False
        return True


def _other_workers(before: RunConfig | Mapping[str, Any], config: RunConfig) -> list[str]:
    """A line where the workers differ of a run whose batch follows them."""
    now, then = config.train.workers, _train_setting(before, "workers", config)
    if config.train.reference_workers is None or now == then:
        return []
    return [f"train.workers: {then} -> {now}, which the batch follows by train.reference_workers"]


def _epochs(found: Found, before: RunConfig | Mapping[str, Any], config: RunConfig) -> int:
    """Epochs that a checkpoint was trained for; where an older raysl did not note them, those of the last start."""
    return int(found.meta.get("epochs") or _train_setting(before, "epochs", config))


def _train_setting(before: RunConfig | Mapping[str, Any], name: str, config: RunConfig) -> Any:
    """A setting of `train` at the last start; where an older raysl did not store it, that of this one."""
    if isinstance(before, RunConfig):
        return getattr(before.train, name)
    return before.get("train", {}).get(name, getattr(config.train, name))
