"""What a sweep's folder holds of earlier starts: another one may add and remove trials, but not change their meaning,
nor the images that they were trained on."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from raysl.checkpoint.checkpoint_folder import SETTINGS_FILE
from raysl.components import resolve
from raysl.config.config_files import read
from raysl.config.dump import differences, dump_all, plain, show, write
from raysl.config.load import stored_settings
from raysl.config.places import SWEEP_FILE
from raysl.config.schema import DataConfig, RunConfig
from raysl.config.trust import check_text
from raysl.data.dataset_note import DatasetNote
from raysl.errors import ConfigError, StorageError, log
from raysl.process.screen import counted
from raysl.redact import bare_tree, bare_uri, redact_tree, redact_uri
from raysl.storage.folder import Folder, outlast
from raysl.sweeps.load import dump_sweep
from raysl.sweeps.record import Record
from raysl.sweeps.schema import SweepConfig, is_population

MAY_CHANGE = (
    "config", "configs", "settings", "checkpoints", "benchmarks", "seeds", "trials", "metric", "mode", "concurrent",
    "retries",
)  # fmt: skip
"""Settings that another start of a sweep may change: they add or remove trials. `config` and `settings` are compared by
the base configurations that they give."""
DECIDING = ("configs", "checkpoints", "metric", "mode")
"""Settings that change what a searcher chooses."""
RUNS = ("configs", "checkpoints", "seeds", "trials")
"""Settings that say which runs there are."""


def claim(folder: Folder, name: str, bases: Mapping[str, RunConfig], sweep: SweepConfig) -> list[str]:
    """Claim a folder for this sweep; arguments and result as those of `changes_since`."""
    allowed = changes_since(folder, name, bases, sweep)
    starts = {redact_uri(name): base for name, base in bases.items()}
    text = dump_sweep(sweep) + "\n# departs from:\n" + dump_all(starts, "starts")
    folder.write(SWEEP_FILE, text.encode())
    return allowed


def changes_since(folder: Folder, name: str, bases: Mapping[str, RunConfig], sweep: SweepConfig) -> list[str]:
    """Check that a folder is free for this sweep, or belongs to it.

    Returns:
        A line for each setting that has changed since the last start.

    Raises:
        ConfigError: if a run or another sweep is there.
    """
    if outlast(partial(folder.exists, SETTINGS_FILE)):
        raise ConfigError(f"a run named {name!r} is in {folder.uri}; give this sweep another name=")
    tree = _stored(folder)
    allowed: list[str] = []
    if tree is not None:
        changes, allowed = _changes(tree, bases, sweep)
        if changes:
            listed = "\n  ".join(changes)
            raise ConfigError(
                f"another sweep named {name!r} is in {folder.uri}:\n  {listed}\ngive this one another name=, or go "
                "back to those settings to go on with it"
            )
    return allowed


def _stored(folder: Folder) -> dict[str, Any] | None:
    """What `sweep.yaml` holds; None where there is none."""
    text = outlast(partial(folder.read_if_there, SWEEP_FILE)).decode()
    check_text(text, SWEEP_FILE)
    tree = read(text, SWEEP_FILE) if text else None
    if tree is not None and (not isinstance(tree, dict) or "starts" not in tree):
        raise ConfigError(f"{folder.uri_of(SWEEP_FILE)} is not of this raysl; give the sweep another name=")
    return tree


def _changes(
    tree: Mapping[str, Any], bases: Mapping[str, RunConfig], sweep: SweepConfig
) -> tuple[list[str], list[str]]:
    """Return lines on differences: those that are refused, and those that are allowed."""
    now = redact_tree(plain(sweep))
    changes: list[str] = []
    allowed: list[str] = []
    fixed = DECIDING if sweep.search != "random" else ("trials",) if is_population(sweep) else ()
    for key, value in now.items():
        if key in ("name", "storage", "early_metric", "early_mode"):
            continue  # those of this folder, and what the others come to is compared below
        then = tree.get(key)
        if bare_tree(then) != bare_tree(value):
            may_change = key in MAY_CHANGE and key not in fixed
            line = f"{key}: {show(then)} -> {show(value)}"
            if key in RUNS and _is_fewer(value, then):
                line += "; runs that it no longer has stay in its folder, and leave its table"
            (allowed if may_change else changes).append(line)
    before = SweepConfig(**{key: tree[key] for key in now if key in tree}).early
    if sweep.scheduler != "none" and before != sweep.early:
        changes.append(
            f"what {sweep.scheduler} looks at: {before.metric} ({before.mode}) -> {sweep.early.metric} "
            f"({sweep.early.mode}); early_metric= keeps it"
        )
    starts = {bare_uri(name): start for name, start in tree["starts"].items()}
    for name, base in bases.items():
        if (start := starts.get(bare_uri(name))) is not None:
            lines = differences(stored_settings(write(start), SWEEP_FILE, base), base)
            epochs = start.get("train", {}).get("epochs", base.train.epochs)
            if epochs != base.train.epochs:
                lines.append(f"train.epochs: {epochs} -> {base.train.epochs}")
            changes += [f"{redact_uri(name)}: {line}" if name else line for line in lines]
    return changes, allowed


def _is_fewer(value: Any, before: Any) -> bool:
    """Whether a number is smaller than before, or a list lacks something that it had."""
    if isinstance(value, list) and isinstance(before, list):
        return any(item not in value for item in before)
    return isinstance(value, int) and isinstance(before, int) and value < before


def check_images(folder: Folder, bases: Mapping[str, RunConfig], name: str, records: Iterable[Record]) -> None:
    """Refuse to continue a sweep if trials ended on other images, unless `data.changed` is `accept`.

    A trial whose run noted nothing is passed over, and one with data settings of its own, since there may be as many
    datasets as trials.

    Args:
        bases: base settings of trials that are trained.
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
