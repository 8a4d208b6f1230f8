"""The folder of a run: its settings, its logs, and its owner.

`<storage>/<name>/` holds `run.yaml`, `metrics.jsonl`, TensorBoard events, `checkpoint_*/`, `report.json` and
`report.html`. One driver at a time works in it and holds its lock.
"""

import dataclasses
import logging
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from raysl.checkpoint.files import NewestCheckpoint, newest_whole
from raysl.config.dump import differences, dump
from raysl.config.load import stored_settings
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError, RunInUse
from raysl.optim.build import lr_at, peak_lr
from raysl.plan.plan import TrainPlan
from raysl.storage.addresses import cut, join
from raysl.storage.folder import Folder
from raysl.storage.owner import Owner, own_folder
from raysl.train.files import EVENTS_FILE, event_line

log = logging.getLogger("raysl")

PROBE_FILE = ".probe"  # the driver writes it, so that workers know whether they see the same folder
STOP_FILE = "stop"  # asks the workers to save and stop


class RunFolder(Folder):
    """A run's folder at a local path or a URI."""

    @classmethod
    def of(cls, config: RunConfig) -> "RunFolder":
        """Return the folder of a run."""
        return cls(join(config.storage, config.name))

    def claim(self, config: RunConfig, newest: NewestCheckpoint | None = None) -> None:
        """Write the run's settings, after a check that those of earlier starts differ only where they may.

        Args:
            config: the settings of this start, which replace the earlier ones.
            newest: the run's newest whole checkpoint, if it has one.

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
            if newest is not None:
                extended = _check_length(_epochs(newest, before, config), config, newest)
        self.write("run.yaml", dump(config).encode())
        if extended is not None:
            self.note(extended)
            log.info(extended)

    def newest(self) -> NewestCheckpoint:
        """Return the newest whole checkpoint; warn of newer ones that are damaged."""
        newest = newest_whole(self)
        for reason in newest.passed_over:
            log.warning("passed over %s", reason)
        return newest

    def note(self, event: str) -> None:
        """Add a line to the events. No worker may be writing to them."""
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
        """Wait until no other driver works here, and return True; return False once `stop` is set."""
        stop = stop or threading.Event()
        log.info("%s waits for another process that has it in hand", cut(self.uri)[1])
        while self.is_in_use():
            if stop.wait(self.look_every_s):
                return False
        return True


def _other_workers(before: RunConfig | Mapping[str, Any], config: RunConfig) -> list[str]:
    """Return a line if the number of workers differs and the batch follows it."""
    new, old = config.train.workers, _train_setting(before, "workers", config)
    if config.train.reference_workers is None or new == old:
        return []
    return [f"train.workers: {old} -> {new}, which the batch follows by train.reference_workers"]


def _epochs(newest: NewestCheckpoint, before: RunConfig | Mapping[str, Any], config: RunConfig) -> int:
    """Return the epochs that a checkpoint was trained for; an older raysl stored them in the settings alone."""
    return int(newest.meta.get("epochs") or _train_setting(before, "epochs", config))


def _train_setting(before: RunConfig | Mapping[str, Any], name: str, config: RunConfig) -> Any:
    """Return a setting of `train` at the last start, or that of this start if an older raysl did not store it."""
    if isinstance(before, RunConfig):
        return getattr(before.train, name)
    return before.get("train", {}).get(name, getattr(config.train, name))


def _check_length(before: int, config: RunConfig, newest: NewestCheckpoint) -> str | None:
    """Refuse to shorten a run that has begun, or to lengthen it without `train.extend`.

    Args:
        before: epochs that its newest checkpoint was trained for.
        config: its settings at this start.
        newest: that checkpoint; at step 0 any length is allowed.

    Returns:
        A sentence on what an extension changes, or None without one.

    Raises:
        ConfigError: with the numbers.
    """
    epochs = config.train.epochs
    if newest.step == 0 or epochs == before:
        return None
    if epochs < before:
        raise ConfigError(
            f"train.epochs: {before} -> {epochs} would make the run {config.name!r} shorter, which has followed the "
            f"learning rate of {before} epochs up to step {newest.step}; set train.epochs={before}, or give this one "
            "another name="
        )
    text = _describe_extension(before, config, newest)
    if not config.train.extend:
        raise ConfigError(
            f"train.epochs: {before} -> {epochs} extends the run {config.name!r}: {text}\n"
            f"set train.extend=true to go on like that, train.epochs={before} to leave it at that, or another name="
        )
    return f"extended from {before} to {epochs} epochs: {text}"


def _describe_extension(before: int, config: RunConfig, newest: NewestCheckpoint) -> str:
    """Describe what an extension changes in the learning rate."""
    num_samples = int(newest.meta["data"]["num_samples"])
    shorter = dataclasses.replace(config, train=dataclasses.replace(config.train, epochs=before))
    old, new = (TrainPlan.from_config(either, num_samples) for either in (shorter, config))
    optim, batch_size = new.optim, new.batch_size
    step, last = newest.step, lr_at(optim, old.step(newest.step - 1), batch_size)
    parts = [
        f"it is at step {step} of {old.total_steps}, where the learning rate was {last:.4g} (its peak: "
        f"{peak_lr(optim, batch_size):.4g})",
        f"the curve is computed anew for {new.total_steps} steps and goes on at "
        f"{lr_at(optim, new.step(step), batch_size):.4g}",
    ]
    old_warmup, new_warmup = (optim.warmup.steps(plan.total_steps, plan.epoch_len) for plan in (old, new))
    if old_warmup != new_warmup:
        again = ", so that it warms up again" if old_warmup <= step < new_warmup else ""
        parts.append(f"the warm-up of {optim.warmup} is {new_warmup} steps instead of {old_warmup}{again}")
    parts.append("other schedules that follow the share of the run that is done go back with it")
    return "; ".join(parts)
