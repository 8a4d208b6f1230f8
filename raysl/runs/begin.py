"""Begin a start of a run: find its checkpoint, store given weights, compare its dataset, and count its CPUs.

A run notes its dataset in its folder, and every start compares the dataset with that note, since the order of samples
is a function of the dataset's fingerprint. A start is refused if the images, labels, sizes or bytes have changed, as
far as these are known. With `data.changed=accept` the run goes on with the new dataset: at the same step, or at the
beginning of the epoch if the length of epochs has changed. Files that were only written again, for example by a copy,
cause a warning. A fact that one of the two notes lacks is not compared.
"""

import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch

from raysl.checkpoint.checkpoint_folder import (
    STATE_FILE,
    NewestCheckpoint,
    checkpoint_name,
    checkpoint_names,
    local_copy,
    read_meta,
    remove,
    seal,
    upload,
)
from raysl.checkpoint.published import describe_origin
from raysl.checkpoint.tensors import load_tensors, save_tensors
from raysl.checkpoint.weights import read_weights
from raysl.components import Classes
from raysl.config.schema import RunConfig
from raysl.data.batch import DataInfo
from raysl.data.dataset_note import DATASET_FILE, DatasetNote
from raysl.errors import ConfigError, log
from raysl.plan.plan import TrainPlan
from raysl.process.cpus import Cpus, CpuTime, measure_cpus
from raysl.process.temporary import temporary_folder
from raysl.process.waiting import enter
from raysl.runs.folder import RunFolder
from raysl.storage.folder import absolute, outlast
from raysl.storage.records import read_as
from raysl.train.callbacks.logs import read_metrics
from raysl.train.file_names import METRICS_FILE
from raysl.train.prepare import Prepared
from raysl.train.state import TrainState, check_resumable

CPUS_FILE = "cpus.json"


def begin(run: Prepared, folder: RunFolder) -> NewestCheckpoint:
    """Claim the folder for this run's settings and images. The driver calls this before any worker starts.

    A new run reads or downloads the weights of `method.weights` or `backbone.pretrained` once, and stores them as its
    checkpoint at step 0. Workers and later starts load that checkpoint.

    Returns:
        The checkpoint to go on from.

    Raises:
        ConfigError: if the folder belongs to another run, the dataset has changed, `train.epochs` is smaller than
            before, or larger without `train.extend`, the checkpoint is of another method, one of its tensors has a
            row for each image and their number has changed, the weights do not fit, or `backbone.freeze` leaves
            nothing to train.
    """
    config, newest = run.setup.as_written, folder.newest()
    # only a built method shows whether weights and frozen stages fit
    backbone = config.backbone
    is_check_due = config.method.weights is not None or backbone.is_pretrained or backbone.freeze
    first = _first_state(run) if newest.name is None and is_check_due else None
    folder.claim(config, newest)
    if config.data.changed == "accept":
        _check_image_rows(run, folder, newest)
    newest = claim_dataset(folder, config, DatasetNote.of(run.loader.split, run.setup.plan.epoch_len), newest)
    if newest.name is not None:
        check_resumable(newest.meta, folder.uri_of(newest.name), config)
    return newest if first is None or first.weights is None else _store_first(folder, first)


def check_weights(config: RunConfig) -> None:
    """Refuse `method.weights` that do not fit the backbone of a new run; unlike `begin`, build no method."""
    if config.method.weights is None:
        return
    folder = RunFolder.of(replace(config, storage=absolute(config.storage)))
    if folder.newest().name is None:  # else the run resumes from its checkpoint
        backbone = Classes.of(config).backbone.without_weights(config.backbone)
        read_weights(config).check_backbone(backbone)


def _first_state(run: Prepared) -> TrainState:
    config = run.setup.config
    if config.method.weights is not None or config.backbone.is_pretrained:
        enter("reading the weights that training begins with")
    # building a state seeds torch's generator, which belongs to the caller's program
    with torch.random.fork_rng(devices=[]):
        return TrainState.create(run.setup, "cpu", run.classes)


def _check_image_rows(run: Prepared, folder: RunFolder, newest: NewestCheckpoint) -> None:
    """Refuse another number of images if a tensor of the method has a row for each image."""
    now = run.setup.data.num_samples
    if newest.name is None or (before := DataInfo.stored(newest.meta["data"]).num_samples) == now:
        return
    with local_copy(folder.uri_of(newest.name), [STATE_FILE]) as copy:
        stored = load_tensors(copy / STATE_FILE)["method"]
    # tensors with a row for each image have another shape in a method built for the present images
    for name, value in _first_state(run).method.state_dict().items():
        if name in stored and stored[name].shape != value.shape:
            raise ConfigError(
                f"{run.config.method.name} stores a row for each image ({name} {list(stored[name].shape)}), so it "
                f"cannot go on with {now:,} images in place of {before:,}; bring back the old images, or start a new "
                f"run (another name=) from these weights with method.weights={folder.uri}"
            )


def _store_first(folder: RunFolder, state: TrainState) -> NewestCheckpoint:
    """Store a state as the run's checkpoint at step 0."""
    assert state.weights is not None
    name = checkpoint_name(0)
    with temporary_folder("checkpoint") as draft:
        state.save(Path(draft), {})
        outlast(partial(upload, Path(draft), folder, name))
    text = describe_origin(state.weights)
    if (decay := state.config.optim.layer_decay) is not None:
        inside = {id(parameter) for parameter in state.method.backbone.parameters()}
        groups = [group for group in state.optimizer.param_groups if id(group["params"][0]) in inside]
        shares = [group["lr_scale"] for group in groups] or [0.0]  # no group: the whole backbone is frozen
        text += f"; optim.layer_decay={decay:g}: layers learn at {min(shares):.2g} to {max(shares):.2g} of the peak"
    folder.note(text)
    log.info(text)
    return NewestCheckpoint(name, read_meta(folder.child(name)))


def claim_dataset(folder: RunFolder, config: RunConfig, now: DatasetNote, newest: NewestCheckpoint) -> NewestCheckpoint:
    """Note the dataset of a run; if one was noted before, compare the two.

    Returns:
        The checkpoint to go on from: `newest`, or, if a dataset with another length of epochs was accepted, a copy of
        it that counts as the beginning of its epoch.

    Raises:
        ConfigError: if the dataset changed and `data.changed` is `refuse`; the message lists the changes.
    """
    before = DatasetNote.read(folder)
    changes = now.changes(before) if before is not None and newest.name is not None else []
    if changes and config.data.changed == "refuse":
        listed = "\n  ".join(changes)
        raise ConfigError(
            f"the dataset of the run {config.name!r} has changed since step {newest.step}:\n  {listed}\n"
            "bring back the old one, give this run another name=, or set data.changed=accept to go on with the new "
            "one at the same epoch"
        )
    if changes:
        newest = _store_at_epoch_start(folder, config, now, newest)
        event = f"goes on with a changed dataset ({'; '.join(changes)}) at step {newest.step}"
        folder.note(event)
        log.info(event)
    elif before is not None and newest.name is not None and now.is_rewritten_since(before):
        event = "files of the training images were written again, as by a copy, since this run read them last"
        folder.note(event)
        log.warning("%s; names, sizes and labels are the same, so it goes on at step %d", event, newest.step)
    if now != before:
        folder.write(DATASET_FILE, json.dumps(asdict(now), indent=1).encode())
    return newest


def _store_at_epoch_start(
    folder: RunFolder, config: RunConfig, now: DatasetNote, newest: NewestCheckpoint
) -> NewestCheckpoint:
    """Store the checkpoint with its step counted in epochs of the new length, and remove all others."""
    assert newest.name is not None
    data = DataInfo.stored(newest.meta["data"])
    epoch_len = TrainPlan.from_config(config, data.num_samples).epoch_len
    if epoch_len == now.epoch_len:
        return newest
    # rounded down: an unfinished epoch begins again, with the new images
    epoch = newest.step // epoch_len
    step = epoch * now.epoch_len
    name = checkpoint_name(step)
    with temporary_folder("checkpoint") as draft:
        copy = Path(draft) / name
        folder.child(newest.name).download(copy)
        tensors = load_tensors(copy / STATE_FILE)
        save_tensors({**tensors, "step": step}, copy / STATE_FILE)
        meta = {key: value for key, value in newest.meta.items() if key not in ("format", "files")}
        data = replace(data, num_samples=now.num_samples, fingerprint=now.fingerprint)
        seal(copy, {**meta, "step": step, "data": asdict(data)})
        upload(copy, folder, name)
    # the others count steps in epochs of the old length; they go only once the new one is stored
    for other in checkpoint_names(folder):
        if other != name:
            remove(folder, other)
    _rescale_steps(folder, now.epoch_len, epoch)
    return NewestCheckpoint(name, read_meta(folder.child(name)))


def _rescale_steps(folder: RunFolder, epoch_len: int, epochs: int) -> None:
    """Keep the logged lines of finished epochs, with their steps counted in epochs of another length."""
    lines = [line for line in read_metrics(folder) if line["epoch"] <= epochs]
    lines = [{**line, "step": round(line["epoch"] * epoch_len)} for line in lines]
    folder.write(METRICS_FILE, "".join(json.dumps(line) + "\n" for line in lines).encode())


def claim_cpus(folder: RunFolder, since: CpuTime | None) -> Cpus | None:
    """Return the numbers of CPUs that decide a run's threads: those of its first start, else those measured now.

    The number of threads changes how sums are rounded, so every start of the run uses that of the first one, even if
    the machine is more or less busy by then.

    Args:
        since: beginning of the measurement, or None to measure nothing.

    Returns:
        None if no numbers are stored and none are measured: the run then uses all CPUs of its machines.
    """
    if content := folder.read_if_there(CPUS_FILE):
        return read_as(Cpus, content, folder.uri_of(CPUS_FILE))
    if since is None:
        return None
    cpus = measure_cpus(since)
    folder.write(CPUS_FILE, json.dumps(asdict(cpus)).encode())
    if cpus.free < cpus.usable:
        event = (
            f"other work uses some of the {cpus.usable} CPUs, so this run uses {cpus.free}; train.threads sets another "
            "number of threads"
        )
        folder.note(event)
        log.info(event)
    return cpus
