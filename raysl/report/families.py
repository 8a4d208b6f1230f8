"""Scores of one benchmark that belong together: the same number at several k, shots, shares of labels, or stages."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from raysl.report.contents import Score

X = TypeVar("X", float, str)
FEATURES = "features"
"""Name of a network's features in drawings by stage, where they stand last."""

SHOTS = "shot"
"""What the names of low-shot numbers have in common, which does not say what they are."""
_PATTERNS = (
    (r"k(?P<x>\d+)/(?P<base>.+)", "k"),
    (r"(?P<base>.+)_at_(?P<x>\d+)", "k"),
    (r"(?P<x>\d+)_(?P<base>shot)", "labelled images of each class"),
    (r"(?P<base>.+?)_(?P<x>\d+(_\d+)?)pct", "labelled images, %"),
)
"""Names of metrics that hold a number, its point written as `_`, and what that number is."""


@dataclass(frozen=True)
class Family(Generic[X]):
    """One number at several k, shots, shares of labels or stages.

    Args:
        title: name of the number with the varied quantity: `Top-1 against k`, `Top-1 by stage`.
        x: varied quantity.
        scores: scores by its values, ascending, or by the names of the stages, `FEATURES` last.
    """

    title: str
    x: str
    scores: dict[X, Score]


def number_title(base: str) -> str:
    """Return what people call a number: `Top-1` for `top1`."""
    title = _TITLES.get(base) or re.sub(r"^top(\d+)", r"top-\1", base.replace("_", " "))
    return title[:1].upper() + title[1:]


_TITLES = {"map": "Mean average precision"}


def families(scores: Sequence[Score]) -> list[Family[float]]:
    """Return the families of two and more among the scores of one benchmark, in the order of their first."""
    members_by_name: dict[tuple[str, str], dict[float, Score]] = {}
    for score in scores:
        for pattern, x in _PATTERNS:
            if match := re.fullmatch(pattern, score.metric):
                members_by_name.setdefault((match["base"], x), {})[float(match["x"].replace("_", "."))] = score
    return [
        Family(f"By {x}" if base == SHOTS else f"{number_title(base)} against {x}", x, dict(sorted(members.items())))
        for (base, x), members in members_by_name.items()
        if len(members) > 1
    ]


def stages_of(scores: Sequence[Score]) -> list[Family[str]]:
    """Return the numbers that a benchmark has by stage: `top1` and `top1_<stage>`, whose title names the stage."""
    by_name = {score.metric: score for score in scores}
    groups = []
    for base, whole in by_name.items():
        inner = {name.removeprefix(f"{base}_"): score for name, score in by_name.items() if name.startswith(f"{base}_")}
        members = {stage: score for stage, score in inner.items() if _names(score.title, stage)}
        if members:
            groups.append(Family(f"{number_title(base)} by stage", "stage", {**members, FEATURES: whole}))
    return groups


def _names(title: str, stage: str) -> bool:
    """Return whether a title names a stage: `of res4`, or at its end `, res4`."""
    name = re.escape(stage)
    return bool(re.search(rf"\bof (stage )?{name}(?!\w)|, {name}(, best epoch)?($| \()", title))
