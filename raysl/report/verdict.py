"""Whether pre-training beat the untrained network and raw pixels: by how much, and beyond which interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from raysl.report.contents import Score
from raysl.report.summary import number

QUANTILE = 1.959964
"""The 97.5 % quantile of the standard normal distribution."""
RIVALS = {"untrained": "the untrained network", "pixels": "raw pixels"}
"""In words, by the field of a score that holds their number."""
RULE = (
    "A difference is green or red where its 95 % interval leaves out 0. The interval is over the test images, which "
    "both networks share (Newcombe 1998, method 10). A difference of numbers that have a ± alone is held against 1.96 "
    "times the root of the sum of both squared deviations, as one draw of each would be."
)
Tone = Literal["better", "worse", "level"]


@dataclass(frozen=True)
class Gain:
    """A number minus that of a rival.

    Args:
        interval: 95 % interval of it; None where it is not known.
        is_lower_better: whether a smaller number is the better one.
    """

    change: float
    interval: tuple[float, float] | None
    is_lower_better: bool = False
    unit: str = "%"

    @property
    def tone(self) -> Tone:
        """`level` where the interval holds 0 or is unknown."""
        if self.interval is None or self.interval[0] <= 0 <= self.interval[1]:
            return "level"
        return "better" if (self.interval[0] < 0) == self.is_lower_better else "worse"

    def words(self, rival: str) -> str:
        """Return part of a sentence: better than raw pixels by 12.30 (95 %: 9.80 to 14.80)."""
        unit = f" {self.unit}" if self.unit not in ("", "%") else ""
        if self.interval is None:
            side = "below" if self.change < 0 else "above"
            return f"{number(abs(self.change), self.unit)}{unit} {side} {rival} (no interval)"
        low, high = (signed(end, self.unit) for end in self.interval)
        if self.tone == "level":
            return f"no better than {rival} ({signed(self.change, self.unit)}{unit}, 95 %: {low} to {high})"
        return f"{self.tone} than {rival} by {number(abs(self.change), self.unit)}{unit} (95 %: {low} to {high})"


def gain(score: Score, rival: str) -> Gain | None:
    """Return the difference between a score and a rival; None where either is unknown.

    Where the interval of the difference is unknown, the rival's interval or deviation counts as equally wide.
    """
    other = getattr(score, rival)
    if other is None or not math.isfinite(score.trained - other):
        return None
    change = score.trained - other
    interval = getattr(score, f"over_{rival}")
    if interval is None and score.interval is not None:
        low, high = (math.sqrt(2) * (end - score.trained) for end in score.interval)
        interval = change + low, change + high
    elif interval is None and score.deviation is not None:
        reach = math.sqrt(2) * QUANTILE * score.deviation
        interval = change - reach, change + reach
    if interval is not None and not math.isfinite(sum(interval)):
        interval = None
    return Gain(change, interval, score.is_lower_better, score.unit)


def sentence(gains: Mapping[str, Gain]) -> str:
    """Return the gains over rivals, by their keys, as one part of a sentence."""
    is_mixed = len(gains) > 1 and sum(difference.tone == "better" for difference in gains.values()) == 1
    parts = [difference.words(RIVALS[rival]) for rival, difference in gains.items()]
    return (", but " if is_mixed else " and ").join(parts)


def verdicts(scores: Sequence[Score]) -> dict[str, str]:
    """Return a sentence for each benchmark, on its first headline or else on its first number in percent.

    Benchmarks without a rival are left out, and numbers without a unit and an interval, as ranks: neither more nor less
    of them is known to be better.
    """
    first: dict[str, Score] = {}
    for score in sorted(scores, key=lambda score: not score.is_headline):
        if score.unit == "%" or (score.is_headline and (score.unit or score.interval is not None)):
            first.setdefault(score.benchmark, score)
    sentences = {}
    for name in dict.fromkeys(score.benchmark for score in scores if score.benchmark in first):
        score = first[name]
        gains = {rival: difference for rival in RIVALS if (difference := gain(score, rival)) is not None}
        if gains:
            sentences[name] = f"{name}/{score.metric}: {sentence(gains)}."
    return sentences


def signed(value: float, unit: str = "%") -> str:
    """Return a difference with its sign.

    >>> signed(0.4), signed(-3.2)
    ('+0.40', '−3.20')
    """
    return f"{'−' if value < 0 else '+'}{number(abs(value), unit)}"


def remarks(scores: Sequence[Score]) -> list[str]:
    """Return the lines that a command prints below the table: a verdict and the notes of each benchmark."""
    lines = [f"verdict     {sentence}" for sentence in verdicts(scores).values()]
    names = dict.fromkeys(score.benchmark for score in scores)
    return lines + [f"note        {name}: {text}" for name in names if (text := "; ".join(notes(scores, name)))]


def notes(scores: Sequence[Score], benchmark: str) -> list[str]:
    """Return the notes on the numbers of a benchmark, each once."""
    noted = [score for score in scores if score.benchmark == benchmark]
    return list(dict.fromkeys(note for score in noted for note in score.note.split("; ") if note))
