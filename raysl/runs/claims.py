"""The dataset and the CPUs that a run began with: noted in its folder, and compared at every start.

The order of samples is a function of the dataset's fingerprint, so a resumed run needs the same dataset. Another one,
or other labels, sizes or bytes as far as these are known, is refused. With `data.changed=accept` the run goes on with
it: at the same step, or at the beginning of the epoch if the length of epochs has changed. Files that were only written
again, as by a copy, cause a warning. Facts that one of both notes lacks are not compared.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path

from raysl.checkpoint.checkpoint_folder import (
    STATE_FILE,
    NewestCheckpoint,
    checkpoint_name,
    checkpoint_names,
    read_meta,
    remove,
    seal,
    upload,
)
from raysl.checkpoint.tensors import load_tensors, save_tensors
from raysl.config.schema import RunConfig
from raysl.data.batch import DataInfo
from raysl.data.dataset_note import DATASET_FILE, DatasetNote
from raysl.errors import ConfigError, log
from raysl.plan.plan import TrainPlan
from raysl.process.cpus import Cpus, CpuTime, measure_cpus
from raysl.process.temporary import temporary_folder
from raysl.runs.folder import RunFolder
from raysl.storage.records import read_as
from raysl.train.callbacks.logs import read_metrics
from raysl.train.file_names import METRICS_FILE

CPUS_FILE = "cpus.json"


def claim_dataset(folder: RunFolder, config: RunConfig, now: DatasetNote, newest: NewestCheckpoint) -> NewestCheckpoint:
    """Note the dataset of a run, or compare it with the one noted before.

    Returns:
        The checkpoint to go on from: `newest`, or its state at the beginning of its epoch if a dataset with another
        length of epochs was accepted.

    Raises:
        ConfigError: if the dataset changed and `data.changed` is `refuse`; the message lists what.
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
        newest = _at_epoch_start(folder, config, now, newest)
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


def _at_epoch_start(
    folder: RunFolder, config: RunConfig, now: DatasetNote, newest: NewestCheckpoint
) -> NewestCheckpoint:
    """Store the checkpoint with its step counted in epochs of the new length, and remove the others."""
    assert newest.name is not None
    data = DataInfo.stored(newest.meta["data"])
    epoch_len = TrainPlan.from_config(config, data.num_samples).epoch_len
    if epoch_len == now.epoch_len:
        return newest
    # rounded down: an epoch that was not finished begins again, with the new images
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
    # only now that the new one is stored: the others count steps in epochs of the old length
    for other in checkpoint_names(folder):
        if other != name:
            remove(folder, other)
    _count_anew(folder, now.epoch_len, epoch)
    return NewestCheckpoint(name, read_meta(folder.child(name)))


def _count_anew(folder: RunFolder, epoch_len: int, epochs: int) -> None:
    """Rewrite the steps of the logged lines of finished epochs for epochs of another length."""
    lines = [line for line in read_metrics(folder) if line["epoch"] <= epochs]
    lines = [{**line, "step": round(line["epoch"] * epoch_len)} for line in lines]
    folder.write(METRICS_FILE, "".join(json.dumps(line) + "\n" for line in lines).encode())


def claim_cpus(folder: RunFolder, since: CpuTime | None) -> Cpus | None:
    """Return the CPUs on which a run counts: those of its first start, else those that other work leaves now.

    Another number of threads rounds sums otherwise, so every start of the run takes the number of the first one,
    whatever else the machine does by then.

    Args:
        since: beginning of the measurement; None: nothing is measured.

    Returns:
        None where nothing is kept and nothing is measured: the run counts on all CPUs of its machines.
    """
    if content := folder.read_if_there(CPUS_FILE):
        return read_as(Cpus, content, folder.uri_of(CPUS_FILE))
    if since is None:
        return None
    cpus = measure_cpus(since)
    folder.write(CPUS_FILE, json.dumps(asdict(cpus)).encode())
    if cpus.free < cpus.usable:
        event = (
            f"other work takes part of the {cpus.usable} CPUs, so the threads of this run are made for {cpus.free}; "
            "train.threads sets another number"
        )
        folder.note(event)
        log.info(event)
    return cpus
