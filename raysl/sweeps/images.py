"""Whether trials that have ended were trained on the images that there are now: else their numbers compare nothing.

A trial that goes on is refused by its own run where its images have changed. One that has ended is not started again,
and its numbers would stand beside those of new trials that were trained on others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from raysl.components import resolve
from raysl.config.schema import DataConfig, RunConfig
from raysl.data.dataset_note import DatasetNote
from raysl.errors import ConfigError, StorageError, log
from raysl.process.screen import counted
from raysl.storage.folder import Folder, outlast
from raysl.sweeps.record import Record
from raysl.tune.trial import Trial


class TrainedImages:
    """The training images that the runs of a sweep have noted, and those that there are now.

    A run that noted nothing is passed over, and one whose trial has data settings of its own, since there may be as
    many datasets as trials.
    """

    def __init__(self, folder: Folder, bases: Mapping[str, RunConfig]) -> None:
        self.folder = folder
        self.bases = bases
        self.noted: dict[str, DatasetNote] = {}
        for name in outlast(folder.names):
            if name.startswith("trial_") and (note := outlast(partial(DatasetNote.read, folder.child(name)))):
                self.noted[name] = note
        self._now: list[tuple[DataConfig, DatasetNote | None]] = []

    @property
    def may_differ(self) -> bool:
        """Whether a run was trained on other images than the sweep has now."""
        if not self.noted:
            return False
        known = [now for base in self.bases.values() if (now := self._now_of(base.data)) is not None]
        return any(
            all(_changes(now, before) or now.is_rewritten_since(before) for now in known)
            for before in self.noted.values()
        )

    def check(self, name: str, records: Iterable[Record]) -> None:
        """Refuse to continue if trials ended on other images, unless `data.changed` is `accept`."""
        refused: dict[str, list[str]] = {}
        accepted: dict[str, list[str]] = {}
        num_rewritten = 0
        for trial in _ended(records):
            config = trial.run_of(self.bases, self.folder.uri) if trial.config in self.bases else None
            before = self.noted.get(trial.name)
            has_own_data = any(key.split(".")[0] == "data" for key in trial.settings)
            if config is None or before is None or has_own_data or (now := self._now_of(config.data)) is None:
                continue
            if changes := _changes(now, before):
                lines = [f"{trial.config}: {line}" if trial.config else line for line in changes]
                (accepted if config.data.changed == "accept" else refused)[trial.name] = lines
            else:
                num_rewritten += now.is_rewritten_since(before)
        if refused:
            listed = "\n  ".join(_lines(refused))
            raise ConfigError(
                f"{counted(len(refused), 'trial')} of the sweep {name!r} ended on other training images than there are "
                f"now:\n  {listed}\nbring back the old ones, give this sweep another name=, or set data.changed=accept "
                "to have new trials beside them all the same"
            )
        if accepted:
            message = f"{counted(len(accepted), 'trial')} ended on other training images than there are now"
            log.warning(
                "%s (%s); their numbers stay, as data.changed=accept says", message, "; ".join(_lines(accepted))
            )
        if num_rewritten:
            log.warning(
                "files of the training images were written again, as by a copy, since %s ended on them; names, sizes "
                "and labels are the same, so their numbers stay",
                counted(num_rewritten, "trial"),
            )

    def _now_of(self, data: DataConfig) -> DatasetNote | None:
        """Return the training images of settings, looked up once; None if they are gone."""
        for known, note in self._now:
            if known == data:
                return note
        try:
            note = DatasetNote.of(resolve("source", data.name)(data).required("train"), epoch_len=0)
        except StorageError:
            raise  # it may work again
        except ConfigError:
            note = None  # a run that needs them says so
        self._now.append((data, note))
        return note


def _changes(now: DatasetNote, before: DatasetNote) -> list[str]:
    """Describe the changes, except the length of epochs, which also depends on a trial's batch size."""
    return replace(now, epoch_len=before.epoch_len).changes(before)


def _ended(records: Iterable[Record]) -> list[Trial]:
    """Return trials that have ended or were stopped, each run once."""
    ended = {record.trial.name: record.trial for record in records if record.has_ended}
    return list(ended.values())


def _lines(changes: Mapping[str, list[str]]) -> list[str]:
    return list(dict.fromkeys(line for lines in changes.values() for line in lines))
