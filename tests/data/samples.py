"""Tiny images and what tests of sources have in common."""

import io
import pickle

import numpy as np
from PIL import Image

from raysl.data.source import Rows, Split


def png(shade: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (shade, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def sent(split: Split) -> Split:
    """As it arrives in another process."""
    copy = pickle.loads(pickle.dumps(split))
    assert isinstance(copy, Split)
    return copy


def all_rows(split: Split) -> Rows:
    """Everything, as another process reads it; labels and names alone are the same."""
    index = np.arange(split.num_samples)
    rows = sent(split).read(index)
    assert np.array_equal(sent(split).labels_of(index), rows.labels)
    assert sent(split).names_of(index) == rows.names
    return rows
