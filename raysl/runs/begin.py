"""The checkpoint that a start of a run goes on from: its newest one, or one with the weights of another run."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from raysl.checkpoint.checkpoint_folder import (
    STATE_FILE,
    NewestCheckpoint,
    checkpoint_name,
    local_copy,
    read_meta,
    upload,
)
from raysl.checkpoint.published import describe_origin
from raysl.checkpoint.tensors import load_tensors
from raysl.checkpoint.weights import read_weights
from raysl.components import Classes
from raysl.config.schema import RunConfig
from raysl.data.batch import DataInfo
from raysl.data.dataset_note import DatasetNote
from raysl.errors import ConfigError, log
from raysl.process.temporary import temporary_folder
from raysl.process.waiting import enter
from raysl.runs.claims import claim_dataset
from raysl.runs.folder import RunFolder
from raysl.storage.folder import absolute, outlast
from raysl.train.prepare import Prepared
from raysl.train.state import TrainState, check_resumable


def begin(run: Prepared, folder: RunFolder) -> NewestCheckpoint:
    """Claim the folder for this run's settings and images; the driver does so before any worker starts.

    The weights of `method.weights` or `backbone.pretrained` are read or downloaded once, when the run is new, and
    stored as its checkpoint at step 0: workers and later starts take them from there.

    Returns:
        The checkpoint to go on from.

    Raises:
        ConfigError: if the folder is another run's, the dataset has changed, the run has become shorter, or longer
            without `train.extend`, the checkpoint is of another method or holds a tensor with rows for other images,
            the weights do not fit, or `backbone.freeze` leaves nothing to train.
    """
    config, newest = run.setup.as_written, folder.newest()
    # Weights and frozen stages can be wrong in ways that only a built method shows.
    backbone = config.backbone
    is_check_due = config.method.weights is not None or backbone.is_pretrained or backbone.freeze
    first = _first_state(run) if newest.name is None and is_check_due else None
    folder.claim(config, newest)
    if config.data.changed == "accept":
        _check_rows(run, folder, newest)
    newest = claim_dataset(folder, config, DatasetNote.of(run.loader.split, run.setup.plan.epoch_len), newest)
    if newest.name is not None:
        check_resumable(newest.meta, folder.uri_of(newest.name), config)
    return newest if first is None or first.weights is None else _store(folder, first)


def check_weights(config: RunConfig) -> None:
    """Refuse `method.weights` of a new run that do not fit its backbone, as `begin` does, without the method."""
    if config.method.weights is None:
        return
    folder = RunFolder.of(replace(config, storage=absolute(config.storage)))
    if folder.newest().name is None:  # a run that goes on has its own
        backbone = Classes.of(config).backbone.without_weights(config.backbone)
        read_weights(config).check_backbone(backbone)


def _first_state(run: Prepared) -> TrainState:
    config = run.setup.config
    if config.method.weights is not None or config.backbone.is_pretrained:
        enter("reading the weights that training begins with")
    # building a state seeds torch's generator, which belongs to the program that calls this
    with torch.random.fork_rng(devices=[]):
        return TrainState.create(run.setup, "cpu", run.classes)


def _check_rows(run: Prepared, folder: RunFolder, newest: NewestCheckpoint) -> None:
    """Refuse another number of images where the method has a row for each image, before anything is changed."""
    now = run.setup.data.num_samples
    if newest.name is None or (before := DataInfo.stored(newest.meta["data"]).num_samples) == now:
        return
    with local_copy(folder.uri_of(newest.name), [STATE_FILE]) as copy:
        stored = load_tensors(copy / STATE_FILE)["method"]
    # a fresh method for the present images shows which tensors have a row for each: their shapes differ
    for name, value in _first_state(run).method.state_dict().items():
        if name in stored and stored[name].shape != value.shape:
            raise ConfigError(
                f"{run.config.method.name} keeps something of each image ({name} {list(stored[name].shape)}): it "
                f"cannot go on with {now:,} images in place of {before:,}; bring back the old ones, or start another "
                f"name= from these weights by method.weights={folder.uri}"
            )


def _store(folder: RunFolder, state: TrainState) -> NewestCheckpoint:
    """Store a state as the run's checkpoint at step 0."""
    assert state.weights is not None
    name = checkpoint_name(0)
    with temporary_folder("checkpoint") as draft:
        state.save(Path(draft), {})
        outlast(partial(upload, Path(draft), folder, name))
    text = describe_origin(state.weights)
    folder.note(text)
    log.info(text)
    return NewestCheckpoint(name, read_meta(folder.child(name)))
