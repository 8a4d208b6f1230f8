"""Limits on what one image may cost, which settings of the data change, or variables on every node alike."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache

from raysl.errors import ConfigError

MAX_PIXELS = 178_956_970
"""A small file may claim any size, and memory is allocated for the size that it claims; this is Pillow's limit."""
MAX_FILE_BYTES = 1 << 30
"""A sparse file of any size takes no room on a disk, and all of it in memory."""
PIXELS_VARIABLE, BYTES_VARIABLE = "RAYSL_MAX_PIXELS", "RAYSL_MAX_FILE_BYTES"


@dataclass(frozen=True)
class Limits:
    """Limits of a dataset's settings; None: those of the environment."""

    max_pixels: int | None = None
    max_file_bytes: int | None = None


_OF_ENVIRONMENT = Limits()
_chosen: ContextVar[Limits] = ContextVar("raysl_limits", default=_OF_ENVIRONMENT)


@contextmanager
def limiting(limits: Limits) -> Iterator[None]:
    """Read and decode within these limits while inside, in this thread.

    >>> with limiting(Limits(max_pixels=4)):
    ...     max_pixels()
    4
    """
    token = _chosen.set(limits)
    try:
        yield
    finally:
        _chosen.reset(token)


def max_pixels() -> int:
    """Return the number of pixels up to which an image is decoded."""
    return _chosen.get().max_pixels or _read(PIXELS_VARIABLE, os.environ.get(PIXELS_VARIABLE), MAX_PIXELS)


def max_file_bytes() -> int:
    """Return the number of bytes up to which a file of one image is read."""
    return _chosen.get().max_file_bytes or _read(BYTES_VARIABLE, os.environ.get(BYTES_VARIABLE), MAX_FILE_BYTES)


@cache
def _read(name: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigError(f"{name}={text!r} is not a positive integer; the default is {default}")
    return int(text)
