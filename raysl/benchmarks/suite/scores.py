"""The scores of benchmarks, and the report that a measurement returns."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from html import escape
from typing import TYPE_CHECKING, Any

from raysl.benchmarks.metric import Metric, interval_of_difference
from raysl.errors import RunFailed
from raysl.redact import redact_uri
from raysl.report.contents import DEFAULTS, Score
from raysl.report.summary import score_html, score_table
from raysl.report.verdict import remarks

if TYPE_CHECKING:
    import pandas as pd


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
        deviation=metric.deviation,
        interval=metric.interval,
        unit=metric.unit,
        title=metric.title,
        is_headline=metric.is_headline,
        is_lower_better=metric.is_lower_better,
        note=metric.note,
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
