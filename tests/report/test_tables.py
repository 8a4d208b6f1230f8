"""The scores as CSV and LaTeX."""

import csv
import io
import math
import re
from dataclasses import replace

import pytest

from raysl.report.contents import Score
from raysl.report.tables import COLUMNS, latex_text, score_csv, score_latex
from tests.report.run import SCORES

AWKWARD = 'a, "b"\nc; {d}'


def test_a_csv_reads_back_as_the_scores() -> None:
    third = 100 / 3
    scores = [
        *SCORES,
        Score(benchmark="mine", metric="m", title=AWKWARD, trained=third, interval=(1.0, third), unit="s"),
    ]
    rows = list(csv.DictReader(io.StringIO(score_csv(scores))))
    assert tuple(rows[0]) == COLUMNS
    for row, score in zip(rows, scores, strict=True):
        low, high = score.interval or (None, None)
        numbers = {"trained": score.trained, "low": low, "high": high, "deviation": score.deviation}
        numbers |= {"untrained": score.untrained, "pixels": score.pixels}
        assert {name: row[name] for name in numbers} == {
            name: "" if value is None else repr(value) for name, value in numbers.items()
        }
        assert [row[name] for name in ("benchmark", "metric", "title", "unit", "note")] == [
            score.benchmark,
            score.metric,
            score.heading,
            score.unit,
            score.note,
        ]


def test_latex_is_a_booktabs_table_with_benchmarks_apart() -> None:
    scores = [replace(SCORES[0], interval=(89.0, 91.25)), SCORES[1], replace(SCORES[1], metric="top5", title="Top-5")]
    assert score_latex(scores) == "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{tabular}{lrrrrr}",
            r"\toprule",
            r" & pre-trained & $\pm$ & 95\,\% interval & untrained & raw pixels \\",
            r"\midrule",
            r"Low-shot, 5 per class & 90.10 & 0.80 & 89.00 to 91.25 & 70.40 & 77.50 \\",
            r"\addlinespace",
            r"kNN, top-1, k = 20 & 97.40 &  &  & 93.00 & 98.10 \\",
            r"Top-5 & 97.40 &  &  & 93.00 & 98.10 \\",
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def test_latex_leaves_out_what_no_score_has_and_names_other_units() -> None:
    lines = score_latex([Score(benchmark="mine", metric="search", trained=math.nan, unit="s")]).splitlines()
    assert lines[1] == r"\begin{tabular}{lr}"
    assert lines[5] == r"Mine, search (s) & nan \\"


def test_latex_of_hostile_text_has_no_command_of_its_own() -> None:
    assert latex_text("50 % of $x_1^2$ & {y}\\z\n~#") == (
        r"50 \% of \$x\_1\textasciicircum{}2\$ \& \{y\}\textbackslash{}z \textasciitilde{}\#"
    )
    assert latex_text("[a]* | <b>") == r"{[}a{]}{*} \textbar{} \textless{}b\textgreater{}"


@pytest.mark.parametrize("char", "\\{}$&#_%~^<>|[]*")
def test_a_special_character_never_stands_bare(char: str) -> None:
    row = score_latex([Score(benchmark="a", metric="b", title=f"{char}x", trained=1.0)]).splitlines()[5]
    assert not re.match(re.escape(char) + "x", row)
    assert row.endswith(r"x & 1.00 \\")


def test_no_scores_give_a_table_of_its_head() -> None:
    assert score_csv([]) == ",".join(COLUMNS) + "\n"
    assert score_latex([]).count("\\\\") == 1
