"""What a run has logged, by name, in arrays: those of a thousand runs are a few megabytes."""

import math
import sys
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence

Line = Mapping[str, float]
Curve = list[tuple[float, float]]

PLACES = ("step", "epoch")
"""What says where a line belongs."""


class Logged:
    """The numbers of a run.

    Args:
        lines: of its `metrics.jsonl`, in order.

    Attributes:
        reached: epochs of the last line; 0 of none.
        epochs, values: of each time that a name was logged, ascending.
    """

    def __init__(self, lines: Sequence[Line] = ()) -> None:
        self.reached = lines[-1]["epoch"] if lines else 0.0
        self.epochs: dict[str, array[float]] = {}
        self.values: dict[str, array[float]] = {}
        whole = array("d", (line["epoch"] for line in lines))
        for name in dict.fromkeys(name for line in lines for name in line if name not in PLACES):
            own = [line for line in lines if name in line]
            name = sys.intern(name)
            self.epochs[name] = whole if len(own) == len(whole) else array("d", (line["epoch"] for line in own))
            self.values[name] = array("d", (line[name] for line in own))
        self._seconds = array("d", _seconds(lines))

    def newest(self, until: float = math.inf) -> dict[str, float]:
        """The newest number of each name, up to an epoch."""
        ends = {name: bisect_right(epochs, until) for name, epochs in self.epochs.items()}
        return {name: self.values[name][end - 1] for name, end in ends.items() if end}

    def curve(self, name: str, until: float = math.inf) -> Curve:
        """Epochs and values of a name that are finite, up to an epoch."""
        epochs = self.epochs.get(name, array("d"))
        end = bisect_right(epochs, until)
        pairs = zip(epochs[:end], self.values.get(name, array("d"))[:end], strict=True)
        return [(epoch, value) for epoch, value in pairs if math.isfinite(value)]

    def seconds(self, until: float = math.inf) -> Curve:
        """Epochs and the seconds of training that they took, by the steps and how long each of them did."""
        epochs = self.epochs.get("step_s", array("d"))
        return list(zip(epochs, self._seconds, strict=True))[: bisect_right(epochs, until)]


def _seconds(lines: Sequence[Line]) -> list[float]:
    found: list[float] = []
    spent, before = 0.0, 0.0
    for line in lines:
        if "step_s" in line:
            spent += line["step_s"] * (line["step"] - before)
            before = line["step"]
            found.append(round(spent, 3))
    return found
