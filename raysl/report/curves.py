"""The course of training: one small drawing for each number that metrics.jsonl holds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from raysl.report.figures import BAD, GRID, MUTED, TRAINED, drawing, to_svg
from raysl.report.html import slug

MAX_POINTS = 400
"""Longer courses are drawn as means of so many stretches."""
MIN_SMOOTHED = 50
"""Shorter courses are drawn as they are."""
MAX_DOTS = 12
MAX_MARKS = 5


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
    "knn_top1": Quantity("Online kNN top-1", "%", is_smooth=True),
    "contrastive_top1": Quantity("Contrastive top-1", "%"),
    "embedding_std": Quantity("Spread of the embeddings", from_zero=True),
    "images_per_s": Quantity("Throughput", "images/s", from_zero=True),
    "data_wait": Quantity("Waiting for data", "% of step time", 100.0, from_zero=True),
    "step_s": Quantity("Step time", "s", from_zero=True),
    "memory_gb": Quantity("Memory", "GB", from_zero=True),
}
CLOCKS = ("step", "epoch", "total_steps")
"""Keys that say when, not what."""


@dataclass(frozen=True)
class Course:
    """The values of one key over training."""

    key: str
    quantity: Quantity
    steps: NDArray[np.float64]
    """[N], ascending"""
    values: NDArray[np.float64]
    """[N], finite, in the quantity's unit"""
    broken: list[int]
    """Steps at which the value was not finite."""
    last: float
    """Newest finite value, in the quantity's unit."""


def courses(history: Sequence[dict[str, Any]]) -> Iterator[Course]:
    """The numeric keys of the history as courses, the known ones first, others by name; all-empty ones left out."""
    lines = sorted((line for line in history if _is_number(line.get("step"))), key=lambda line: float(line["step"]))
    present = {key for line in lines for key, value in line.items() if _is_number(value)} - set(CLOCKS)
    for key in [key for key in KNOWN if key in present] + sorted(present - set(KNOWN)):
        quantity = KNOWN.get(key) or Quantity(_title(key))
        pairs = np.array([(line["step"], line[key]) for line in lines if _is_number(line.get(key))], dtype=np.float64)
        finite = np.isfinite(pairs[:, 1])
        if finite.any():
            steps, values = pairs[finite, 0], pairs[finite, 1] * quantity.factor
            broken = [int(step) for step in pairs[~finite, 0]]
            yield Course(key, quantity, steps, values, broken, float(values[-1]))


def curve(course: Course, last_step: float | None = None) -> str:
    """One course over the steps: as it was, and its running mean where it is long and noisy.

    Args:
        course: what to draw.
        last_step: where the axis of the steps ends, at the earliest; it begins at 0.
    """
    figure = Figure(figsize=(3.9, 2.2))
    steps, values = thinned(course.steps), thinned(course.values)
    with drawing(figure) as axes:
        is_smoothed = not course.quantity.is_smooth and len(values) >= MIN_SMOOTHED
        marker = "o" if len(values) <= MAX_DOTS else ""
        width, alpha = (1.0, 0.35) if is_smoothed else (2.0, 1.0)
        axes.plot(steps, values, color=TRAINED, linewidth=width, alpha=alpha, marker=marker, markersize=4)
        if is_smoothed:
            axes.plot(steps, running_mean(values, len(values) // 10), color=TRAINED, linewidth=2)
        for step in course.broken[:MAX_MARKS]:
            axes.axvline(step, color=BAD, linewidth=1.5, linestyle="--")
        is_constant = np.ptp(values) <= 1e-9 * np.abs(values).max()  # has no range of its own
        if (course.quantity.from_zero or is_constant) and values.min() >= 0:
            axes.set_ylim(0, float(values.max()) * 1.08 or 1.0)
        elif is_constant:
            axes.set_ylim(float(values.min()) * 1.08, 0)
        end = max(float(steps[-1]), last_step or 0.0, 1.0)
        axes.set_xlim(-0.02 * end, 1.02 * end)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
        axes.ticklabel_format(axis="y", scilimits=(-3, 6), useMathText=False)
        axes.yaxis.get_offset_text().set_color(MUTED)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        return to_svg(figure, f"curve-{slug(course.key)}", f"{course.quantity.title} over the steps of training")


def thinned(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """At most 400 values: means of stretches of nearly equal length."""
    if len(values) <= MAX_POINTS:
        return values
    return np.array([part.mean() for part in np.array_split(values, MAX_POINTS)])


def running_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Centred mean over `window` values, over fewer at both ends."""
    kernel = np.ones(max(1, window))
    sums: NDArray[np.float64] = np.convolve(values, kernel, mode="same")
    return sums / np.convolve(np.ones_like(values), kernel, mode="same")


def _is_number(value: object) -> bool:
    """Whether a value of the history can be drawn."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _title(key: str) -> str:
    """An unknown key for people: `grad_norm` -> `Grad norm`."""
    words = key.replace("_", " ").replace("/", " / ")
    return words[:1].upper() + words[1:]
