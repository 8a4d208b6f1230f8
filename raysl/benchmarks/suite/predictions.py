"""Predictions for test images, as a Parquet file."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysl.benchmarks.suite.side_by_side import Measured, Task
from raysl.redact import redact


def predictions(task: Task, measured: Measured) -> bytes:
    """Return the file's content: index, name, prediction, class and, where they are known, score and label, one row an
    image; empty if the benchmark does not classify."""
    test = task.context.images.get("test")
    if measured.predicted is None or test is None or test.num_samples != len(measured.predicted):
        return b""
    predicted, index = measured.predicted.numpy(), np.arange(test.num_samples)
    rows = None if task.test is None else task.test.any  # which need not read the images for their names
    labels = test.labels_of(index) if rows is None else rows.labels.numpy()
    columns = {
        "index": index,
        "name": pa.array([redact(name) for name in test.names_of(index)] if rows is None else rows.names, pa.string()),
        "prediction": predicted,
        "class": pa.array([task.class_names[label] if label >= 0 else None for label in predicted], pa.string()),
    }
    if measured.confidence is not None:
        columns["score"] = measured.confidence.numpy()
    if labels.ndim == 1:
        columns["label"] = labels
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()
