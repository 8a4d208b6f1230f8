"""One file of an ingested dataset: written under a temporary name, moved when it is complete, and read back."""

import hashlib
import io
import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from torch import Tensor
from torch.nn import functional as F

from raysl.config.background import WHITE, Color
from raysl.data.decode.decode import CorruptImage, Encoded, decode
from raysl.data.ingest.folder import footer_of
from raysl.data.ingest.split_parts import SplitPart
from raysl.data.source import Split
from raysl.data.sources.parquet_columns import CLASSES_KEY
from raysl.errors import RunFailed
from raysl.hashing import Int64s
from raysl.storage.addresses import storage_errors
from raysl.storage.folder import PART, Folder

RECORDS = ".ingest"  # folder with a record of each complete file
CHUNK_BYTES = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How an ingested dataset is stored.

    Args:
        rows_per_file: images in a file.
        rows_per_group: images in a row group, which is the read unit of training.
        resize: short side that larger images are shrunk to, in pixels; None stores all files unchanged.
        quality: JPEG quality of shrunk images, 1 to 100.
    """

    rows_per_file: int = 10_000
    rows_per_group: int = 256
    resize: int | None = None
    quality: int = 95


@dataclass(frozen=True)
class Shard:
    """The record of a complete file.

    Args:
        name: of the file.
        rows: number of rows.
        num_bytes, sha256: of its content.
        corrupt: [index, name, reason] of the rows that were left out.
        footer_bytes, footer_sha256: of its footer, which is compared whenever the dataset is opened; 0 in the records
            of older versions.
    """

    name: str
    rows: int
    num_bytes: int
    sha256: str
    corrupt: list[tuple[int, str, str]]
    footer_bytes: int = 0
    footer_sha256: str = ""


@dataclass(frozen=True)
class ShardWriter:
    """Writes the file of any part, in any process; a file that is complete already is kept.

    Args:
        out: local path or URI of the folder.
        layout: how images are stored.
    """

    out: str
    layout: Layout

    def __call__(self, split: Split, part: SplitPart) -> Shard:
        """Write the file of a part and its record.

        Raises:
            ConfigError: if it cannot be written.
            RunFailed: if the file reads back differently, or the images cannot be read.
        """
        folder = Folder(self.out)
        name = f"{part.name}.parquet"
        if record := folder.read_if_there(f"{RECORDS}/{name}.json"):
            shard = Shard(**json.loads(record))
            if folder.exists(name) and _sha256(folder, name) == shard.sha256:
                return shard
        shard = self._write(folder, name, split, part)
        _read_back(folder, shard, part)
        folder.write(f"{RECORDS}/{name}.json", json.dumps(asdict(shard)).encode())
        return shard

    def _write(self, folder: Folder, name: str, split: Split, part: SplitPart) -> Shard:
        corrupt: list[tuple[int, str, str]] = []
        rows = 0
        unfinished = f"{name}.{uuid.uuid4().hex[:8]}{PART}"
        with _Sink(folder, unfinished, _make_schema(split)) as sink:
            for index in part.runs(self.layout.rows_per_group):
                table = self._table(split, index, sink.schema, corrupt)
                rows += len(table)
                sink.add(table)
        with storage_errors("write", folder.uri_of(name)):
            folder.system.move(f"{folder.path}/{unfinished}", f"{folder.path}/{name}")
        footer_bytes, footer_sha256 = footer_of(folder.system, f"{folder.path}/{name}", sink.num_bytes)
        return Shard(name, rows, sink.num_bytes, sink.digest.hexdigest(), corrupt, footer_bytes, footer_sha256)

    def _table(self, split: Split, index: Int64s, schema: pa.Schema, corrupt: list[tuple[int, str, str]]) -> pa.Table:
        rows = split.read(index)
        images: list[bytes] = []
        positions: list[int] = []
        for position, (image, name) in enumerate(zip(rows.images, rows.names, strict=True)):
            try:
                images.append(encode_for_storage(image, self.layout.resize, self.layout.quality, split.background))
                positions.append(position)
            except CorruptImage as error:
                corrupt.append((int(index[position]), name, str(error)))
        names = [rows.names[position].encode("utf-8", "backslashreplace").decode() for position in positions]
        decoded = np.array(positions, np.int64)
        columns = [index[decoded], images, list(rows.labels[decoded]), names]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=schema)


def _make_schema(split: Split) -> pa.Schema:
    label = pa.list_(pa.int64()) if split.is_multilabel else pa.int64()
    fields = {"index": pa.int64(), "image": pa.large_binary(), "label": label, "name": pa.string()}
    return pa.schema(fields, metadata={CLASSES_KEY: json.dumps(split.classes).encode()})


class _Sink:
    """Writes a Parquet file in row groups and takes the checksum of the bytes on the way."""

    def __init__(self, folder: Folder, name: str, schema: pa.Schema) -> None:
        self.uri = folder.uri_of(name)
        self.schema = schema
        self.digest = hashlib.sha256()
        self.num_bytes = 0
        with storage_errors("write", self.uri):
            self.stream = folder.system.open_output_stream(f"{folder.path}/{name}")
        self.writer = pq.ParquetWriter(
            _Tee(self.stream, self.digest),
            schema,
            compression={"index": "zstd", "image": "none", "label": "zstd", "name": "zstd"},
            use_dictionary=False,
            write_statistics=["index"],
        )

    def add(self, table: pa.Table) -> None:
        if len(table):
            with storage_errors("write", self.uri):
                self.writer.write_table(table, row_group_size=len(table))

    def __enter__(self) -> "_Sink":
        return self

    def __exit__(self, *_: object) -> None:
        with storage_errors("write", self.uri):
            self.writer.close()
            self.num_bytes = int(self.stream.tell())
            self.stream.close()


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


def _read_back(folder: Folder, shard: Shard, part: SplitPart) -> None:
    """Check that a file has the bytes that were written, and the rows of its part without the corrupt ones."""
    uri = folder.uri_of(shard.name)
    if _sha256(folder, shard.name) != shard.sha256:
        raise RunFailed(f"{uri} reads back with other bytes than were written; check the storage, then start again")
    with storage_errors("read", uri), folder.system.open_input_file(f"{folder.path}/{shard.name}") as file:
        rows = pq.ParquetFile(file).read(columns=["index"])["index"].to_numpy()
    left_out = [index for index, _, _ in shard.corrupt]
    expected = np.setdiff1d(np.arange(part.first, part.end), left_out)
    if len(rows) != shard.rows or not np.array_equal(rows, expected):
        raise RunFailed(f"{uri} holds {len(rows):,} rows, not the {len(expected):,} of its part; start again")


def _sha256(folder: Folder, name: str) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(folder.system, f"{folder.path}/{name}", folder.uri_of(name)):
        digest.update(chunk)
    return digest.hexdigest()


def _chunks(system: fs.FileSystem, path: str, uri: str) -> Iterator[bytes]:
    with storage_errors("read", uri), system.open_input_stream(path) as stream:
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk


def encode_for_storage(image: Encoded, resize: int | None, quality: int, background: Color | None = WHITE) -> bytes:
    """Return the encoded file to store for an image, after checking that it can be decoded.

    Args:
        image: an encoded file or pixels, as a split reads them.
        resize: the short side that larger images are shrunk to, in pixels; None shrinks none.
        quality: JPEG quality of shrunk images, 1 to 100.
        background: the colour behind transparent images that are shrunk, see `decode`.

    Returns:
        The file unchanged, pixels as a PNG file, or a shrunk image as a JPEG file.

    Raises:
        CorruptImage: if it cannot be decoded.
    """
    pixels = decode(image, background=background)
    if resize is not None and min(pixels.shape[1:]) > resize:
        small = shrink(pixels, resize).permute(1, 2, 0).contiguous().numpy()  # [H, W, 3]
        return _encode(small, "JPEG", quality=quality)
    return image if isinstance(image, bytes) else _encode(np.ascontiguousarray(image), "PNG")


def shrink(pixels: Tensor, side: int) -> Tensor:
    """Shrink pixels uint8 [3, H, W] to a short side of `side` by an antialiased bicubic filter; never enlarge."""
    height, width = pixels.shape[1:]
    short = min(height, width)
    if short <= side:
        return pixels
    size = [max(side, round(length * side / short)) for length in (height, width)]
    return F.interpolate(pixels[None], size, mode="bicubic", antialias=True)[0]


def _encode(pixels: np.ndarray, kind: str, **options: Any) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()
