"""Results of a benchmark on one network: metrics, predictions, and data for charts of them, in the types of JSON."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from raysl.benchmarks.benchmark import Findings, Metric, by_name
from raysl.benchmarks.features.stored_features import Features
from raysl.data.source import Split
from raysl.redact import redact

MOST_CONFUSED = 50
"""Classes up to which the whole table of confusion is kept."""
NUM_BINS = 15
NUM_PAIRS = 20


@dataclass(frozen=True)
class Measured:
    """The outcome of a task.

    Args:
        figures: data of charts.
        predicted: int64 [N], the class that each test image got; None of benchmarks that do not classify.
        confidence: float32 [N], its share or score, where that is known.
        seconds: wall-clock time, of a benchmark that trains that of all starts.
    """

    metrics: dict[str, Metric]
    figures: dict[str, Any] = field(default_factory=dict)
    predicted: Tensor | None = None
    confidence: Tensor | None = None
    seconds: float = 0.0


def measured_of(findings: Findings, labels: Tensor | None, class_names: Sequence[str], seconds: float) -> Measured:
    """Return what a benchmark measured, with charts of its predictions.

    Args:
        labels: int64 [N] of the test images; None or several an image where there are no such charts.
    """
    figures = dict(findings.figures)
    if "per_class" in figures:
        figures["per_class"] = {
            title: {_class_name(name, class_names): value for name, value in values.items()}
            for title, values in figures["per_class"].items()
        }
    predicted, confidence = findings.predicted, None
    if findings.scores is not None:
        confidence, predicted = findings.scores.cpu().float().max(dim=1)
    if predicted is not None and labels is not None and labels.ndim == 1 and len(labels) == len(predicted):
        predicted = predicted.cpu()
        figures["confusion"] = confusion(labels, predicted, class_names)
        if findings.are_probabilities and findings.scores is not None:
            figures["reliability"] = reliability(labels, findings.scores.cpu().float())
    return Measured(by_name(findings.metrics), figures, predicted, confidence, seconds)


def predictions_file(
    measured: Measured, test: Split | None, rows: Features | None, class_names: Sequence[str]
) -> bytes:
    """Return the content of a Parquet file of predictions, one row an image: index, name, prediction, class and, where
    they are known, score and label. It is empty if the benchmark does not classify.

    Args:
        rows: features of the test images, which have their names and labels, so that no image is read for these.
    """
    if measured.predicted is None or test is None or test.num_samples != len(measured.predicted):
        return b""
    predicted, index = measured.predicted.numpy(), np.arange(test.num_samples)
    labels = test.labels_of(index) if rows is None else rows.labels.numpy()
    columns = {
        "index": index,
        "name": pa.array([redact(name) for name in test.names_of(index)] if rows is None else rows.names, pa.string()),
        "prediction": predicted,
        "class": pa.array([class_names[label] if label >= 0 else None for label in predicted], pa.string()),
    }
    if measured.confidence is not None:
        columns["score"] = measured.confidence.numpy()
    if labels.ndim == 1:
        columns["label"] = labels
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def confusion(labels: Tensor, predicted: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Count how often each class was predicted as each other class.

    Args:
        labels, predicted: int64 [N]; rows that were taken for none, -1, are left out.

    Returns:
        `classes` and `counts` [K][K], a row for each true class, of up to 50 classes; `pairs`, the mistakes that are
        made most often, as [true, predicted, count].
    """
    num = len(classes)
    labels, predicted = labels[predicted >= 0], predicted[predicted >= 0]
    counts = torch.bincount(labels * num + predicted, minlength=num * num).view(num, num)
    wrong = counts.clone().fill_diagonal_(0)
    best = wrong.flatten().topk(min(NUM_PAIRS, num * num))
    pairs = [
        [classes[cell // num], classes[cell % num], count]
        for count, cell in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        if count
    ]
    table = {"classes": list(classes), "counts": counts.tolist()} if num <= MOST_CONFUSED else {}
    return {**table, "pairs": pairs}


def reliability(labels: Tensor, probabilities: Tensor) -> dict[str, Any]:
    """Compute the accuracy of predictions at each confidence (Guo et al. 2017, arXiv 1706.04599, section 2).

    Args:
        labels: int64 [N].
        probabilities: [N, K], rows add up to 1.

    Returns:
        `bins`: [mean confidence, share that is right, number of images] of 15 bins of equal width, as far as there are
        images; `ece`: the expected calibration error in percent (equation 3).
    """
    confidence, predicted = probabilities.max(dim=1)
    is_hit = (predicted == labels).double().numpy()
    values = confidence.double().numpy()
    bin_of = np.minimum((values * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    bins, error = [], 0.0
    for number in range(NUM_BINS):
        is_inside = bin_of == number
        if num := int(is_inside.sum()):
            mean, share = float(values[is_inside].mean()), float(is_hit[is_inside].mean())
            bins.append([mean, share, num])
            error += num / len(values) * abs(mean - share)
    return {"bins": bins, "ece": 100 * error}


def _class_name(name: Any, class_names: Sequence[str]) -> str:
    """Return a class by name where a benchmark has its number only."""
    text = str(name)
    return class_names[int(text)] if text.isdecimal() and int(text) < len(class_names) else text
