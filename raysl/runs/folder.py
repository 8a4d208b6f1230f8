"""The folder of a run: its settings, its event log, and its lock.

`<storage>/<name>/` holds `run.yaml`, `metrics.jsonl`, `events.jsonl`, TensorBoard files, `checkpoint_*/`,
`report.json`, `report.html`, and the driver's notes to the workers: `.probe` and `stop`. One driver at a time works in
it and holds its lock.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from raysl.checkpoint.checkpoint_folder import SETTINGS_FILE, NewestCheckpoint, newest_whole
from raysl.config.dump import differences, dump, plain, to_dict, write_inline
from raysl.config.fields import find
from raysl.config.load import apply_overrides, stored_settings, stored_tree
from raysl.config.places import SWEEP_FILE
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError, StorageError, log
from raysl.plan.extension import extension_message
from raysl.storage.folder import Folder, cut, join
from raysl.storage.owner import Owner, is_owned, own_folder
from raysl.storage.records import read_record
from raysl.train.callbacks.logs import split_metrics
from raysl.train.file_names import EVENTS_FILE, METRICS_FILE, STARTUP_FILE, event_line
from raysl.user_files import digests

PROBE_FILE = ".probe"  # the driver writes it so that workers can check that they see the same folder
STOP_FILE = "stop"  # asks the workers to save a checkpoint and stop
CODE_FILE = "code.json"  # digests of the files of users that the run works with


class RunFolder(Folder):
    """A run's folder at a local path or a URI."""

    @classmethod
    def of(cls, config: RunConfig) -> "RunFolder":
        """Return the folder of a run."""
        return cls(join(config.storage, config.name))

    def as_begun(self, config: RunConfig) -> RunConfig:
        """Return the settings of a start, with those that the run's first start adapted to its images as they are."""
        if not config.adapt or newest_whole(self, ()).name is None or not self.exists(SETTINGS_FILE):
            return config
        tree = stored_tree(self.read(SETTINGS_FILE).decode(), self.uri_of(SETTINGS_FILE))
        values = {key: find(tree, tuple(key.split("."))) for key in config.adapt}
        return apply_overrides(config, [f"{key}={write_inline(value)}" for key, value in values.items() if value])

    def claim(self, config: RunConfig, checkpoint: NewestCheckpoint | None = None) -> None:
        """Write the run's settings, after checking that they may replace those of earlier starts.

        Starts that ended before a first step, for example because no cluster answered, bind no later one.

        Args:
            checkpoint: the run's newest whole checkpoint; None: any settings in the folder bind this start.

        Raises:
            ConfigError: if the folder has a run with other settings (the message lists them), or a run that has begun
                would become shorter, or longer without `train.extend`, or if it is the folder of a sweep.
        """
        if self.exists(SWEEP_FILE):
            raise ConfigError(f"a sweep named {config.name!r} is in {self.uri}; give this run another name=")
        self.make()
        message, code = None, digests(to_dict(config))
        if self.exists(SETTINGS_FILE):
            moved, text = moved_files(read_code(self), code), self.read(SETTINGS_FILE).decode()
            old_config = stored_settings(text, self.uri_of(SETTINGS_FILE), config, moved)
            changes = [*differences(old_config, config), *_changed_workers(old_config, config)]
            if changes and checkpoint is not None and self._has_no_step(checkpoint):
                log.info("the run %s made no step with other settings, so it takes those of this start", config.name)
            elif changes:
                listed = "\n  ".join(changes)
                raise ConfigError(
                    f"a run named {config.name!r} with other settings is in {self.uri}:\n  {listed}\n"
                    "give this one another name=, or go back to those settings to resume it"
                )
            if checkpoint is not None:
                message = extension_message(config, checkpoint)
        self.write(SETTINGS_FILE, dump(config).encode())
        for line in filter(None, (message, claim_code(self, code, checkpoint))):
            self.note(line)
            log.info(line)

    def _has_no_step(self, checkpoint: NewestCheckpoint) -> bool:
        """Whether no start has stored a checkpoint, even a damaged one, logged a step, or noted its first one."""
        if checkpoint.name is not None or checkpoint.passed_over:
            return False
        logged = self.read_if_there(METRICS_FILE)
        lines, damaged = split_metrics(logged)
        # a start may log a line for step 0 before its first update, and that is no training
        is_untrained = bool(lines) and not damaged and not any(line["step"] for line in lines)
        return not self.exists(STARTUP_FILE) and (not logged or is_untrained)

    def newest(self) -> NewestCheckpoint:
        """Return the newest whole checkpoint; warn of newer ones that are damaged."""
        checkpoint = newest_whole(self)
        for reason in checkpoint.passed_over:
            log.warning("passed over %s", reason)
        return checkpoint

    def note(self, event: str, kind: str | None = None) -> None:
        """Add a line to the event log, see `raysl.train.file_names.note_event`. No worker may be writing to it."""
        self.write(EVENTS_FILE, self.read_if_there(EVENTS_FILE) + event_line(event, kind))

    @contextmanager
    def occupied(self) -> Iterator[Owner | None]:
        """Make the folder and hold its lock while inside, see `own_folder`.

        A local folder that is made here goes again if an error comes before anything is written into it.
        """
        is_new = self.is_local and not self.exists()
        self.make()
        with own_folder(self) as owner:
            try:
                yield owner
            except BaseException:
                with suppress(OSError, StorageError):  # the first error is the one to raise
                    if is_new and self.names() == [".lock"]:
                        (Path(self.path) / ".lock").unlink()
                        Path(self.path).rmdir()
                raise

    def is_in_use(self) -> bool:
        """Whether another driver is at work in this folder."""
        return is_owned(self)

    def wait_until_free(self, stop: threading.Event | None = None) -> bool:
        """Wait until no other driver works here, and return True; return False once `stop` is set."""
        stop = stop or threading.Event()
        if not self.is_in_use():
            return True
        _, name = cut(self.uri)
        log.info("%s waits for another process that is running it", name)
        while not stop.wait(2 * self.look_every_s):  # each look is some requests
            if not self.is_in_use():
                return True
        return False


def _changed_workers(old_config: RunConfig | Mapping[str, Any], config: RunConfig) -> list[str]:
    """Return a line if the number of workers differs and the batch size depends on it."""
    new, old = config.train.workers, find(plain(old_config), ("train", "workers"), config.train.workers)
    if config.train.reference_workers is None or new == old:
        return []
    return [f"train.workers: {old} -> {new}, which changes the batch size, as train.reference_workers is set"]


def read_code(folder: Folder) -> dict[str, str]:
    """Return the digests of users' files at the last start of a run, by their names in its settings."""
    noted: dict[str, str] = read_record(folder.read_if_there(CODE_FILE) or b"{}", folder.uri_of(CODE_FILE))
    return noted


def moved_files(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return the present name of each file that has another name than before and the same content.

    >>> moved_files({"vicreg.py": "3fa9", "data.py": "51c0"}, {"mine/vicreg.py": "3fa9", "data.py": "51c0"})
    {'vicreg.py': 'mine/vicreg.py'}
    """
    names = {digest: name for name, digest in now.items()}
    return {name: names[digest] for name, digest in before.items() if name not in now and digest in names}


def claim_code(folder: Folder, now: Mapping[str, str], checkpoint: NewestCheckpoint | None) -> str | None:
    """Note the digests of a run's files; return a line about those that have changed since its last start, or None.

    A run goes on with a changed file, for its user may have mended it.
    """
    before = read_code(folder)
    changed = [name for name in now if before.get(name, now[name]) != now[name]]
    if now != before:
        folder.write(CODE_FILE, json.dumps(now, indent=1).encode())
    if not changed or checkpoint is None or checkpoint.name is None:
        return None
    hashes = ", ".join(f"{name} (SHA-256 {before[name][:8]} -> {now[name][:8]})" for name in changed)
    return f"goes on with changed code at step {checkpoint.step}: {hashes}"
