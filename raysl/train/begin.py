"""What a start of a run goes on from: its newest checkpoint, or the weights that it is given."""

import logging
import tempfile
from functools import partial
from pathlib import Path

import torch

from raysl.checkpoint import TrainState, check_resumable
from raysl.checkpoint_files import Found, checkpoint_name, read_meta, upload
from raysl.checkpoint_weights import told
from raysl.storage import outlast
from raysl.train.folder.dataset_note import DatasetNote, claim_dataset
from raysl.train.folder.run_folder import RunFolder
from raysl.train.prepare import Prepared

log = logging.getLogger("raysl")


def begin(run: Prepared, folder: RunFolder) -> Found:
    """Make the folder that of this run, with these settings and images. The driver calls it, before any worker starts.

    The weights at `method.weights` are read once, when the run is new, and kept as its checkpoint at step 0.

    Returns:
        The checkpoint to go on from.

    Raises:
        ConfigError: if the folder is another run's, the dataset has changed, the run has become shorter, or longer
            without a word, the checkpoint is of another method, or the weights do not fit.
    """
    config, found = run.config, folder.newest()
    first = _first_state(run) if found.name is None and config.method.weights is not None else None
    folder.claim(config, found)
    found = claim_dataset(folder, config, DatasetNote.of(run.loader.split, run.setup.plan.epoch_len), found)
    if found.name is not None:
        check_resumable(found.meta, folder.uri_of(found.name), config)
    return found if first is None else _store(folder, first)


def _first_state(run: Prepared) -> TrainState:
    with torch.random.fork_rng(devices=[]):
        return TrainState.create(run.setup, "cpu", run.classes)


def _store(folder: RunFolder, state: TrainState) -> Found:
    """Keep a state as the run's checkpoint at step 0."""
    assert state.weights is not None
    name = checkpoint_name(0)
    with tempfile.TemporaryDirectory(prefix="raysl_checkpoint_") as draft:
        state.save(Path(draft), {})
        outlast(partial(upload, Path(draft), folder, name))
    text = told(state.weights)
    folder.note(text)
    log.info(text)
    return Found(name, read_meta(folder.child(name)))
