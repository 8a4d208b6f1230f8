"""Ingesting a dataset of Ray Data: its blocks are encoded, cut into files of equal numbers of rows, and written.

A file is named by a hash of its rows and the seed. So a task knows by itself which file it writes and whether that is
complete, and the order of the names is a random one.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image
from ray.data import Dataset
from ray.exceptions import RayTaskError
from typing_extensions import override

from raysl.cluster.connection import connect
from raysl.cluster.failures import reason
from raysl.cluster.numbered_parts import Numpy, blocks
from raysl.cluster.waiting_for_nodes import wait_for_nodes
from raysl.config.ranges import check_ranges
from raysl.data.decode.decode import CorruptImage
from raysl.data.given import to_stored
from raysl.data.ingest.folder import FORMAT, IMAGES, Json, claim, files_of
from raysl.data.ingest.ingest import (
    Ingested,
    finish,
    progress,
    read_finished,
    split_entry,
    summarize,
)
from raysl.data.ingest.parts import SplitPart
from raysl.data.ingest.shard import RECORDS, Layout, Shard, encode_for_storage, encode_png, write_shard
from raysl.data.limits import Limits, limiting
from raysl.data.sources.class_names import LABELS, parse_labels
from raysl.data.sources.parquet_columns import NAME_COLUMNS
from raysl.data.split import LabelledSplit, runs
from raysl.errors import ConfigError, RunFailed, log
from raysl.hashing import Int64s
from raysl.process.code_errors import explaining_code
from raysl.storage.folder import Folder
from raysl.storage.records import from_record

ROWS_PER_FILE = 1024  # a file is one block of Ray Data: 110 MB of photographs
SPLIT = "train"
_ENCODED = pa.schema({IMAGES: pa.large_binary(), LABELS: pa.string(), "name": pa.string()})


def ingest_dataset(dataset: Dataset, out: str, layout: Layout) -> Ingested:
    """Store all images of a dataset as Parquet files; arguments and errors as of `raysl.ingest`."""
    check_ranges(layout)
    if layout.seed is None:
        raise ConfigError("seed: None keeps the order of a source, and a dataset of Ray Data has none; give an integer")
    folder = Folder(out)
    plan: Json = {"format": FORMAT, "data": {"name": "ray.data.Dataset"}, "layout": asdict(layout)}
    claim(folder, plan, None)
    folder.child(RECORDS).make()
    manifest = read_finished(folder, plan)
    stored = None if manifest is None else frozenset(file["name"] for file in files_of(manifest))
    connect()
    wait_for_nodes([{"CPU": 1.0}], "ingest tasks")
    files = (
        dataset.map_batches(_encode_block, fn_args=[layout], batch_size=None, batch_format="numpy")
        .repartition(target_num_rows_per_block=layout.rows_per_file, strict=True)
        .map_batches(_write_block, fn_args=[folder.uri, layout, stored], batch_size=None, batch_format="pyarrow")
    )
    shards = _write(folder, files)
    if manifest is not None and stored is not None:
        if {shard.name for shard in shards} != stored:
            raise _other_rows(folder.uri)
        return summarize(folder, manifest, was_done=True)
    entry, corrupt = _describe(shards)
    _remove_others(folder, {shard.name for shard in shards})
    return finish(folder, plan | {"splits": {SPLIT: entry}}, {SPLIT: corrupt})


def _write(folder: Folder, files: Dataset) -> list[Shard]:
    """Write all files and return their records in the order of the dataset."""
    shards: list[Shard] = []
    times: Counter[str] = Counter()
    try:
        with progress("images") as advance:
            for block in blocks(files, preserve_order=True):
                for text in block["shard"]:
                    shard = from_record(Shard, json.loads(text), folder.uri)
                    times[shard.name] += 1
                    shards.append(_copied(folder, shard, times[shard.name]))
                    advance(shard.rows)
    except RayTaskError as error:
        raise RunFailed(f"the dataset failed: {reason(error)}") from error
    if not shards:
        raise ConfigError("the dataset has no rows; give one with images, and look at its filters")
    return shards


def _describe(shards: Sequence[Shard]) -> tuple[Json, list[tuple[int, str, str]]]:
    """Return the manifest's entry, and the place in the dataset, name and reason of each row that was left out.

    Raises:
        ConfigError: if one file has names as labels and another one numbers.
    """
    classes = sorted({name for shard in shards for name in shard.label_names})
    if classes and (largest := max(shard.labels[1] for shard in shards)) >= 0:
        raise ConfigError(
            f"the dataset has names as labels, such as {classes[0]!r}, and numbers, such as {largest}; use one of both"
        )
    corrupt: list[tuple[int, str, str]] = []
    num_rows = 0
    for shard in shards:
        corrupt += [(num_rows + index, name, why) for index, name, why in shard.corrupt]
        num_rows += shard.rows + len(shard.corrupt)
    return split_entry(SPLIT, shards, num_rows, classes, has_names=bool(classes)), corrupt


def _copied(folder: Folder, shard: Shard, times: int) -> Shard:
    """Return the record of a file; if the dataset had these rows before, of a copy under another name."""
    if times == 1:
        return shard
    name = f"{shard.name.removesuffix('.parquet')}-{times}.parquet"
    if folder.size(name) != shard.bytes:
        folder.write(name, folder.read(shard.name))
    return replace(shard, name=name)


def _remove_others(folder: Folder, kept: set[str]) -> None:
    """Remove files of an earlier start, which was cut off, with rows that the dataset does not have now."""
    records = folder.child(RECORDS)
    others = {name for name in folder.names() if name.startswith(f"{SPLIT}-") and name.endswith(".parquet")} - kept
    for name in others:
        records.remove(f"{name}.json")
        folder.remove(name)
    if others:
        log.warning("%d files of an earlier start had other rows than the dataset; they are removed", len(others))


def _other_rows(uri: str) -> ConfigError:
    return ConfigError(
        f"{uri} holds a finished ingest of other rows, or of these in another order; give another folder, or a dataset "
        "that has the same rows in the same order each time (a ray.data.FileShuffleConfig with a seed and "
        "reseed_after_execution=False)"
    )


@explaining_code(of_users=True)
def _encode_block(block: Numpy, layout: Layout) -> pa.Table:
    """Turn the images of a block into encoded files, and each label into JSON."""
    num_rows = len(next(iter(block.values()), ()))
    if not num_rows:
        return _ENCODED.empty_table()
    if IMAGES not in block:
        raise ConfigError(
            f"the dataset has no column {IMAGES!r}; its columns: {', '.join(block)}; rename one, such as by "
            f"dataset.rename_columns({{'bytes': {IMAGES!r}}})"
        )
    names = next((block[name] for name in NAME_COLUMNS if name in block), [None] * num_rows)
    labels = block.get(LABELS, [None] * num_rows)
    columns = (
        [_encode(image, layout) for image in block[IMAGES]],
        list(map(_label_text, labels)),
        [None if name is None else str(name) for name in names],
    )
    return pa.table([pa.array(column, kind.type) for column, kind in zip(columns, _ENCODED, strict=True)], _ENCODED)


def _encode(image: Any, layout: Layout) -> bytes:
    """Return the file to store for an image; that of a corrupt one stays, for `_write_block` to leave it out."""
    if isinstance(image, dict):  # as Hugging Face's datasets have it
        image = image.get("bytes")
    if isinstance(image, str):
        raise ConfigError(
            f"the column {IMAGES!r} holds {image!r:.60}, a str; give encoded files as bytes "
            "(ray.data.read_binary_files reads paths), or uint8 arrays [H, W, 3]"
        )
    if image is None or (isinstance(image, bytes) and layout.resize is None):
        return image or b""
    # an array with transparency is refused by `to_stored`, and a Pillow image of it is not
    with_alpha = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.shape[2:] in ((2,), (4,))
    image = Image.fromarray(image) if with_alpha else image
    stored = image if isinstance(image, bytes) else to_stored(image, f"an image in the column {IMAGES!r}")
    try:
        with limiting(Limits()):
            return encode_for_storage(stored, layout.resize, layout.quality)
    except CorruptImage:
        return stored if isinstance(stored, bytes) else encode_png(stored)


def _label_text(label: Any) -> str:
    value = label.item() if isinstance(label, np.generic) else label
    if value is not None and type(value) not in (int, float, str):
        raise ConfigError(
            f"the column {LABELS!r} holds {value!r:.60}, a {type(value).__name__}; give an integer or a name for "
            "each image, or None for an unlabelled one"
        )
    return json.dumps(value)


@explaining_code(of_users=True)
def _write_block(block: pa.Table, out: str, layout: Layout, stored: frozenset[str] | None) -> dict[str, list[str]]:
    """Write the file of a block of encoded rows, and return its record.

    Args:
        stored: names of the files of a finished ingest, to which none is added; None of another one.
    """
    if not len(block):
        return {"shard": []}
    rows = _BlockRows(block, layout.seed)
    part = SplitPart(SPLIT, 0, 1, 0, len(block), rows.fingerprint)
    if stored is not None and f"{part.name}.parquet" not in stored:
        raise _other_rows(out)
    shard = write_shard(out, layout, rows, part, has_names=rows.labels.dtype.kind == "U")
    return {"shard": [json.dumps(asdict(shard))]}


class _BlockRows(LabelledSplit):
    """The rows of a block as a split; its fingerprint is a hash of the rows and the seed."""

    classes = ()

    def __init__(self, block: pa.Table, seed: int | None) -> None:
        digest = hashlib.blake2b(f"{seed}".encode(), digest_size=12)
        for image, label, name in zip(*block.to_pydict().values(), strict=True):
            # the length of the image comes first, or different rows could add up to the same bytes
            digest.update(f"{len(image)} {label} {name!r} ".encode())
            digest.update(image)
        self.fingerprint = digest.hexdigest()
        self.unit_sizes = runs(len(block))
        self.images = block[IMAGES].to_pylist()
        names = enumerate(block["name"].to_pylist())
        self.names = [name or f"row {row} of {SPLIT}-{self.fingerprint}" for row, name in names]
        self.labels = parse_labels(
            [json.loads(label) for label in block[LABELS].to_pylist()],
            f"the column {LABELS!r}",
            self.names,
            remedy="turn the numbers into names such as 'class 7'",
        )

    @override
    def images_of(self, index: Int64s) -> list[bytes]:
        return [self.images[row] for row in index.tolist()]

    @override
    def labels_of(self, index: Int64s) -> np.ndarray:
        return self.labels[index]  # numbers or names

    @override
    def name_of(self, row: int) -> str:
        return self.names[row]
