"""Whether the trials of a sweep that have ended were trained on the images that there are now."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain

from raysl.components import resolve
from raysl.config.schema import DataConfig, RunConfig
from raysl.data.dataset_note import DatasetNote
from raysl.errors import ConfigError, StorageError, log
from raysl.process.screen import counted
from raysl.storage.folder import Folder, outlast
from raysl.sweeps.record import Record


def check_images(folder: Folder, bases: Mapping[str, RunConfig], name: str, records: Iterable[Record]) -> None:
    """Refuse to continue a sweep if trials ended on other images, unless `data.changed` is `accept`.

    A trial whose run noted nothing is passed over, and one with data settings of its own, since there may be as many
    datasets as trials.

    Args:
        bases: base settings of trials that are trained.
        name: name of the sweep.
    """
    known: dict[str, DatasetNote | None] = {}
    changed: dict[str, list[list[str]]] = {"refuse": [], "accept": []}
    num_rewritten = 0
    for trial in (record.trial for record in records if record.has_ended):
        if trial.config not in bases or any(key.split(".")[0] == "data" for key in trial.settings):
            continue
        before, data = outlast(partial(DatasetNote.read, folder.child(trial.name))), bases[trial.config].data
        if repr(data) not in known:
            known[repr(data)] = _images_now(data)
        now = known[repr(data)]
        if before is None or now is None:
            continue
        # the length of epochs also depends on a trial's batch size
        if changes := replace(now, epoch_len=before.epoch_len).changes(before):
            config = f"{trial.config}: " if trial.config else ""
            changed[data.changed].append([f"{config}{line}" for line in changes])
        else:
            num_rewritten += now.is_rewritten_since(before)
    refused, accepted = changed["refuse"], changed["accept"]
    if refused:
        listed = "\n  ".join(dict.fromkeys(chain(*refused)))
        raise ConfigError(
            f"{counted(len(refused), 'trial')} of the sweep {name!r} ended on other training images than there are "
            f"now:\n  {listed}\nbring back the old ones, give this sweep another name=, or set data.changed=accept "
            "to have new trials beside them all the same"
        )
    if accepted:
        message = f"{counted(len(accepted), 'trial')} ended on other training images than there are now"
        log.warning(
            "%s (%s); their numbers stay, as data.changed=accept says",
            message,
            "; ".join(dict.fromkeys(chain(*accepted))),
        )
    if num_rewritten:
        log.warning(
            "files of the training images were written again, as by a copy, since %s ended on them; names, sizes and "
            "labels are the same, so their numbers stay",
            counted(num_rewritten, "trial"),
        )


def _images_now(data: DataConfig) -> DatasetNote | None:
    """Return the training images of settings; None if they are gone."""
    try:
        return DatasetNote.of(resolve("source", data.name)(data).required("train"), epoch_len=0)
    except StorageError:
        raise  # it may work again
    except ConfigError:
        return None  # a run that needs them says so
