"""leaderboard.html as text: what stands on it without a browser."""

import math
import re

import pytest

from raysl.leaderboard.entry import Objective
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.leaderboard.page.curves import MOST_POINTS, curve_names, finite_points
from raysl.leaderboard.page.importance import _of_forest, importance
from raysl.leaderboard.page.leaderboard_page import page
from raysl.leaderboard.page.lineage import lineage
from raysl.leaderboard.page.parallel import axes
from raysl.leaderboard.page.rows import Shades, row_name
from raysl.report.scales import spelled
from tests.leaderboard.boards import asha, board, entry, population, single, zoo
from tests.report.test_page import Outline

HOSTILE = "</script><script>alert('1')</script>\"><img src=x onerror=alert(2)> & 100 %"


@pytest.fixture(scope="module")
def searched() -> str:
    return page(asha())


def cells(text: str) -> list[list[str]]:
    """Texts of the table's cells."""
    body = text[text.index("<tbody>") : text.index("</tbody>")]
    return [
        [re.sub(r"<[^>]+>", " ", cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
        for row in re.findall(r"<tr [^>]*>(.*?)</tr>", body)
    ]


@pytest.mark.thorough
def test_sections_come_in_the_order_of_interest(searched: str) -> None:
    assert Outline(searched).headings == [
        "Results",
        "Course of training",
        "Settings and what came of them",
        "Importance of settings",
        "What it costs",
        "Geometry beside accuracy",
    ]
    assert Outline(page(zoo())).headings[2:] == ["Trade-off", "What it costs", "Geometry beside accuracy"]
    assert "Lineage" in Outline(page(population())).headings


@pytest.mark.thorough
def test_the_contents_lead_to_every_section(searched: str) -> None:
    links = re.findall(r'<a href="#([\w-]+)">(.*?)</a></li>', searched)
    assert [title for _, title in links] == Outline(searched).headings
    assert all(searched.count(f'<section id="{name}"') == 1 for name, _ in links)


@pytest.mark.thorough
def test_nothing_is_loaded_from_elsewhere_and_only_the_page_s_own_script_runs(searched: str) -> None:
    outline = Outline(searched)
    sources = [value for name, value in outline.attributes if name in ("src", "srcset", "data", "xlink:href")]
    assert all(value.startswith("data:image/") for value in sources)
    links = {value for name, value in outline.attributes if name == "href" and not value.startswith("#")}
    assert links, "the runs that are finished"
    assert all(re.fullmatch(r"trial_\w+/report\.html", link) for link in links)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\((?!#)", searched)
    assert "script-src 'sha256-" in searched
    assert searched.count("unsafe-inline") == 1, "of styles alone"


def test_rows_stand_in_the_page_itself_the_best_first() -> None:
    rows = cells(page(zoo(["simclr", "moco", "sinkhorn"])))
    assert [row[0] for row in rows] == ["1", "2", "3"]
    values = [float(row[2].split()[0]) for row in rows]
    assert values == sorted(values, reverse=True)
    two = next(row for row in rows if "simclr" in row[1])
    assert re.fullmatch(r"[\d.]+ +± [\d.]+ +[\d.]+ to [\d.]+", two[2])
    broken = next(row for row in rows if "sinkhorn" in row[1])
    assert "1 failed" in " ".join(broken)
    assert "RuntimeError: singular matrix" in " ".join(broken)
    assert "1 of 2" in broken


@pytest.mark.thorough
def test_the_head_counts_the_trials_and_tells_the_time_and_the_command() -> None:
    text = Outline(page(asha(12, state="running"))).text
    for words in ("12 trials", "8 stopped", "1 running", "1 failed", "search random", "scheduler asha"):
        assert words in text, words
    assert "raysl sweep sweep/quickstart trials=12" in text
    assert "knn_k20_top1 (more is better)" in text
    waiting = board([entry(0, 80.0)], trials=5, state="running")
    assert "4 waiting" in Outline(page(waiting)).text


def test_a_page_of_a_sweep_that_runs_is_loaded_again_and_of_one_that_is_done_is_not(searched: str) -> None:
    live = page(asha(12, state="running"), reload_s=7)
    assert '<noscript><meta http-equiv="refresh" content="7"></noscript>' in live
    assert 'data-reload="7"' in live
    assert 'http-equiv="refresh"' not in searched
    assert "data-reload=" not in searched


def test_hostile_text_stays_text() -> None:
    runs = [
        entry(0, 90.0, config=HOSTILE, settings={HOSTILE: HOSTILE}, reason=HOSTILE, status="failed"),
        entry(1, 80.0, config="other", settings={HOSTILE: "x"}, course={HOSTILE: [(1.0, 2.0), (2.0, 3.0)]}),
    ]
    found = board(runs, name=HOSTILE, command=HOSTILE, space=HOSTILE, search=HOSTILE)
    text = page(found, configs={"best_1.yaml": HOSTILE})
    outline = Outline(text)
    assert text.count("<script") == 1
    assert "img" not in outline.tags
    assert not [name for name, _ in outline.attributes if name.startswith("on")]
    assert outline.text.count(HOSTILE) >= 8


@pytest.mark.parametrize(
    "found", [board([]), board([entry(0)]), board([entry(0, status="failed", reason="x")]), single()]
)
def test_little_is_shown_of_a_sweep_that_has_little(found: Leaderboard) -> None:
    outline = Outline(page(found))
    assert "None" not in outline.text.replace("none", "")
    assert "nan" not in outline.text.lower().split()
    assert "Importance of settings" not in outline.headings
    assert "What it costs" not in outline.headings


def test_a_setting_that_all_rows_share_is_in_no_name_of_a_row() -> None:
    varied = [{"optim.lr": rate, "method.temperature": 0.2} for rate in (0.1, 0.3)]
    found = board([entry(number, 50 + number, settings=settings) for number, settings in enumerate(varied)])
    assert [row_name(row) for row in found.choices] == ["lr 0.3", "lr 0.1"]
    alone = board([entry(0, 50, settings=varied[0])])
    assert [row_name(row) for row in alone.choices] == ["lr 0.1, temperature 0.2"], "of one row all tell something"


def test_the_same_leaderboard_gives_the_same_page(searched: str) -> None:
    assert page(asha()) == searched


def test_ids_are_unique_and_colours_have_a_light_and_a_dark_value(searched: str) -> None:
    ids = re.findall(r'\bid="([^"]+)"', searched)
    assert len(ids) == len(set(ids))
    used = set(re.findall(r"var\((--\w+)\)", searched))
    assert {"--best1", "--best2", "--best3", "--low", "--high"} <= used
    for name in used:
        assert len(re.findall(rf"[ {{]{name}:", searched)) == 2, name


@pytest.mark.thorough
def test_a_thousand_runs_make_a_page_of_few_megabytes() -> None:
    line = [(step / 10, 1 / (1 + step)) for step in range(1000)]
    runs = [
        entry(index, 50 + index % 37, course=dict.fromkeys(("loss", "knn_k20_top1", "lr", "a", "b", "c", "d"), line))
        for index in range(1000)
    ]
    found = board(runs)
    text = page(found)
    assert len(text) < 4_000_000
    paths = re.findall(r'<path d="(M[^"]+)" class="curve \w+" data-row', text)
    assert len(paths) == 1000 * 7
    assert sum(path.count("L") + 1 for path in paths) <= MOST_POINTS


def test_thin_lines_keep_both_ends_and_drop_what_is_not_finite() -> None:
    line = [(float(step), float(step) ** 2) for step in range(1001)]
    points = finite_points(line, 100)
    assert len(points) == 100
    assert (points[0], points[-1]) == ((0.0, 0.0), (1000.0, 1_000_000.0))
    assert finite_points([(1.0, 2.0), (2.0, float("nan")), (3.0, 4.0)], 100) == [(1.0, 2.0), (3.0, 4.0)]


def test_curves_begin_with_the_objective_and_end_with_what_is_no_line() -> None:
    lines = {name: [(1.0, 1.0), (2.0, 2.0)] for name in ("zeta", "loss", "seconds")}
    runs = [entry(0, 1.0, course={**lines, "knn_k20_top1": [(2.0, 1.0)]}), entry(1, 1.0, course={"loss": [(1.0, 1.0)]})]
    assert curve_names(runs, [Objective("knn_k20_top1")]) == ["loss", "zeta", "knn_k20_top1"]
    assert curve_names(runs, [Objective("zeta", "min")]) == ["zeta", "loss", "knn_k20_top1"]


def test_each_row_has_its_mark_in_every_drawing_with_what_a_pointer_is_told(searched: str) -> None:
    rows = {str(place) for place in range(len(asha().choices))}
    for name in ("curves", "parallel", "cost"):
        section = searched[searched.index(f'<section id="{name}"') :]
        drawing = section[: section.index("</svg>", section.index('class="chart"'))]
        assert set(re.findall(r'data-row="(\d+)"', drawing)) == rows, name
    first = asha().choices[0]
    value = spelled(first.numbers["knn_k20_top1"].mean)
    name = first.runs[0].trial.removeprefix("trial_")
    assert f"<title>{name}\nknn_k20_top1 {value} at epoch 60\nfinished, rank 1</title>" in searched
    assert 'data-settings="optim.lr ' in searched


def test_axes_are_logarithmic_where_drawn_so_or_wide_and_names_are_categories() -> None:
    rows = [
        entry(
            0, 1.0, config="a", settings={"lr": 0.1, "wide": 1e-4, "fixed": 3, "kind": "x", "near": 0.2, "odd": True}
        ),
        entry(1, 2.0, config="b", settings={"lr": 0.2, "wide": 1e-1, "fixed": 3, "kind": "y", "near": 0.3}),
    ]
    found = axes(board(rows).choices, "space:\n  lr: {loguniform: [0.1, 1]}\n  near: {uniform: [0, 1]}")
    assert {axis.key: axis.kind for axis in found} == {
        "config": "category",
        "lr": "log",
        "wide": "log",
        "kind": "category",
        "near": "linear",
        "odd": "category",
    }
    odd = next(axis for axis in found if axis.key == "odd")
    assert [odd.position(row) for row in board(rows).choices] == [None, 0.0], "the better row has it not"
    assert axes(board(rows[:1]).choices) == []


def made(num: int, noise: bool = False) -> Leaderboard:
    """Rows whose number is the logarithm of one setting, or of no setting."""
    runs = []
    for index in range(num):
        lr, name = 10.0 ** -(index % 5), "abc"[index % 3]
        value = float(hash((index, "x")) % 100) if noise else 10.0 * (index % 5)
        runs.append(entry(index, value, settings={"lr": lr, "kind": name, "at": float(index)}))
    return board(runs)


@pytest.mark.thorough
def test_the_setting_that_decides_has_the_importance() -> None:
    rows = made(40).choices
    found = importance(rows, axes(rows), "knn_k20_top1")
    assert found is not None
    assert found.num == 40
    assert found.fit > 0.9
    assert found.settings[0][0] == "lr"
    assert found.settings[0][1] > 10 * max(mean for name, mean, _ in found.settings if name != "lr")
    assert importance(rows, axes(rows), "knn_k20_top1") is found, "learned once"
    _of_forest.cache_clear()
    assert importance(rows, axes(rows), "knn_k20_top1") == found, "the same each time"


@pytest.mark.thorough
def test_importance_is_not_told_of_few_rows_nor_of_what_the_settings_do_not_decide() -> None:
    rows = made(9).choices
    assert importance(rows, axes(rows), "knn_k20_top1") is None
    assert "It takes 10 rows with different numbers of knn_k20_top1 to tell; there are 9" in Outline(page(made(9))).text
    values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6, 5.0, 3.5, 8.9, 7.9, 3.2, 3.8]
    aimless = board(
        [entry(i, value, settings={"a": i % 2, "b": i % 3, "c": i * 7 % 12}) for i, value in enumerate(values)]
    )
    found = importance(aimless.choices, axes(aimless.choices), "knn_k20_top1")
    assert found is not None
    assert found.fit <= 0
    assert found.settings == ()
    assert (
        "does not predict knn_k20_top1 from the settings better than the mean does (n = 12"
        in Outline(page(aimless)).text
    )


def test_a_population_is_stretches_on_the_lines_of_its_members() -> None:
    found = lineage(population().entries)
    assert {one.lane for one in found} == set(range(6))
    assert len(found) == 30
    for one in found:
        assert one.end - one.start == 4.0
        assert (one.parent is None) == (one.start == 0)
    lanes = {one.run.trial: one.lane for one in found}
    assert any(one.parent and lanes[one.parent.trial] != one.lane for one in found)
    assert lineage(asha().entries) == []


def test_runs_take_the_line_of_their_parent_or_the_first_that_is_free() -> None:
    runs = [
        entry(0, 10.0, epoch=2.0),
        entry(1, 20.0, epoch=2.0),
        entry(2, 30.0, epoch=4.0, parents=[("trial_00000001", 2.0)]),
        entry(3, 40.0, epoch=4.0, parents=[("trial_00000001", 2.0)]),
        entry(4, parents=[("trial_00000001", 2.0)]),
    ]
    assert [(one.run.index, one.lane) for one in lineage(runs)] == [(0, 0), (1, 1), (2, 1), (3, 0)]


def two_rows(**changes: object) -> Leaderboard:
    """Two choices of a learning rate, each with a curve."""
    fields = {"course": {"loss": [(1.0, 2.0), (4.0, 1.0)]}, "costs": {"seconds": 33.0, "memory_gb": 1.4}} | changes
    return board([entry(0, 50.0, **fields), entry(1, 40.0, **fields)])


def test_the_legend_of_two_rows_tells_them_by_what_varies() -> None:
    text = page(two_rows())
    keys = re.sub(r"<[^>]+>", "", re.findall(r'<span class="keys">(.*?)</span><div', text, re.DOTALL)[0])
    assert keys.split() == ["1:", "lr", "0.1", "2:", "lr", "1.1"]
    assert "others" not in keys


def test_the_colours_of_two_rows_are_those_of_their_own_numbers() -> None:
    shades = Shades(two_rows())
    assert (shades.bad, shades.good, shades.has_worse) == (40.0, 50.0, False)
    assert Shades(asha()).has_worse


def test_costs_are_columns_that_the_script_hides_until_they_are_asked_for() -> None:
    text = page(two_rows())
    heads = re.findall(r'<th scope="col" class="([^"]*)"[^>]*>(.*?)</th>', text)
    assert [re.sub("<wbr>", "", title) for kind, title in heads if "more" in kind] == ["seconds", "memory, GB"]
    assert text.count('class="number more"') == 3 * 2, "with their cells"
    assert '<input type="checkbox" id="more">' in text
    assert 'id="more"' not in page(two_rows(costs={}))


def test_a_number_that_one_row_alone_has_gets_no_drawing_of_its_own() -> None:
    first = {"knn_k20_top1": 50.0, "geometry/rankme": 4.0}
    found = board([entry(0, 50.0, metrics=first), entry(1, 40.0)])
    assert "Geometry beside accuracy" not in Outline(page(found)).headings
    assert "Course of training" not in Outline(page(two_rows(course={"loss": [(1.0, math.nan)]}))).headings
