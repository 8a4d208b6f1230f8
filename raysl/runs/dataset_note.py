"""The dataset that a run began with: noted in its folder, and compared at every start.

The order of samples, and with it what a resume goes on with, is a function of the dataset's fingerprint. So a run over
another one, or over other labels, sizes or bytes as far as these are known, is refused, or goes on where
`data.changed=accept` says so: at the same step, or at the beginning of its epoch where epochs have another length now.
Files that were only written again, as by a copy, make a warning. What an older note does not have is not compared.
"""

import json
import logging
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from raysl.checkpoint.files import STATE_FILE, Found, checkpoint_name, checkpoint_names, read_meta, remove, seal, upload
from raysl.checkpoint.tensors import load_tensors, save_tensors
from raysl.config.schema import RunConfig
from raysl.data.batch import DataInfo
from raysl.data.source import Split
from raysl.errors import ConfigError
from raysl.plan.plan import TrainPlan
from raysl.runs.folder import RunFolder
from raysl.storage.folder import Folder
from raysl.train.callbacks.logs import parse_metrics
from raysl.train.files import METRICS_FILE

log = logging.getLogger("raysl")

DATASET_FILE = "dataset.json"


@dataclass(frozen=True)
class DatasetNote:
    """What identifies the training images of a run.

    Args:
        fingerprint: of the split.
        num_samples: images.
        num_classes: classes of their labels; 0 where there are none.
        epoch_len: global batches in an epoch.
        content: see `Split.content`.
        written: see `Split.written`.
    """

    fingerprint: str
    num_samples: int
    num_classes: int
    epoch_len: int
    content: Mapping[str, str] = field(default_factory=dict)
    written: str = ""

    @classmethod
    def of(cls, train: Split, epoch_len: int) -> "DatasetNote":
        """The note of a split."""
        content, written = dict(train.content()), train.written(ask=False)
        return cls(train.fingerprint, train.num_samples, len(train.classes), epoch_len, content, written)

    @classmethod
    def read(cls, folder: Folder) -> "DatasetNote | None":
        """The note in a run's folder; None where there is none."""
        content = folder.read_if_there(DATASET_FILE)
        return cls(**json.loads(content)) if content else None

    def changes(self, before: "DatasetNote") -> list[str]:
        """In words, what is different from an earlier note; empty where nothing is."""
        names = {"num_samples": "training images", "num_classes": "classes", "epoch_len": "steps in an epoch"}
        old, new = asdict(before), asdict(self)
        found = [f"{words}: {old[name]:,} -> {new[name]:,}" for name, words in names.items() if old[name] != new[name]]
        if self.fingerprint != before.fingerprint and not found:
            found.append("as many training images as before, but others (names, sizes or order)")
        others = [what for what in self.content if self.content[what] != before.content.get(what, self.content[what])]
        if others and not found:
            found.append(f"as many training images as before, but other {' and '.join(others)}")
        return found

    def is_rewritten_since(self, before: "DatasetNote") -> bool:
        """Whether files were written at other times than in an earlier note that has them."""
        return bool(self.written and before.written) and self.written != before.written


def claim_dataset(folder: RunFolder, config: RunConfig, now: DatasetNote, found: Found) -> Found:
    """Note the dataset of a run, or compare it with the one noted before.

    Args:
        folder: of the run.
        config: its settings.
        now: the dataset as it is.
        found: the run's newest whole checkpoint.

    Returns:
        The checkpoint to go on from: `found`, or the same at the beginning of its epoch where a changed dataset with
        epochs of another length was accepted.

    Raises:
        ConfigError: if the dataset changed and `data.changed` is `refuse`; the message lists what.
    """
    before = DatasetNote.read(folder)
    changes = now.changes(before) if before is not None and found.name is not None else []
    if changes and config.data.changed == "refuse":
        listed = "\n  ".join(changes)
        raise ConfigError(
            f"the dataset of the run {config.name!r} has changed since step {found.step}:\n  {listed}\n"
            "bring back the old one, give this run another name=, or set data.changed=accept to go on with the new "
            "one at the same epoch"
        )
    if changes:
        found = _at_epoch_start(folder, config, now, found)
        event = f"goes on with a changed dataset ({'; '.join(changes)}) at step {found.step}"
        folder.note(event)
        log.info(event)
    elif before is not None and found.name is not None and now.is_rewritten_since(before):
        event = "files of the training images were written again, as by a copy, since this run read them last"
        folder.note(event)
        log.warning("%s; names, sizes and labels are the same, so it goes on at step %d", event, found.step)
    if now != before:
        folder.write(DATASET_FILE, json.dumps(asdict(now), indent=1).encode())
    return found


def _at_epoch_start(folder: RunFolder, config: RunConfig, now: DatasetNote, found: Found) -> Found:
    """The checkpoint with its step in epochs of the new length; the others, whose steps mean something else, go."""
    assert found.name is not None
    data = DataInfo.stored(found.meta["data"])
    epoch_len = TrainPlan.from_config(config, data.num_samples).epoch_len
    if epoch_len == now.epoch_len:
        return found
    epoch = found.step // epoch_len
    step = epoch * now.epoch_len
    name = checkpoint_name(step)
    with tempfile.TemporaryDirectory(prefix="raysl_checkpoint_") as draft:
        copy = Path(draft) / name
        folder.child(found.name).download(copy)
        tensors = load_tensors(copy / STATE_FILE)
        save_tensors({**tensors, "step": step}, copy / STATE_FILE)
        meta = {key: value for key, value in found.meta.items() if key not in ("format", "files")}
        data = replace(data, num_samples=now.num_samples, fingerprint=now.fingerprint)
        seal(copy, {**meta, "step": step, "data": asdict(data)})
        upload(copy, folder, name)
    for other in checkpoint_names(folder):
        if other != name:
            remove(folder, other)
    _count_anew(folder, now.epoch_len, epoch)
    return Found(name, read_meta(folder.child(name)))


def _count_anew(folder: RunFolder, epoch_len: int, epochs: int) -> None:
    """Give the logged lines of the epochs that are done their place in epochs of another length."""
    lines = [line for line in parse_metrics(folder.read_if_there(METRICS_FILE)) if line["epoch"] <= epochs]
    moved = [{**line, "step": round(line["epoch"] * epoch_len)} for line in lines]
    folder.write(METRICS_FILE, "".join(json.dumps(line) + "\n" for line in moved).encode())
