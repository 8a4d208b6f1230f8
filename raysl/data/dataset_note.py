"""The facts that identify the training images of a run: `dataset.json` in its folder."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from raysl.data.source import Split
from raysl.storage.folder import Folder
from raysl.storage.records import read_as

DATASET_FILE = "dataset.json"


@dataclass(frozen=True)
class DatasetNote:
    """The facts that identify the training images of a run.

    Args:
        num_classes: number of classes of their labels; 0 without labels.
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
        """Return the note of a split."""
        content, written = dict(train.content()), train.written(ask=False)
        return cls(train.fingerprint, train.num_samples, len(train.classes), epoch_len, content, written)

    @classmethod
    def read(cls, folder: Folder) -> "DatasetNote | None":
        """Return the note in a run's folder, or None."""
        content = folder.read_if_there(DATASET_FILE)
        if not content:
            return None
        return read_as(cls, content, folder.uri_of(DATASET_FILE))

    def changes(self, before: "DatasetNote") -> list[str]:
        """Return a line for each difference from an earlier note."""
        names = {"num_samples": "training images", "num_classes": "classes", "epoch_len": "steps in an epoch"}
        old, new = asdict(before), asdict(self)
        lines = [f"{label}: {old[name]:,} -> {new[name]:,}" for name, label in names.items() if old[name] != new[name]]
        if self.fingerprint != before.fingerprint and not lines:
            lines.append("as many training images as before, but others (names, sizes or order)")
        # a digest that the earlier note lacks tells of no change: it was not computed then
        others = [what for what in self.content if self.content[what] != before.content.get(what, self.content[what])]
        if others and not lines:
            lines.append(f"as many training images as before, but other {' and '.join(others)}")
        return lines

    def is_rewritten_since(self, before: "DatasetNote") -> bool:
        """Whether files have other times of writing than in an earlier note."""
        return bool(self.written and before.written) and self.written != before.written
