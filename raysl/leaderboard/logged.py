"""The numbers that a run has logged, by name, in arrays: a thousand runs take a few megabytes."""

import math
import sys
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from statistics import median

Line = Mapping[str, float]
Curve = list[tuple[float, float]]

PLACES = ("step", "epoch")
"""Fields that say where a line belongs."""
NO_CURVES = ("lr", "images_per_s", "step_s", "data_wait", "memory_gb")
"""Logged numbers that are not learning curves."""


class Logged:
    """The numbers of a run.

    Attributes:
        reached: epochs at the last line; 0 without lines.
        epochs, values: ascending epochs of the lines with a number, and its values, by its name.
    """

    def __init__(self, lines: Sequence[Line] = ()) -> None:
        self.reached = lines[-1]["epoch"] if lines else 0.0
        self.epochs: dict[str, array[float]] = {}
        self.values: dict[str, array[float]] = {}
        whole = array("d", (line["epoch"] for line in lines))
        for name in dict.fromkeys(name for line in lines for name in line if name not in PLACES):
            matching = [line for line in lines if name in line]
            name = sys.intern(name)
            self.epochs[name] = (
                whole if len(matching) == len(whole) else array("d", (line["epoch"] for line in matching))
            )
            self.values[name] = array("d", (line[name] for line in matching))
        self._seconds = array("d", _seconds(lines))

    def newest(self, until: float = math.inf) -> dict[str, float]:
        """Return the newest number of each name, up to an epoch."""
        ends = {name: bisect_right(epochs, until) for name, epochs in self.epochs.items()}
        return {name: self.values[name][end - 1] for name, end in ends.items() if end}

    def curve(self, name: str, until: float = math.inf) -> Curve:
        """Return epochs and finite values of a name, up to an epoch."""
        epochs = self.epochs.get(name, array("d"))
        end = bisect_right(epochs, until)
        pairs = zip(epochs[:end], self.values.get(name, array("d"))[:end], strict=True)
        return [(epoch, value) for epoch, value in pairs if math.isfinite(value)]

    def curves(self, until: float = math.inf) -> dict[str, Curve]:
        """Return learning curves by name, and the seconds of training as `seconds`, up to an epoch."""
        curves = {name: self.curve(name, until) for name in self.epochs if name not in NO_CURVES}
        seconds = self.seconds(until)
        return {**curves, "seconds": seconds} if seconds else curves

    def costs(self) -> dict[str, float]:
        """Return the median seconds of a step and the largest memory of a device, as far as they were logged."""
        steps, sizes = self.values.get("step_s", ()), self.values.get("memory_gb", ())
        step_s = {"step_s": median(steps)} if steps else {}
        return step_s | ({"memory_gb": max(sizes)} if sizes else {})

    def seconds(self, until: float = math.inf) -> Curve:
        """Return epochs and the seconds of training until then, from the logged seconds a step."""
        epochs = self.epochs.get("step_s", array("d"))
        return list(zip(epochs, self._seconds, strict=True))[: bisect_right(epochs, until)]


def _seconds(lines: Sequence[Line]) -> list[float]:
    seconds: list[float] = []
    spent, before = 0.0, 0.0
    for line in lines:
        if "step_s" in line:
            # the seconds of a step are a mean over the steps since the line before
            spent += line["step_s"] * (line["step"] - before)
            before = line["step"]
            seconds.append(round(spent, 3))
    return seconds
