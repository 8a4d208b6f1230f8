"""Fork a run: a new run goes on from another run's checkpoint, with settings of its own.

With `method.weights` a run begins at step 0 with the weights of another one. A fork also takes over the optimizer, the
step and the state of callbacks. Population based training (Jaderberg et al. 2017, arXiv 1711.09846) calls this exploit.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from raysl.checkpoint.checkpoint_folder import (
    META_FILE,
    PREFIX,
    SETTINGS_FILE,
    STATE_FILE,
    NewestCheckpoint,
    checkpoint_name,
    checkpoint_names,
    newest_whole,
    seal,
    upload,
    verify,
)
from raysl.checkpoint.lineage import Parent, read_parents, write_parents
from raysl.checkpoint.tensors import load_tensors, save_tensors
from raysl.checkpoint.weights import misfits
from raysl.config.arguments import run_config
from raysl.config.build import build_node
from raysl.config.dump import dump
from raysl.config.load import stored_tree
from raysl.config.schema import OptimConfig, RunConfig
from raysl.data.batch import DataInfo
from raysl.data.dataset_note import DatasetNote
from raysl.data.order import epoch_length
from raysl.errors import ConfigError, log
from raysl.optim.build import build_optimizer
from raysl.process.temporary import temporary_folder
from raysl.redact import redact_uri
from raysl.runs.begin import claim_dataset
from raysl.runs.folder import RunFolder
from raysl.runs.follow import read_events
from raysl.storage.addresses import absolute, split_query
from raysl.storage.folder import Folder, outlast
from raysl.train.callbacks.logs import read_metrics
from raysl.train.file_names import METRICS_FILE
from raysl.train.prepare import Prepared, prepare
from raysl.train.state import TrainState, check_resumable

MOST_NAMED = 8  # tensors in a message
SCHEDULED = ("params", "lr", "weight_decay")  # keys of a group that are set before every step


def fork(config: RunConfig, parent: str) -> None:
    """Prepare the folder of a new run so that its first start goes on from the checkpoint of another run.

    Method, optimizer, average, step and the state of callbacks come from the checkpoint; the settings are those of
    `config`. The parent's logged lines up to that step become the beginning of the run's history, and `lineage.json`
    names the parent. A fork that was interrupted is repeated; a complete one stays as it is.

    Args:
        config: settings of the new run, in `<storage>/<name>`.
        parent: path or URI of a checkpoint, or of a run, whose newest checkpoint is taken.

    Raises:
        ConfigError: if the run has begun without a parent or from another one, there is no whole checkpoint, or
            method, optimizer, dataset, batch size, number of epochs or the shape of a tensor differs.
        RunInUse: if another process works in the run's folder.
    """
    config = run_config(config)
    config = replace(config, storage=absolute(config.storage))
    folder = RunFolder.of(config)
    source, name = _split_parent(parent)
    if source.uri == folder.uri:
        raise ConfigError(f"a run cannot be forked from itself ({folder.uri}); give it another name=")
    with folder.occupied():
        if not _is_done(folder, source, name):
            _fork(prepare(config), folder, source, name)


def _split_parent(parent: str) -> tuple[Folder, str | None]:
    base, query = split_query(absolute(parent))
    above, _, name = base.rstrip("/").rpartition("/")
    return (Folder(above + query), name) if name.startswith(PREFIX) else (Folder(parent), None)


def _is_done(folder: RunFolder, source: Folder, name: str | None) -> bool:
    """Whether the run already is this fork; refuse a run that is another fork, or has begun by itself."""
    before = read_parents(folder)
    if not before and not checkpoint_names(folder):
        return False
    if before and before[0].path == redact_uri(source.uri) and name in (None, checkpoint_name(before[0].step)):
        return newest_whole(folder).name is not None
    what = f"was forked from {before[0]} in {before[0].path}" if before else "has begun by itself"
    raise ConfigError(f"the run in {folder.uri} {what}; give this one another name=")


def _fork(run: Prepared, folder: RunFolder, source: Folder, name: str | None) -> None:
    """Copy the checkpoint last: a run has begun once it has one, and everything else must be in place then."""
    with temporary_folder("fork") as above:
        draft = Path(above) / "checkpoint"
        name, meta = outlast(partial(_download, source, name, draft))
        origin = _Origin.read(source.uri_of(name), draft, meta, run.config)
        _check_settings(run, origin)
        _adapt_checkpoint(run, origin, draft)
        now = DatasetNote.of(run.loader.split, run.setup.plan.epoch_len)
        folder.claim(run.setup.as_written, NewestCheckpoint())
        claim_dataset(folder, run.config, now, NewestCheckpoint())
        step = int(meta["step"])
        parent = Parent(source.path.rpartition("/")[2], step, step / now.epoch_len, redact_uri(source.uri))
        write_parents(folder, [parent, *outlast(partial(read_parents, source))])
        lines = [line for line in read_metrics(source) if line["step"] <= step]
        folder.write(METRICS_FILE, "".join(json.dumps(line) + "\n" for line in lines).encode())
        event = f"forked from {parent.run} at step {step}"
        if event not in read_events(folder):
            folder.note(event)
        outlast(partial(upload, draft, folder, name))
        log.info("%s: %s", run.config.name, event)


def _download(source: Folder, name: str | None, draft: Path) -> tuple[str, dict[str, Any]]:
    """Copy a whole checkpoint of a run into a local folder; return its name and its `meta.json`."""
    name = name or newest_whole(source, ()).name
    if name is None:
        raise ConfigError(f"no checkpoint at {source.uri!r} to fork from; give the folder of a run that has one")
    if not source.exists(f"{name}/{META_FILE}"):
        raise ConfigError(f"no checkpoint at {source.uri_of(name)!r} to fork from; give one that is there, or the run")
    source.child(name).download(draft)
    return name, verify(Folder(str(draft)))


@dataclass(frozen=True)
class _Origin:
    """A checkpoint that a run is forked from.

    Args:
        settings: settings of its run as a plain tree; the code that they name is not imported.
        state: content of its `train_state.pt`.
    """

    uri: str
    meta: Mapping[str, Any]
    settings: Mapping[str, Any]
    state: dict[str, Any]

    @classmethod
    def read(cls, uri: str, copy: Path, meta: dict[str, Any], config: RunConfig) -> "_Origin":
        check_resumable(meta, uri, config)
        settings = stored_tree((copy / SETTINGS_FILE).read_text(encoding="utf-8"), f"{uri}/{SETTINGS_FILE}")
        return cls(uri, meta, settings, load_tensors(copy / STATE_FILE))

    @property
    def batch_size(self) -> int:
        """Images in a global batch, which follows the number of workers if `train.reference_workers` is set."""
        train = self.settings["train"]
        reference = train.get("reference_workers")
        return int(train["batch_size"] if reference is None else train["batch_size"] // reference * train["workers"])

    @property
    def dataset(self) -> DatasetNote:
        """Note of its run's dataset."""
        data = DataInfo.stored(self.meta["data"])
        epoch_len = epoch_length(data.num_samples, self.batch_size, self.settings["data"].get("drop_last", True))
        return DatasetNote(data.fingerprint, data.num_samples, data.num_classes, epoch_len)


def _check_settings(run: Prepared, origin: _Origin) -> None:
    """Refuse settings with which a step is not what it was in the parent."""
    train, plan = run.config.train, run.setup.plan
    pairs = {
        "optim.name": (origin.settings["optim"]["name"], run.config.optim.name),
        "train.batch_size": (origin.batch_size, plan.batch_size),
        "train.epochs": (origin.meta["epochs"], train.epochs),
    }
    changes = [f"{key}: {old} -> {new}" for key, (old, new) in pairs.items() if old != new]
    # another batch size also changes the length of epochs, which need not be reported as well
    if not any(change.startswith("train.batch_size") for change in changes):
        now, before = DatasetNote.of(run.loader.split, plan.epoch_len), origin.dataset
        changes += now.changes(before if before.fingerprint else replace(before, fingerprint=now.fingerprint))
    if changes:
        listed = "\n  ".join(changes)
        raise ConfigError(
            f"the run {run.config.name!r} cannot go on from {origin.uri}:\n  {listed}\n"
            f"keep its values, or begin at step 0 with its weights alone by method.weights={origin.uri}"
        )


def _adapt_checkpoint(run: Prepared, origin: _Origin, draft: Path) -> None:
    """Write the settings of the run into the copy of a checkpoint, and check that the run's state loads it.

    Options of the optimizer that differ, such as the momentum, are changed in the copy too.
    """
    with torch.random.fork_rng(devices=[]):
        state = TrainState.create(run.setup, "cpu", run.classes, is_new=False)
    if lines := misfits(state.method.state_dict(), origin.state["method"]):
        more = f"\n  and {len(lines) - MOST_NAMED} more" if len(lines) > MOST_NAMED else ""
        listed = "\n  ".join(lines[:MOST_NAMED])
        raise ConfigError(
            f"{origin.uri} does not fit the settings of the run {run.config.name!r}:\n  {listed}{more}\n"
            "keep the settings that decide these shapes, or begin with the parts that fit by method.weights"
        )
    if _update_options(run, origin, state):
        save_tensors(origin.state, draft / STATE_FILE)
    (draft / SETTINGS_FILE).write_text(dump(run.setup.as_written))
    # `seal` writes `format` and `files` anew; with `ended` the fork would count as finished like its parent
    stale = ("format", "files", "ended")
    seal(draft, {key: value for key, value in origin.meta.items() if key not in stale})
    try:
        state.load(draft)
    except ConfigError as error:
        raise ConfigError(str(error).replace(str(draft), origin.uri)) from error


def _update_options(run: Prepared, origin: _Origin, state: TrainState) -> bool:
    """Write changed options of the optimizer into the parent's state; return whether there were any.

    Loading restores a group's options from the checkpoint, because some optimizers keep state there. So a changed
    option has to be changed in the checkpoint.
    """
    before = build_node(OptimConfig, origin.settings["optim"], "optim")
    old, new = (build_optimizer(state.method, optim, run.classes.optimizer) for optim in (before, run.config.optim))
    is_changed = False
    for saved, old_group, new_group in zip(
        origin.state["optimizer"]["param_groups"], old.param_groups, new.param_groups, strict=False
    ):
        changes = {
            key: value for key, value in new_group.items() if key not in SCHEDULED and value != old_group.get(key)
        }
        saved.update(changes)
        is_changed |= bool(changes)
    return is_changed
