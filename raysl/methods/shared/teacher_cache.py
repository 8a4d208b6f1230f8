"""Outputs of a frozen teacher, kept on a disk for views that come again.

    FOLDER/3f1c.../          one teacher, one set of images, one recipe of views: the digits are their hash
        about.json           what was hashed, and types and shapes of the outputs
        views-0.rows         a record of each image: a digest of 16 bytes, then the outputs for its views

Records have one length and stand at the number of their image, so that any number of processes reads and writes them
without an index and without locks. A record that was cut off, or was never written, has another digest and counts as
missing. Rows that nobody wrote take no room on file systems with sparse files.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from raysl.errors import log
from raysl.hashing import Int64s

DIGEST = 16
ABOUT_FILE = "about.json"


class TeacherCache:
    """Outputs of one teacher for the views of each image.

    Args:
        folder: folder of all caches; it is made where it is missing.
        basis: everything that the outputs depend on, in the types of JSON.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> cache = TeacherCache(folder.name, num_rows=5, basis={"teacher": "a"})
    >>> cache.read(np.array([3]), cycle=0) is None
    True
    >>> cache.write(np.array([3]), 0, [torch.tensor([[[1.0, 2.0]]])])
    >>> cache.read(np.array([3]), cycle=0)
    [tensor([[[1., 2.]]])]
    """

    def __init__(self, folder: str, num_rows: int, basis: Mapping[str, Any]) -> None:
        self.basis = dict(basis)
        key = hashlib.sha256(json.dumps(self.basis, sort_keys=True).encode()).hexdigest()[:24]
        self.folder = Path(folder) / key
        self.num_rows = num_rows
        self._kinds: list[tuple[torch.dtype, tuple[int, ...]]] | None = None
        self._is_written: dict[int, np.ndarray[Any, np.dtype[np.bool_]]] = {}
        self._is_full = False

    @classmethod
    def of(cls, folder: str, num_rows: int, basis: Mapping[str, Any], teacher: nn.Module) -> Self:
        """Return the cache of a teacher, whose weights and device are a part of the basis."""
        digest = hashlib.sha256()
        for name, value in sorted(teacher.state_dict().items()):
            digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
            digest.update(_to_bytes(value.detach().cpu()[None]).numpy().data)
        device = next(teacher.parameters()).device.type
        return cls(folder, num_rows, {**basis, "weights": digest.hexdigest(), "device": device})

    def read(self, index: Int64s, cycle: int) -> list[Tensor] | None:
        """Return the outputs of images, each [B, V, ...] on the CPU; None if one of them is missing.

        Args:
            index: int64 [B], the images' numbers.
            cycle: number of their views among those that come again.
        """
        kinds = self._kinds or self._read_about()
        if kinds is None:
            return None
        sizes = [dtype.itemsize * math.prod(shape) for dtype, shape in kinds]
        length = DIGEST + sum(sizes)
        records = np.empty((len(index), length), np.uint8)
        try:
            with self._file(cycle).open("rb", buffering=0) as file:
                for record, number in zip(records, index.tolist(), strict=True):
                    file.seek(number * length)
                    is_whole = file.readinto(record.data) == length
                    if not is_whole or record[:DIGEST].tobytes() != _digest(number, record[DIGEST:]):
                        return None
        except FileNotFoundError:
            return None
        self._kinds = kinds
        self._written(cycle)[index] = True
        parts = torch.split(torch.from_numpy(records[:, DIGEST:]), sizes, dim=1)
        return [
            part.contiguous().view(dtype).view(len(index), *shape)
            for part, (dtype, shape) in zip(parts, kinds, strict=True)
        ]

    def write(self, index: Int64s, cycle: int, outputs: Sequence[Tensor]) -> None:
        """Store the outputs of images that are not stored yet; a full disk ends the storing with a warning.

        Args:
            index: int64 [B], the images' numbers.
            cycle: number of their views among those that come again.
            outputs: each [B, V, ...], on any device.
        """
        is_new = ~self._written(cycle)[index]
        if self._is_full or not is_new.any():
            return
        try:
            if self._kinds is None:
                self._write_about(outputs)
            payload = torch.cat([_to_bytes(output.detach().cpu()) for output in outputs], dim=1).numpy()
            length = DIGEST + payload.shape[1]
            file = os.open(self._file(cycle), os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                for number, row in zip(index[is_new].tolist(), payload[is_new], strict=True):
                    _write_all(file, _digest(number, row) + row.tobytes(), number * length)
            finally:
                os.close(file)
        except OSError as error:
            self._is_full = True
            log.warning("method.cache: outputs of the teacher are not stored any more: %s", error)
            return
        self._written(cycle)[index] = True

    def _file(self, cycle: int) -> Path:
        return self.folder / f"views-{cycle}.rows"

    def _written(self, cycle: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return the images whose records this process has read or written, bool [N]."""
        return self._is_written.setdefault(cycle, np.zeros(self.num_rows, np.bool_))

    def _read_about(self) -> list[tuple[torch.dtype, tuple[int, ...]]] | None:
        try:
            about = json.loads((self.folder / ABOUT_FILE).read_text())
        except FileNotFoundError:
            return None
        return [(getattr(torch, name), tuple(shape)) for name, shape in about["outputs"]]

    def _write_about(self, outputs: Sequence[Tensor]) -> None:
        """Note types and shapes of the outputs; every process writes the same text, and replaces the file whole."""
        kinds = [(output.dtype, tuple(output.shape[1:])) for output in outputs]
        self.folder.mkdir(parents=True, exist_ok=True)
        described = [[str(dtype).removeprefix("torch."), list(shape)] for dtype, shape in kinds]
        draft = self.folder / f".{ABOUT_FILE}-{os.getpid()}"
        draft.write_text(json.dumps({"format": 1, "basis": self.basis, "outputs": described}, indent=1))
        draft.replace(self.folder / ABOUT_FILE)
        size = self.num_rows * (DIGEST + sum(dtype.itemsize * math.prod(shape) for dtype, shape in kinds))
        log.info("the outputs of the teacher are kept in %s, up to %.3g GB an epoch", self.folder, size / 1e9)
        self._kinds = kinds


def _to_bytes(values: Tensor) -> Tensor:
    """Return the bytes of each row, uint8 [B, n]."""
    return values.contiguous().view(len(values), -1).view(torch.uint8)


def _digest(number: int, row: np.ndarray[Any, Any]) -> bytes:
    return hashlib.blake2b(row.data, digest_size=DIGEST, salt=number.to_bytes(8, "little")).digest()


def _write_all(file: int, content: bytes, offset: int) -> None:
    """Write all bytes at an offset; one call may write only some of them."""
    num_written = 0
    while num_written < len(content):
        num_written += os.pwrite(file, content[num_written:], offset + num_written)
