"""Reading all images of a dataset to list those that are corrupt, odd or repeated."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from raysl.components import resolve
from raysl.config.places import ENDINGS, IMAGES
from raysl.config.schema import DataConfig
from raysl.data.decode.bands import TIFFS, is_array
from raysl.data.decode.decode import CorruptImage, Encoded, decode, open_image
from raysl.data.decode.dicom_header import is_dicom
from raysl.data.decode.nifti import is_nifti
from raysl.data.ingest.parts import SplitPart, Spread, cut_parts, in_process, open_splits
from raysl.data.limits import limiting
from raysl.data.source import Int64s, Split
from raysl.storage.folder import Folder

PART_ROWS = 2048
READ_ROWS = 256
TINY = 8  # short sides below so many pixels
LONGEST = 10  # largest ratio of the sides that is not odd
MOST_CLASSES = 20  # that the table lists one by one


@dataclass(frozen=True)
class Finding:
    """An image that is corrupt or odd."""

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
        kinds: images by kind: formats, colours (gray, CMYK, alpha, 16-bit) and problems.
        classes: images by class; of a multi-label split, those where the class is present.
        levels: int64 [C, 256], pixels of each level, by channel; [0, 256] before the first image.
    """

    num_images: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    classes: Counter[str] = field(default_factory=Counter)
    notes: tuple[str, ...] = ()
    levels: Int64s = field(default_factory=lambda: np.zeros((0, 256), np.int64))

    def add_levels(self, levels: Int64s) -> None:
        """Add pixels of each level."""
        if len(levels):
            self.levels = levels + self.levels if len(self.levels) else levels

    def settings(self) -> str:
        """Return the settings of the normalisation that fit the pixels; empty without any."""
        if not self.levels.any():
            return ""
        shares = self.levels / self.levels.sum(1, keepdims=True)  # [C, 256]
        values = np.arange(256) / 255
        means = shares @ values
        stds = np.sqrt((shares * (values - means[:, None]) ** 2).sum(1))
        mean, std = (",".join(f"{value:.4g}" for value in numbers) for numbers in (means, stds))
        return f"data.mean=[{mean}] data.std=[{std}]"


@dataclass(frozen=True)
class Inspection:
    """Findings in a dataset, one for each image that is corrupt or odd, and totals by split."""

    findings: list[Finding]
    totals: dict[str, Totals]

    @property
    def num_corrupt(self) -> int:
        """Images that cannot be decoded."""
        return sum(finding.is_corrupt for finding in self.findings)

    def table(self) -> str:
        """Return a text with a line for each finding, then the totals."""
        lines = [str(finding) for finding in self.findings]
        for name, totals in self.totals.items():
            lines.append(f"{name:<12}{totals.num_images:,} images: {_describe_counts(totals.kinds.most_common())}")
            below = (totals.settings(), _describe_classes(totals.classes), *totals.notes)
            lines += [f"{'':<12}{line}" for line in below if line]
        lines.append(f"{'corrupt':<12}{self.num_corrupt:,}")
        return "\n".join(lines)

    def write(self, folder: Folder) -> None:
        """Write `check.jsonl`, an object for each finding, and `check.json`, the totals."""
        folder.make()
        lines = [
            json.dumps({"split": f.split, "index": f.index, "name": f.name, "problems": f.problems}) + "\n"
            for f in self.findings
        ]
        folder.write("check.jsonl", "".join(lines).encode())
        totals = {
            name: {"images": each.num_images, "kinds": each.kinds, "classes": each.classes, "notes": each.notes}
            | {"settings": each.settings()}
            for name, each in self.totals.items()
        }
        folder.write("check.json", (json.dumps(totals, indent=1) + "\n").encode())


class Inspected(NamedTuple):
    """Findings in a part; `digests` [n, 16] are checksums of the images `rows` [n] that can be decoded."""

    part: SplitPart
    findings: list[Finding]
    totals: Totals
    rows: np.ndarray
    digests: np.ndarray


def inspect(data: DataConfig, spread: Spread = in_process) -> Inspection:
    """Read and decode every image of a dataset."""
    splits = open_splits(resolve("source", data.name)(data))
    results = list(spread(inspect_part, splits, cut_parts(splits, PART_ROWS)))
    order = list(splits)
    # parts may be finished in any order, and of equal images the first one counts as the original
    results.sort(key=lambda result: (order.index(result.part.split), result.part.number))
    totals = {name: Totals(notes=split.notes) for name, split in splits.items()}
    for result in results:
        total = totals[result.part.split]
        total.num_images += result.totals.num_images
        total.kinds += result.totals.kinds
        total.add_levels(result.totals.levels)
        total.classes.update(result.totals.classes)  # unlike +=, it keeps classes without images
    findings = {(one.split, one.index): one for result in results for one in result.findings}
    for repeat in _find_repeats(splits, results):
        totals[repeat.split].kinds["duplicate"] += 1
        before = findings.get((repeat.split, repeat.index))
        problems = repeat.problems if before is None else before.problems + repeat.problems
        findings[repeat.split, repeat.index] = replace(repeat, problems=problems)
    return Inspection(sorted(findings.values(), key=lambda one: (order.index(one.split), one.index)), totals)


def inspect_part(split: Split, part: SplitPart) -> Inspected:
    """Read and decode the images of a part."""
    totals = Totals(part.end - part.first, classes=Counter(dict.fromkeys(split.classes, 0)))
    findings: list[Finding] = []
    index: list[int] = []
    digests: list[bytes] = []
    for numbers in part.runs(READ_ROWS):
        with limiting(split.limits):
            rows = split.read(numbers)
        for row, image, name in zip(numbers.tolist(), rows.images, rows.names, strict=True):
            try:
                with limiting(split.limits):
                    pixels = decode(image, background=split.background, bands=split.bands)
                    totals.add_levels(np.stack([np.bincount(row, minlength=256) for row in pixels.flatten(1).numpy()]))
                    problems = _describe_problems(image, pixels, name, totals.kinds, split)
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


def _describe_problems(image: Encoded, pixels: Tensor, name: str, kinds: Counter[str], split: Split) -> list[str]:
    """Describe what is odd about an image that was decoded, and count its kinds."""
    background = split.background if split.bands is None else None
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
    if split.bands is not None and (is_array(image) or image[:4] in TIFFS):
        kinds["array" if is_array(image) else "TIFF"] += 1
        return problems
    if is_dicom(image) or is_nifti(image):
        kinds["DICOM" if is_dicom(image) else "NIfTI"] += 1
        return problems
    with open_image(image) as file:
        kind, mode = file.format or "unknown", file.mode
        has_alpha = mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in file.info
    kinds[kind] += 1
    kinds["gray"] += mode in ("1", "L", "LA", "La", "F") or mode.startswith("I")
    kinds["CMYK"] += mode == "CMYK"
    kinds["alpha"] += has_alpha
    if has_alpha and background is not None and bool((pixels.new_tensor(background) == pixels.flatten(1).T).all()):
        kinds["blank"] += 1
        problems.append("blank: it has no pixel that differs from data.background")
    kinds["16-bit"] += mode.startswith("I") or (kind == "PNG" and image[24] == 16)
    ending = name.rpartition(".")[2].lower()
    if ending in IMAGES and ending not in ENDINGS.get(kind, ()):
        kinds["wrong ending"] += 1
        problems.append(f"wrong ending: .{ending} holds {kind}")
    return problems


def _digest(image: Encoded) -> bytes:
    """Digest the encoded file, or the pixels and their shape."""
    assert isinstance(image, bytes | np.ndarray)
    content = image if isinstance(image, bytes) else np.ascontiguousarray(image).tobytes() + str(image.shape).encode()
    return hashlib.blake2b(content, digest_size=16).digest()


def _class_names(split: Split, labels: np.ndarray) -> Iterator[str]:
    """Yield the class of each sample; of a multi-label split, each class that is present in one."""
    numbers = np.nonzero(labels == 1)[1] if split.is_multilabel else labels
    for label in numbers.tolist():
        yield "unlabelled" if label < 0 else split.classes[label] if label < len(split.classes) else str(label)


def _find_repeats(splits: Mapping[str, Split], results: Sequence[Inspected]) -> list[Finding]:
    """Find images with the same bytes as an earlier one, in the same split or in one before it."""
    if not results:
        return []
    names = [name for result in results for name in [result.part.split] * len(result.rows)]
    index = np.concatenate([result.rows for result in results])
    digests = np.concatenate([result.digests for result in results])
    _, first, group = np.unique(digests, axis=0, return_index=True, return_inverse=True)
    originals = first[group.reshape(-1)]  # [n], positions
    findings = []
    for position in np.flatnonzero(originals != np.arange(len(index))).tolist():
        split, original = names[position], int(originals[position])
        (name,) = splits[split].names_of(index[position : position + 1])
        text = f"duplicate: the same bytes as {names[original]} {index[original]}"
        findings.append(Finding(split, int(index[position]), name, False, (text,)))
    return findings


def _describe_classes(classes: Counter[str]) -> str:
    if len(classes) <= MOST_CLASSES:
        return f"by class: {_describe_counts(classes.items())}"
    ranked = classes.most_common()
    middle = ranked[len(ranked) // 2][1]
    return (
        f"{len(classes):,} classes of {ranked[-1][1]:,} ({ranked[-1][0]}) to {ranked[0][1]:,} ({ranked[0][0]}) images, "
        f"half of them up to {middle:,}"
    )


def _describe_counts(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts) or "none"
