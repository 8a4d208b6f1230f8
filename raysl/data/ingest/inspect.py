"""What is wrong or odd with the images of a dataset, by reading all of them."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from raysl.components import resolve
from raysl.config.background import Color
from raysl.config.schema import DataConfig
from raysl.data.decode.decode import CorruptImage, Encoded, decode, opened
from raysl.data.ingest.split_parts import SplitPart, Spread, in_process, parts_of, splits_of
from raysl.data.source import Split
from raysl.data.sources.endings import ENDINGS, IMAGES
from raysl.storage.folder import Folder

PART_ROWS = 2048
READ_ROWS = 256
TINY = 8  # px of the short side
LONGEST = 10  # times the short side
MOST_CLASSES = 20  # are listed in the table


@dataclass(frozen=True)
class Finding:
    """An image that is corrupt or odd.

    Args:
        split, index, name: which one.
        is_corrupt: whether it cannot be decoded.
        problems: what it is, in words.
    """

    split: str
    index: int
    name: str
    is_corrupt: bool
    problems: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.split} {self.index} {self.name}: {'; '.join(self.problems)}"


@dataclass
class Totals:
    """Counts over a split.

    Args:
        num_images: all of them.
        kinds: images by kind: formats, colours (gray, CMYK, alpha, 16-bit) and problems.
        classes: images by class; of a multi-label split, those where it is present.
        notes: what is odd about its files, a line each.
    """

    num_images: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    classes: Counter[str] = field(default_factory=Counter)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inspection:
    """What was found in a dataset: a line an image, and totals by split."""

    findings: list[Finding]
    totals: dict[str, Totals]

    @property
    def num_corrupt(self) -> int:
        """Images that cannot be decoded."""
        return sum(finding.is_corrupt for finding in self.findings)

    def table(self) -> str:
        """A line for each image that is corrupt or odd, then the totals."""
        lines = [str(finding) for finding in self.findings]
        for name, totals in self.totals.items():
            lines.append(f"{name:<12}{totals.num_images:,} images: {_counts(totals.kinds.most_common())}")
            lines.append(f"{'':<12}{_class_line(totals.classes)}")
            lines += [f"{'':<12}{note}" for note in totals.notes]
        lines.append(f"{'corrupt':<12}{self.num_corrupt:,}")
        return "\n".join(lines)

    def write(self, folder: Folder) -> None:
        """Write `check.jsonl`, an object a finding, and `check.json`, the totals.

        Raises:
            ConfigError: if the folder cannot be written.
        """
        folder.make()
        lines = [
            json.dumps({"split": f.split, "index": f.index, "name": f.name, "problems": f.problems}) + "\n"
            for f in self.findings
        ]
        folder.write("check.jsonl", "".join(lines).encode())
        totals = {
            name: {
                "images": total.num_images,
                "kinds": total.kinds,
                "classes": total.classes,
                "notes": total.notes,
            }
            for name, total in self.totals.items()
        }
        folder.write("check.json", (json.dumps(totals, indent=1) + "\n").encode())


@dataclass(frozen=True)
class Inspected:
    """What a process found in a part; `digests` [n, 16] are checksums of the images `index` [n] that decode."""

    part: SplitPart
    findings: list[Finding]
    totals: Totals
    index: np.ndarray
    digests: np.ndarray


def inspect(data: DataConfig, spread: Spread = in_process) -> Inspection:
    """Read and decode every image of a dataset.

    Args:
        data: settings of the dataset.
        spread: `in_process`, or `raysl.data.ingest.ray_tasks.on_ray`, which uses a cluster.

    Raises:
        ConfigError, RunFailed: if images cannot be listed or read at all.
    """
    splits = splits_of(resolve("source", data.name)(data))
    done = list(spread(inspect_part, splits, parts_of(splits, PART_ROWS)))
    order = {name: place for place, name in enumerate(splits)}
    done.sort(key=lambda each: (order[each.part.split], each.part.number))
    totals = {name: Totals(notes=split.notes) for name, split in splits.items()}
    for each in done:
        total = totals[each.part.split]
        total.num_images += each.totals.num_images
        total.kinds += each.totals.kinds
        total.classes.update(each.totals.classes)  # unlike +=, it keeps classes without images
    repeated = _repeated(splits, done)
    for finding in repeated:
        totals[finding.split].kinds["duplicate"] += 1
    found = _merged([*(finding for each in done for finding in each.findings), *repeated])
    found.sort(key=lambda finding: (order[finding.split], finding.index))
    return Inspection(found, totals)


def inspect_part(split: Split, part: SplitPart) -> Inspected:
    """Read and decode the images of a part."""
    totals = Totals(part.end - part.first)
    for name in split.classes:
        totals.classes[name] = 0
    findings: list[Finding] = []
    index: list[int] = []
    digests: list[bytes] = []
    for numbers in part.runs(READ_ROWS):
        rows = split.read(numbers)
        for row, image, name in zip(numbers.tolist(), rows.images, rows.names, strict=True):
            try:
                problems = _problems(image, name, totals.kinds, split.background)
            except CorruptImage as error:
                totals.kinds["corrupt"] += 1
                findings.append(Finding(part.split, row, name, True, (f"corrupt: {error}",)))
                continue
            index.append(row)
            digests.append(_digest(image))
            if problems:
                findings.append(Finding(part.split, row, name, False, tuple(problems)))
        totals.classes.update(_class_names(split, rows.labels))
    table = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16)
    return Inspected(part, findings, totals, np.array(index, np.int64), table)


def _problems(image: Encoded, name: str, kinds: Counter[str], background: Color | None) -> list[str]:
    """What is odd about an image that decodes; its kind is counted."""
    pixels = decode(image, background=background)
    height, width = pixels.shape[1:]
    problems = []
    if min(height, width) < TINY:
        kinds["tiny"] += 1
        problems.append(f"tiny: {height} x {width}")
    if max(height, width) > LONGEST * min(height, width):
        kinds["elongated"] += 1
        problems.append(f"elongated: {height} x {width}")
    if isinstance(image, np.ndarray):
        kinds["pixels"] += 1
        kinds["gray"] += image.ndim == 2
        return problems
    assert isinstance(image, bytes)
    with opened(image) as file:
        kind, mode = file.format or "unknown", file.mode
        has_alpha = mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in file.info
    kinds[kind] += 1
    kinds["gray"] += mode in ("1", "L", "LA", "La", "F") or mode.startswith("I")
    kinds["CMYK"] += mode == "CMYK"
    kinds["alpha"] += has_alpha
    if has_alpha and background is not None and bool((pixels.new_tensor(background) == pixels.flatten(1).T).all()):
        kinds["blank"] += 1
        problems.append("blank: nothing of it is seen on data.background")
    kinds["16-bit"] += mode.startswith("I") or (kind == "PNG" and image[24] == 16)
    ending = name.rpartition(".")[2].lower()
    if ending in IMAGES and ending not in ENDINGS.get(kind, ()):
        kinds["wrong ending"] += 1
        problems.append(f"wrong ending: .{ending} holds {kind}")
    return problems


def _digest(image: Encoded) -> bytes:
    """Of the file, or of the pixels and their shape."""
    assert isinstance(image, bytes | np.ndarray)
    content = image if isinstance(image, bytes) else np.ascontiguousarray(image).tobytes() + str(image.shape).encode()
    return hashlib.blake2b(content, digest_size=16).digest()


def _class_names(split: Split, labels: np.ndarray) -> Iterator[str]:
    """The class of each sample, or each class that is present in one."""
    places = np.nonzero(labels == 1)[1] if split.is_multilabel else labels
    for label in places.tolist():
        yield "unlabelled" if label < 0 else split.classes[label] if label < len(split.classes) else str(label)


def _repeated(splits: Mapping[str, Split], done: Iterable[Inspected]) -> list[Finding]:
    """Images whose bytes are those of one further ahead, in the same split or in one before it."""
    each = [one for one in done if len(one.index)]
    if not each:
        return []
    names = [name for one in each for name in [one.part.split] * len(one.index)]
    index = np.concatenate([one.index for one in each])
    digests = np.concatenate([one.digests for one in each])
    _, first, group = np.unique(digests, axis=0, return_index=True, return_inverse=True)
    originals = first[group.reshape(-1)]  # [n], places
    findings = []
    for place in np.flatnonzero(originals != np.arange(len(index))).tolist():
        split, original = names[place], int(originals[place])
        (name,) = splits[split].names_of(index[place : place + 1])
        text = f"duplicate: the same bytes as {names[original]} {index[original]}"
        findings.append(Finding(split, int(index[place]), name, False, (text,)))
    return findings


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """One finding an image."""
    found: dict[tuple[str, int], Finding] = {}
    for one in findings:
        before = found.get((one.split, one.index))
        problems = one.problems if before is None else (*before.problems, *one.problems)
        found[one.split, one.index] = Finding(one.split, one.index, one.name, one.is_corrupt, problems)
    return list(found.values())


def _class_line(classes: Counter[str]) -> str:
    if len(classes) <= MOST_CLASSES:
        return f"by class: {_counts(classes.items())}"
    ranked = classes.most_common()
    middle = ranked[len(ranked) // 2][1]
    return (
        f"{len(classes):,} classes of {ranked[-1][1]:,} ({ranked[-1][0]}) to {ranked[0][1]:,} ({ranked[0][0]}) images, "
        f"half of them up to {middle:,}"
    )


def _counts(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts) or "none"
