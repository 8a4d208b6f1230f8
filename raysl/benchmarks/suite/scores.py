"""The scores of benchmarks with the averages of suites, and the report that a measurement returns."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from html import escape
from typing import TYPE_CHECKING, Any

from raysl.benchmarks.metric import Interval, Metric, interval_of_difference
from raysl.errors import RunFailed
from raysl.redact import redact_uri
from raysl.report.contents import DEFAULTS, Score
from raysl.report.summary import score_html, score_table
from raysl.report.verdict import remarks

if TYPE_CHECKING:
    import pandas as pd

    from raysl.benchmarks.suite.results import Result


@dataclass(frozen=True, repr=False)
class Report:
    """The results of a measurement.

    Args:
        metrics: `knn/k20/top1` is the trained backbone's; `/untrained`, `/pixels` and `/deviation` stand beside it.
        path: address of `report.html`.
        scores: the same as a table.
        failures: why benchmarks failed, by name.
        checkpoint: address of the measured checkpoint.
    """

    metrics: dict[str, float]
    path: str
    scores: list[Score] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    checkpoint: str = ""

    def check(self) -> None:
        """Raise RunFailed with the reasons if a benchmark failed."""
        if self.failures:
            reasons = "\n".join(f"the benchmark {name} failed: {reason}" for name, reason in self.failures.items())
            raise RunFailed(f"{reasons}\nall others were measured and stored; the next start measures what is missing")

    @property
    def frame(self) -> "pd.DataFrame":
        """`scores` as a pandas table with one row each."""
        import pandas as pd

        return pd.DataFrame([asdict(score) for score in self.scores], columns=[column.name for column in fields(Score)])

    def table(self) -> str:
        """`scores` as aligned text, as commands print them."""
        return score_table(self.scores)

    def __repr__(self) -> str:
        """The scores with verdicts, notes, failures and the address of the page, as a Python shell shows them."""
        failed = [f"{name} failed: {reason}" for name, reason in self.failures.items()]
        return "\n".join(line for line in (self.table(), *remarks(self.scores), *failed, redact_uri(self.path)) if line)

    def _repr_html_(self) -> str:
        """The same for a notebook."""
        failed = [f"{name} failed: {why}" for name, why in self.failures.items()]
        lines = "".join(f"<p>{escape(line)}</p>" for line in (*remarks(self.scores), *failed))
        return (score_html(self.scores) + lines) or "<p>nothing was measured</p>"


def score_of(benchmark: str, metric: Metric, rivals: Mapping[str, Mapping[str, Metric]], protocol: str) -> Score:
    """Make a score of the trained network beside those of its rivals.

    Args:
        rivals: the metrics of `untrained` and `pixels`, by name.
        protocol: see `Score.protocol`.
    """
    beside: dict[str, Any] = {}
    for name, metrics in rivals.items():
        if (other := metrics.get(metric.name)) is not None:
            beside |= {name: other.value, f"over_{name}": interval_of_difference(metric, other)}
    score = Score(
        benchmark=benchmark,
        metric=metric.name,
        trained=metric.value,
        **beside,
        **{name: getattr(metric, name) for name in SHARED},
        protocol=protocol,
    )
    notes = [] if score.is_own else [protocol or DEFAULTS]
    notes += [metric.note] if metric.note else []
    if score.is_saturated:
        notes.append("raw pixels nearly solve this one already")
    return replace(score, note="; ".join(notes))


def of_other_code(score: Score) -> Score:
    """Return a score with a note that it was measured by other code."""
    return replace(score, note="; ".join(filter(None, (score.note, "measured by other code than this raysl's"))))


AVERAGE = "mean"
"""Metric of the average."""
RIVALS = ("untrained", "pixels")
SHARED = ("deviation", "interval", "unit", "title", "is_headline", "is_lower_better", "note")
"""Fields that a score has of its metric."""
WORDS = {
    "top1": "top-1",
    "mean_per_class": "mean per class",
    "map": "mAP",
    "miou": "mIoU",
    "rmse": "RMSE",
    "jf_mean": "J&F",
}
"""Metrics in the titles of rows, where they are not called by their name."""


@dataclass(frozen=True)
class Member:
    """What makes a result a part of a suite.

    Args:
        metric: name of the number that counts, also behind a setting: `top1` is kNN's `k20/top1`.
        size: datasets of the suite, those among them that cannot be measured.
    """

    suite: str
    suite_title: str
    title: str
    metric: str
    size: int


def scores_of(results: "Sequence[Result]") -> list[Score]:
    """Return all scores of results: of a part of a suite the one that counts, and before them the suite's average.

    A number that several results have, such as one k of `k=[20]` and `k=[20, 200]`, is that of the first.

    Where a dataset has several results, of other settings, the average takes the first.
    """
    scores: list[Score] = []
    seen: set[str] = set()
    for result in results:
        if result.member is None:
            scores += result.scores
            continue
        if result.member.suite not in seen:
            seen.add(result.member.suite)
            scores += _with_average(result.member, results)
    # read backwards, the first of several equal names replaces the later ones
    first = {(score.benchmark, score.metric): score for score in reversed(scores)}
    return list(reversed(first.values()))


def _with_average(member: Member, results: "Sequence[Result]") -> list[Score]:
    """Return the average of a suite and the rows of its parts."""
    rows: list[Score] = []
    first: dict[str, Score] = {}
    for result in results:
        if result.member is None or result.member.suite != member.suite:
            continue
        metric = result.member.metric
        of_metric = [_row(score, result.member) for score in result.scores if f"/{score.metric}".endswith(f"/{metric}")]
        rows += of_metric or result.scores
        for score in of_metric[:1]:
            first.setdefault(result.name.partition("@")[0], score)
    return [*_average(member, first), *rows]


def _row(score: Score, member: Member) -> Score:
    part, _, name = score.metric.rpartition("/")
    titles = [member.title, WORDS.get(name, name.replace("_", " ")), *([part] if part else [])]
    return replace(score, title=", ".join(titles), is_headline=score.is_own)


def _average(member: Member, by_part: dict[str, Score]) -> list[Score]:
    """Return the mean of the parts in percent; none without any, or where one is not a number."""
    parts = {name: score for name, score in by_part.items() if score.unit == "%" and not score.is_lower_better}
    scores = list(parts.values())
    if not scores or not all(math.isfinite(score.trained) for score in scores):
        return []
    num = len(scores)
    mean = sum(score.trained for score in scores) / num
    beside: dict[str, Any] = {}
    for rival in RIVALS:
        values = [getattr(score, rival) for score in scores]
        # a rival that lacks a dataset would have a mean over other datasets than the trained network
        if None in values:
            continue
        value = sum(values) / num
        pairs = zip(scores, values, strict=True)
        parts_over = [(score.trained - other, getattr(score, f"over_{rival}")) for score, other in pairs]
        beside |= {rival: value, f"over_{rival}": _around(mean - value, parts_over)}
    notes = []
    if num < member.size:
        names = ", ".join(name.removeprefix(f"{member.suite}_") for name in parts)
        notes.append(f"over {num} of {member.size} datasets: {names}")
    if special := [name for name, score in parts.items() if not score.is_own]:
        notes.append(f"with settings of one's own on {len(special)} of them")
    title = f"{member.suite_title}: mean of {num}" + (f" of {member.size}" if num < member.size else "")
    return [
        Score(
            benchmark=member.suite,
            metric=AVERAGE,
            trained=mean,
            **beside,
            interval=_around(mean, [(score.trained, score.interval) for score in scores]),
            title=title,
            note="; ".join(notes),
        )
    ]


def _around(mean: float, parts: Sequence[tuple[float, Interval | None]]) -> Interval | None:
    """Return the interval of a mean of values that have intervals; None where one has none.

    The datasets are independent, so the squares of the reaches add up (Zou and Donner 2008).
    """
    known = [(value, interval) for value, interval in parts if interval is not None]
    if len(known) < len(parts):
        return None
    down = math.sqrt(sum((value - low) ** 2 for value, (low, _) in known)) / len(known)
    up = math.sqrt(sum((high - value) ** 2 for value, (_, high) in known)) / len(known)
    return mean - down, mean + up
