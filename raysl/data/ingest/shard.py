"""One file of an ingested dataset: written under a temporary name, moved when it is complete, and read back."""

import hashlib
import io
import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor
from torch.nn import functional as F

from raysl.config.background import WHITE, Color
from raysl.config.ranges import Count, Seed, Within
from raysl.data.decode.bands import Bands
from raysl.data.decode.decode import CorruptImage, Encoded, decode
from raysl.data.decode.dicom_header import is_dicom, without_patient
from raysl.data.decode.nifti import is_nifti, without_text
from raysl.data.ingest.folder import footer_of, stored_schema
from raysl.data.ingest.parts import RowOrder, SplitPart
from raysl.data.limits import limiting
from raysl.data.source import Split
from raysl.data.sources.class_names import LABELS, class_names
from raysl.data.sources.parquet_columns import Range
from raysl.data.sources.parquet_labels import digest_of, find_range, raw_labels
from raysl.errors import RunFailed
from raysl.hashing import Int64s
from raysl.storage.addresses import storage_errors
from raysl.storage.folder import PART, Folder
from raysl.storage.records import read_as

RECORDS = ".ingest"  # folder with a record of each complete file
GROUP_BYTES = 8 << 20  # of images in a row group: one read is worth the time of a request, and a window holds several
MOST_GROUP_ROWS = 1024  # of small images: windows of a lane shuffle well while a unit has few of their rows
MIXED_BYTES = 1 << 28  # of images in memory whose rows are mixed, where rows are read in units


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How an ingested dataset is stored.

    Args:
        rows_per_group: images in a row group, which is the read unit of training; None: as many as make about 8 MB,
            at most 1,024.
        seed: seed of the order in which training images are stored; None keeps the order of the source.
        resize: short side that larger images are shrunk to, in pixels; None stores all files unchanged.
        quality: JPEG quality of shrunk images, 1 to 100.
    """

    rows_per_file: Count = 10_000
    rows_per_group: Count | None = None
    seed: Seed | None = 0
    resize: Count | None = None
    quality: Annotated[int, Within(1, 100)] = 95


@dataclass(frozen=True)
class Shard:
    """The record of a complete file.

    Args:
        footer_bytes, footer_sha256: size and hash of its footer, compared whenever the dataset is opened.
        groups, group_bytes: rows and bytes before compression of each row group.
        labels: smallest and largest label; (-1, -1) where labels are lists or names.
        label_names: names of the classes in the file, where labels are names.
        corrupt: [index, name, reason] of the rows that were left out.
    """

    name: str
    rows: int
    bytes: int
    sha256: str
    footer_bytes: int
    footer_sha256: str
    groups: list[int]
    group_bytes: list[int]
    labels: Range
    labels_digest: str
    label_names: list[str]
    corrupt: list[tuple[int, str, str]]


class _Row(NamedTuple):
    """One image as it is stored."""

    number: int
    image: bytes
    label: Any
    name: str


Corrupt = list[tuple[int, str, str]]
"""Index, name and reason of each row that is left out."""


def write_shard(out: str, layout: Layout, split: Split, part: SplitPart, has_names: bool = False) -> Shard:
    """Write the file of a part and its record, in any process; a file that is complete already is kept.

    Args:
        has_names: whether labels are the names of their classes.

    Raises:
        ConfigError: if it cannot be written.
        RunFailed: if the file reads back differently, or the images cannot be read.
    """
    folder, name = Folder(out), f"{part.name}.parquet"
    record = f"{RECORDS}/{name}.json"
    if content := folder.read_if_there(record):
        shard = read_as(Shard, content, folder.uri_of(record))
        if folder.exists(name) and folder.sha256(name) == shard.sha256:
            return shard
    order = RowOrder(split, part, layout.seed if part.split == "train" else None)
    schema = stored_schema(split.classes, split.is_multilabel, has_names)
    shard = _read_back(folder, name, order, *_write(folder, name, schema, order, layout))
    # the record comes last: a file with a record was written and read back as a whole
    folder.write(record, json.dumps(asdict(shard)).encode())
    return shard


def _write(folder: Folder, name: str, schema: pa.Schema, order: RowOrder, layout: Layout) -> tuple[int, str, Corrupt]:
    """Write a file; return its size, its SHA-256, and the rows that were left out."""
    uri, digest = folder.uri_of(name), hashlib.sha256()
    corrupt: Corrupt = []
    unfinished = f"{folder.path}/{name}.{uuid.uuid4().hex[:8]}{PART}"
    with storage_errors("write", uri):
        stream = folder.system.open_output_stream(unfinished)
    writer = pq.ParquetWriter(
        _Tee(stream, digest),
        schema,
        # encoded images do not get smaller; statistics of labels tell their range without reading them
        compression={"index": "zstd", "image": "none", "label": "zstd", "name": "zstd"},
        use_dictionary=False,
        write_statistics=["index", "label"],
    )
    try:
        for group in _groups(order, layout, corrupt):
            columns = zip(*group, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            with storage_errors("write", uri):
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=len(group))
    finally:
        with storage_errors("write", uri):
            writer.close()
            num_bytes = int(stream.tell())
            stream.close()
    with storage_errors("write", uri):
        folder.system.move(unfinished, f"{folder.path}/{name}")
    return num_bytes, digest.hexdigest(), sorted(corrupt)


def _groups(order: RowOrder, layout: Layout, corrupt: Corrupt) -> Iterator[list[_Row]]:
    """Yield the rows of each row group; broken images are left out and added to `corrupt`."""
    pool: list[_Row] = []
    turn = 0
    for index in order.chunks():
        pool += _read(order.split, index, layout, corrupt)
        if order.is_mixed:
            if sum(len(row.image) for row in pool) < MIXED_BYTES:
                continue
            pool = [pool[number] for number in order.mix(len(pool), turn).tolist()]
            turn += 1
        # the last group may still get rows from the next chunk, so it stays in the pool
        *whole, pool = _cut(pool, layout)
        yield from whole
    if order.is_mixed:
        pool = [pool[number] for number in order.mix(len(pool), turn).tolist()]
    yield from filter(None, _cut(pool, layout))


def _cut(rows: list[_Row], layout: Layout) -> list[list[_Row]]:
    """Cut rows into row groups; the last one may be incomplete, or empty."""
    most_rows = layout.rows_per_group or MOST_GROUP_ROWS
    groups: list[list[_Row]] = [[]]
    num_bytes = 0
    for row in rows:
        num_bytes += len(row.image)
        is_full = num_bytes > GROUP_BYTES and layout.rows_per_group is None
        if groups[-1] and (len(groups[-1]) == most_rows or is_full):
            groups.append([])
            num_bytes = len(row.image)
        groups[-1].append(row)
    return groups


def _read(split: Split, index: Int64s, layout: Layout, corrupt: Corrupt) -> Iterator[_Row]:
    """Yield the rows with these indices; broken images are left out and added to `corrupt`."""
    with limiting(split.limits):
        rows = split.read(index)
    for number, image, label, name in zip(index.tolist(), rows.images, rows.labels, rows.names, strict=True):
        try:
            with limiting(split.limits):
                stored = encode_for_storage(image, layout.resize, layout.quality, split.background, split.bands)
        except CorruptImage as error:
            corrupt.append((number, name, str(error)))
        else:
            # Arrow stores only UTF-8, and names of files may have other bytes
            yield _Row(number, stored, label, name.encode("utf-8", "backslashreplace").decode())


class _Tee(io.RawIOBase):
    """Passes bytes on to a stream and adds them to a checksum."""

    def __init__(self, stream: Any, digest: Any) -> None:
        self.stream = stream
        self.digest = digest

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self.stream.tell())

    def write(self, content: Any) -> int:
        self.digest.update(content)
        self.stream.write(content)
        return len(memoryview(content))


def _read_back(folder: Folder, name: str, order: RowOrder, num_bytes: int, sha256: str, corrupt: Corrupt) -> Shard:
    """Return the record of a file whose bytes are those that were written, and whose rows are those of its part."""
    uri, path = folder.uri_of(name), f"{folder.path}/{name}"
    if folder.sha256(name) != sha256:
        raise RunFailed(f"{uri} reads back with other bytes than were written; check the storage, then start again")
    with storage_errors("read", uri), folder.system.open_input_file(path) as file:
        parquet = pq.ParquetFile(file)
        table = parquet.read(columns=["index", LABELS])
    expected = np.setdiff1d(np.concatenate(list(order.chunks())), [index for index, _, _ in corrupt])
    if not np.array_equal(np.sort(table["index"].to_numpy()), expected):
        raise RunFailed(f"{uri} holds {len(table):,} rows, not the {len(expected):,} of its part; start again")
    labels = raw_labels(table[LABELS], uri)
    has_names = labels.dtype.kind == "U"
    groups = [parquet.metadata.row_group(number) for number in range(parquet.metadata.num_row_groups)]
    footer_bytes, footer_sha256 = footer_of(folder.system, path, num_bytes)
    return Shard(
        name=name,
        rows=len(table),
        bytes=num_bytes,
        sha256=sha256,
        footer_bytes=footer_bytes,
        footer_sha256=footer_sha256,
        groups=[group.num_rows for group in groups],
        group_bytes=[group.total_byte_size for group in groups],
        labels=find_range(labels) if labels.ndim == 1 and not has_names else (-1, -1),
        labels_digest=digest_of(labels).hex(),
        label_names=list(class_names(labels)) if has_names else [],
        corrupt=corrupt,
    )


def encode_for_storage(
    image: Encoded,
    resize: int | None,
    quality: int,
    background: Color | None = WHITE,
    bands: Bands | None = None,
) -> bytes:
    """Return the encoded file to store for an image, after checking that it can be decoded.

    Args:
        image: an encoded file or pixels, as a split reads them.
        resize: the short side that larger images are shrunk to, in pixels; None shrinks none.
        quality: JPEG quality of shrunk images, 1 to 100.
        background: the colour behind transparent images that are shrunk, see `decode`.
        bands: channels that are taken as they are stored, see `decode`; such images are not shrunk.

    Returns:
        The file unchanged, pixels as a PNG file, or a shrunk image as a JPEG file; of a DICOM or NIfTI file, only
        what decides its pixels.
    """
    pixels = decode(image, background=background, bands=bands)
    if resize is not None and min(pixels.shape[1:]) > resize:
        small = shrink(pixels, resize).permute(1, 2, 0).contiguous().numpy()  # [H, W, 3]
        return _encode(small, "JPEG", quality=quality)
    if not isinstance(image, bytes):
        return encode_png(np.asarray(image))
    if is_nifti(image):
        return without_text(image)
    return without_patient(image) if is_dicom(image) else image


def shrink(pixels: Tensor, side: int) -> Tensor:
    """Shrink pixels uint8 [3, H, W] to a short side of `side` by an antialiased bicubic filter; never enlarge."""
    height, width = pixels.shape[1:]
    short = min(height, width)
    if short <= side:
        return pixels
    size = [max(side, round(length * side / short)) for length in (height, width)]
    return F.interpolate(pixels[None], size, mode="bicubic", antialias=True)[0]


def encode_png(pixels: np.ndarray) -> bytes:
    """Return pixels uint8 [H, W] or [H, W, 3] as a PNG file."""
    return _encode(np.ascontiguousarray(pixels), "PNG")


def _encode(pixels: np.ndarray, kind: str, **options: Any) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()
