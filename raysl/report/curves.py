"""The course of training: one small drawing for each number that metrics.jsonl holds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysl.report.contents import ONLINE_KNN
from raysl.report.marks import Chart

MAX_POINTS = 400
"""Points of a curve that are drawn; longer curves are drawn as means of this number of stretches."""
MIN_SMOOTHED = 50
"""Shorter curves are drawn as they are."""
MAX_DOTS = 12
MAX_SHOWN_STEPS = 5
COLOUR = "var(--trained)"


@dataclass(frozen=True)
class Quantity:
    """How a key of the history is drawn."""

    title: str
    unit: str = ""
    factor: float = 1.0
    """From what is logged to `unit`."""
    from_zero: bool = False
    is_smooth: bool = False
    """Follows a schedule or is measured rarely: drawn without a running mean."""


KNOWN = {
    "loss": Quantity("Loss"),
    "lr": Quantity("Learning rate", is_smooth=True),
    "probe_top1": Quantity("Online probe top-1", "%", is_smooth=True),
    "probe_train_top1": Quantity("Online probe top-1, training images", "%"),
    "probe_loss": Quantity("Loss of the online probe"),
    "rankme": Quantity("RankMe", is_smooth=True),
    "lidar": Quantity("LiDAR", is_smooth=True),
    "contrastive_top1": Quantity("Contrastive top-1", "%"),
    "embedding_std": Quantity("Spread of the embeddings", from_zero=True),
    "images_per_s": Quantity("Throughput", "images/s", from_zero=True),
    "data_wait": Quantity("Waiting for data", "% of step time", 100.0, from_zero=True),
    "step_s": Quantity("Step time", "s", from_zero=True),
    "memory_gb": Quantity("Memory", "GB", from_zero=True),
}
LEARNED, SPENT = ("loss", "probe_top1"), ("lr", "images_per_s", "data_wait", "step_s", "memory_gb")
"""What is drawn first, and last."""
SPENT_GROUPS = ("lr/", "weight_decay/", "timer/", "memory/")
"""Beginnings of the names of numbers that are drawn behind all others."""
CLOCKS = ("step", "epoch", "total_steps")
"""Keys that say when, not what."""


@dataclass(frozen=True)
class Curve:
    """The values of one key over training."""

    key: str
    quantity: Quantity
    steps: NDArray[np.float64]
    """[N], ascending"""
    values: NDArray[np.float64]
    """[N], finite, in the quantity's unit"""
    broken: list[int]
    """Steps at which the value was not finite."""


def curves_of(history: Sequence[dict[str, Any]]) -> Iterator[Curve]:
    """Return the numeric keys of the history as curves, in the order of `place`, empty ones left out."""
    lines = sorted((line for line in history if _is_number(line.get("step"))), key=lambda line: float(line["step"]))
    present = {key for line in lines for key, value in line.items() if _is_number(value)} - set(CLOCKS)
    for key in sorted(present, key=place):
        quantity = _quantity(key)
        pairs = np.array([(line["step"], line[key]) for line in lines if _is_number(line.get(key))], dtype=np.float64)
        finite = np.isfinite(pairs[:, 1])
        if finite.any():
            steps, values = pairs[finite, 0], pairs[finite, 1] * quantity.factor
            broken = [int(step) for step in pairs[~finite, 0]]
            yield Curve(key, quantity, steps, values, broken)


def place(name: str) -> tuple[int, int, str]:
    """Return what sorts logged numbers: loss and accuracy, what a method logs, then times and memory.

    >>> sorted(["memory_gb", "heldout_top1", "entropy", "lr", "knn_k20_top1", "loss"], key=place)
    ['loss', 'knn_k20_top1', 'heldout_top1', 'entropy', 'lr', 'memory_gb']
    """
    if name in LEARNED:
        return 0, len(LEARNED) * LEARNED.index(name), name
    if match := ONLINE_KNN.fullmatch(name):
        return 0, 1, f"{match[1]:>9}"
    if is_spent(name):
        return 3, SPENT.index(name) if name in SPENT else len(SPENT), name
    return (1 if "top1" in name or "accuracy" in name else 2), 0, name


def is_spent(name: str) -> bool:
    """Whether a logged number tells of time, memory or a schedule, not of what was learned."""
    return name in SPENT or name.startswith(SPENT_GROUPS)


def draw_curve(curve: Curve, last_step: float | None = None) -> str:
    """Draw one curve over the steps from 0 to `last_step` or later, with its running mean where it is long and
    noisy.
    """
    steps, values = thinned(curve.steps), thinned(curve.values)
    is_constant = np.ptp(values) <= 1e-9 * np.abs(values).max()  # has no range of its own
    ys = [float(values.min()), float(values.max())]
    if is_constant or (curve.quantity.from_zero and ys[0] >= 0):
        ys.append(0.0)
    end = max(float(steps[-1]), last_step or 0.0, 1.0)
    chart = Chart(374, 210, f"{curve.quantity.title} over the steps of training")
    chart.frame([0.0, end], ys, padding=0.02, is_whole=True, top=10)
    is_smoothed = not curve.quantity.is_smooth and len(values) >= MIN_SMOOTHED
    faint: dict[str, Any] = {"stroke_width": 1, "stroke_opacity": 0.35} if is_smoothed else {"stroke_width": 2}
    chart.line(list(zip(steps, values, strict=True)), stroke=COLOUR, **faint)
    if len(values) <= MAX_DOTS:
        for step, value in zip(steps, values, strict=True):
            chart.dot((step, value), 3, fill=COLOUR)
    if is_smoothed:
        means = running_mean(values, len(values) // 10)
        chart.line(list(zip(steps, means, strict=True)), stroke=COLOUR, stroke_width=2)
    for step in curve.broken[:MAX_SHOWN_STEPS]:
        chart.rule("broken", (chart.x(step), chart.x(step)), (chart.y.start, chart.y.end))
    return chart.svg()


def thinned(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return at most 400 values: means of stretches of nearly equal length."""
    if len(values) <= MAX_POINTS:
        return values
    return np.array([part.mean() for part in np.array_split(values, MAX_POINTS)])


def running_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Return the centred mean over `window` values, over fewer at both ends."""
    kernel = np.ones(max(1, window))
    sums: NDArray[np.float64] = np.convolve(values, kernel, mode="same")
    return sums / np.convolve(np.ones_like(values), kernel, mode="same")


def _is_number(value: object) -> bool:
    """Return whether a value of the history can be drawn."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _quantity(key: str) -> Quantity:
    """Return how a key of the history is drawn."""
    if match := ONLINE_KNN.fullmatch(key):
        return Quantity(f"Online kNN top-1, k = {match[1]}", "%", is_smooth=True)
    return KNOWN.get(key) or Quantity(_title(key))


def _title(key: str) -> str:
    """Return an unknown key for people: `grad_norm` -> `Grad norm`."""
    title = key.replace("_", " ").replace("/", " / ")
    return title[:1].upper() + title[1:]
