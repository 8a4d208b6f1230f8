"""leaderboard.html in a real browser: what its script does, and that it fits a phone and the dark."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raysl.leaderboard.entry import Objective
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.leaderboard.page.leaderboard_page import page
from raysl.leaderboard.page.lineage import lineage
from tests.leaderboard.boards import LOSS, asha, board, entry, population, zoo

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium, of the extra dev")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="needs a browser: apt-get install chromium chromium-driver"
)
PATIENCE_S = 30


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER or ""
    for word in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1400,900"):
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
    yield driver
    driver.quit()


Show = Callable[..., Any]


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Show]:
    """Opens a leaderboard's page, of some width, light or dark; afterwards the console is empty."""

    def opened(found: Leaderboard, width: int = 1400, mode: str = "light", **told: Any) -> Any:
        path = tmp_path / "leaderboard.html"
        path.write_text(page(found, **told))
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        media = {"features": [{"name": "prefers-color-scheme", "value": mode}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        browser.get(path.as_uri())
        ready(browser)
        return browser

    yield opened
    complaints = [line["message"] for line in browser.get_log("browser")]
    browser.get("about:blank")
    assert complaints == []


def ready(browser: Any) -> None:
    wait(browser, lambda: browser.execute_script("return document.documentElement.dataset.ready") == "yes")


def wait(browser: Any, is_so: Callable[[], bool]) -> None:
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.support.ui import WebDriverWait

    # a page that reloads may take away an element while it is read
    reloading = [StaleElementReferenceException]
    WebDriverWait(browser, PATIENCE_S, poll_frequency=0.05, ignored_exceptions=reloading).until(lambda _: is_so())


def column(browser: Any, title: str, shown_only: bool = True) -> list[str]:
    """First lines of the cells of a column, by the beginning of its heading, in the order of the rows."""
    script = """
    const heads = [...document.querySelectorAll('.board thead th')];
    const place = heads.findIndex((head) => head.textContent.startsWith(arguments[0]));
    const rows = [...document.querySelectorAll('.board tr[data-row]')].filter((row) => !row.hidden || !arguments[1]);
    return rows.map((row) => row.cells[place].innerText.split('\\n')[0]);
    """
    told = browser.execute_script(script, title, shown_only)
    assert isinstance(told, list)
    return told


def shown(browser: Any, selector: str) -> int:
    """Number of elements that have a place on the page."""
    script = "return [...document.querySelectorAll(arguments[0])].filter(e => e.getClientRects().length).length"
    return int(browser.execute_script(script, selector))


def heading(browser: Any, title: str) -> Any:
    buttons = browser.find_elements("css selector", ".board thead button")
    return next(button for button in buttons if button.text.startswith(title))


def way(browser: Any, title: str) -> str:
    return str(heading(browser, title).find_element("xpath", "..").get_attribute("aria-sort"))


def point_at(browser: Any, selector: str) -> str:
    """Move the pointer to the middle of the first element there; return what is told beside it."""
    from selenium.webdriver.common.action_chains import ActionChains

    element = browser.find_element("css selector", selector)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    ActionChains(browser, duration=20).move_to_element(element).perform()
    return str(browser.execute_script("const t = document.getElementById('tip'); return t.hidden ? '' : t.innerText"))


def test_a_click_on_a_heading_sorts_by_numbers_and_again_turns_them_round(show: Show) -> None:
    browser = show(asha())
    drawn = [float(value) for value in column(browser, "optim.lr")]
    assert way(browser, "#") == "ascending"
    heading(browser, "optim.lr").click()
    assert [float(value) for value in column(browser, "optim.lr")] == sorted(drawn, reverse=True)
    assert (way(browser, "optim.lr"), way(browser, "#")) == ("descending", "none")
    heading(browser, "optim.lr").click()
    assert [float(value) for value in column(browser, "optim.lr")] == sorted(drawn)
    assert way(browser, "optim.lr") == "ascending"


def test_the_keyboard_sorts_too_and_rows_without_the_number_stay_last(show: Show) -> None:
    runs = [entry(0, 80.0), entry(1), entry(2, 90.0), entry(3, 70.0)]
    browser = show(board(runs))
    for turn in range(2):
        heading(browser, "knn_k20_top1").send_keys("\ue007")  # enter
        told = column(browser, "knn_k20_top1")
        assert told[-1] == ""
        assert [float(value) for value in told[:3]] == sorted((90.0, 80.0, 70.0), reverse=turn == 0)


def test_the_table_fits_and_a_box_shows_the_costs(show: Show) -> None:
    wide = "const box = document.querySelector('#results .wide'); return box.scrollWidth <= box.clientWidth"
    browser = show(zoo())
    assert browser.execute_script(wide)
    box = browser.find_element("id", "more")
    hidden = "return [...document.querySelectorAll('.board .more')].every((cell) => !cell.offsetParent)"
    assert browser.execute_script(hidden)
    box.click()
    assert not browser.execute_script(hidden)
    browser.refresh()
    ready(browser)
    assert browser.find_element("id", "more").is_selected()


def test_words_configurations_and_statuses_filter_rows_and_drawings(show: Show) -> None:
    from selenium.webdriver.support.ui import Select

    browser = show(zoo(["simclr", "moco", "moco_v3", "sinkhorn"]))
    assert shown(browser, "#curves .drawing .curve") == 7
    field = browser.find_element("id", "filter")
    field.send_keys("MOCO finished")
    assert sorted(column(browser, "run")) == ["digits/moco", "digits/moco_v3"]
    assert browser.find_element("id", "count").text == "2 of 4 rows"
    assert shown(browser, "#curves .drawing .curve") == 4
    field.clear()
    field.send_keys(" ")
    Select(browser.find_element("id", "status")).select_by_visible_text("failed")
    assert column(browser, "run") == ["digits/sinkhorn"]
    Select(browser.find_element("id", "status")).select_by_visible_text("all")
    Select(browser.find_element("id", "config")).select_by_visible_text("digits/moco")
    assert column(browser, "run") == ["digits/moco"]


def test_pointing_at_a_line_names_it_and_lights_its_row(show: Show) -> None:
    found = asha()
    browser = show(found)
    name = found.choices[0].runs[0].trial.removeprefix("trial_")
    told = point_at(browser, "#curves circle.best1")
    assert told.splitlines()[0] == name
    assert "knn_k20_top1 92." in told
    assert "at epoch 60" in told
    assert browser.execute_script("return document.querySelector('.board tr.lit').dataset.row") == "0"
    assert "optim.lr" in told
    assert len(browser.find_elements("css selector", "#parallel path.over")) == 1
    point_at(browser, "h1")
    assert not browser.find_elements("css selector", "tr.lit")


def test_pointing_at_a_row_lights_its_line_in_all_drawings(show: Show) -> None:
    browser = show(asha())
    point_at(browser, ".board tbody tr:nth-child(4) td")
    for name in ("curves", "parallel", "cost"):
        lit = browser.execute_script(f"return [...document.querySelectorAll('#{name} .over')].map(e => e.dataset.row)")
        assert lit, name
        assert set(lit) == {"3"}


@pytest.mark.parametrize("name", ["parallel", "cost", "geometry"])
def test_every_drawing_names_what_is_pointed_at(show: Show, name: str) -> None:
    browser = show(asha())
    mark = ".dot.best1" if name != "parallel" else ".thread"
    assert "knn_k20_top1" in point_at(browser, f"#{name} {mark}")


def test_the_front_joins_finished_rows_that_nothing_beats(show: Show) -> None:
    points = [(90.0, 3.0), (80.0, 1.0), (85.0, 2.0), (84.0, 2.5), (95.0, 0.5)]
    runs = [entry(place, a, metrics={"knn_k20_top1": a, "loss": b}) for place, (a, b) in enumerate(points)]
    runs[4] = replace(runs[4], status="stopped")
    browser = show(board(runs, Objective("knn_k20_top1"), LOSS))
    path = browser.find_element("css selector", "#front .front").get_attribute("d")
    corners = {tuple(corner.split()) for corner in path[1:].split("L")}
    dots = browser.execute_script(
        "return [...document.querySelectorAll('#front .dot')]"
        ".map(d => [d.dataset.row, Number(d.getAttribute('cx')).toFixed(1), Number(d.getAttribute('cy')).toFixed(1)])"
    )
    assert {row for row, *place in dots if tuple(place) in corners} == {"0", "1", "3"}


def test_a_population_shows_whose_weights_were_copied(show: Show) -> None:
    found = population()
    browser = show(found)
    lanes = {one.run.trial: one.lane for one in lineage(found.entries)}
    copies = {run.trial for run in found.entries if run.parents and lanes[run.parents[0][0]] != lanes[run.trial]}
    assert len(browser.find_elements("css selector", "#lineage .copied")) == len(copies) > 0
    assert len(browser.find_elements("css selector", "#lineage .stretch")) == 30
    assert "weights of" in point_at(browser, "#lineage .stretch[data-row='0']")


def test_another_metric_and_the_clock_draw_other_curves(show: Show) -> None:
    from selenium.webdriver.support.ui import Select

    def drawn() -> tuple[str, list[str]]:
        (drawing,) = browser.find_elements("css selector", "#curves .drawing:not([hidden])")
        path = drawing.find_element("css selector", ".curve.best1").get_attribute("d")
        return str(path), [text.text for text in drawing.find_elements("css selector", ".title")]

    browser = show(asha())
    first = drawn()
    assert set(first[1]) == {"epochs", "knn_k20_top1"}
    Select(browser.find_element("id", "curves-0")).select_by_visible_text("loss")
    second = drawn()
    assert set(second[1]) == {"epochs", "loss"}
    assert second[0] != first[0]
    Select(browser.find_element("id", "curves-1")).select_by_visible_text("seconds")
    assert set(drawn()[1]) == {"minutes", "loss"}


def test_a_reload_keeps_sorting_filter_chosen_metric_and_place(show: Show) -> None:
    from selenium.webdriver.support.ui import Select

    browser = show(asha(40))
    heading(browser, "optim.lr").click()
    browser.find_element("id", "filter").send_keys("stopped")
    Select(browser.find_element("id", "curves-0")).select_by_visible_text("loss")
    browser.execute_script("window.scrollTo(0, 700)")
    before = (column(browser, "optim.lr"), browser.execute_script("return window.scrollY"))
    browser.refresh()
    ready(browser)
    assert (column(browser, "optim.lr"), browser.execute_script("return window.scrollY")) == before
    assert browser.find_element("id", "filter").get_attribute("value") == "stopped"
    assert Select(browser.find_element("id", "curves-0")).first_selected_option.text == "loss"
    assert way(browser, "optim.lr") == "descending"


def test_the_page_of_a_running_sweep_reloads_itself_until_the_sweep_is_done(show: Show, tmp_path: Path) -> None:
    running = replace(asha(12, state="running").facts, written=time.time())
    browser = show(replace(asha(12, state="running"), facts=running), reload_s=0.5)
    assert "The sweep runs" in browser.find_element("tag name", "body").text
    # at once, as a sweep writes it: a browser that reads half a page waits for the other half for ever
    (tmp_path / "done.html").write_text(page(asha(), reload_s=0.5))
    (tmp_path / "done.html").replace(tmp_path / "leaderboard.html")
    wait(browser, lambda: "The sweep runs" not in browser.find_element("tag name", "body").text)
    ready(browser)
    born = browser.execute_script("return performance.timeOrigin")
    busy = "const end = arguments[0]; setTimeout(() => end(performance.timeOrigin), 1300)"
    assert browser.execute_async_script(busy) == born, "it is loaded no more"


def test_the_page_of_a_sweep_that_was_cut_off_or_stopped_does_not_say_that_it_runs(show: Show) -> None:
    cut_off = show(asha(12, state="running")).find_element("id", "live").text
    assert "has written nothing since" in cut_off
    stopped = show(asha(12, state="stopped")).find_element("id", "live").text
    assert stopped == "The sweep was stopped before its end. The command that started it runs the trials that are left."


@pytest.mark.parametrize("name", ["asha", "zoo", "population"])
def test_a_phone_scrolls_down_only(show: Show, name: str) -> None:
    browser = show({"asha": asha, "zoo": zoo, "population": population}[name](), width=390)
    width, num = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert width == num == 390
    tall = browser.execute_script(
        "return [...document.querySelectorAll('.drawing:not([hidden]) > svg')].map(s => s.clientHeight)"
    )
    assert min(tall) > 200


def test_the_dark_has_colours_of_its_own(show: Show) -> None:
    script = """
    const of = (selector, name) => getComputedStyle(document.querySelector(selector))[name];
    return [of('body', 'backgroundColor'), of('body', 'color'), of('.curve.best1', 'stroke'), of('.tick', 'fill')];
    """
    light = show(asha()).execute_script(script)
    dark = show(asha(), mode="dark").execute_script(script)
    assert all(one != other for one, other in zip(light, dark, strict=True))
    paper, ink = (sum(map(int, colour[4:-1].split(","))) for colour in dark[:2])
    assert paper < 150 < 600 < ink


def test_the_rows_and_the_first_drawings_stand_there_without_a_script(show: Show, browser: Any, tmp_path: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        (tmp_path / "plain.html").write_text(page(zoo(["simclr", "moco"])))
        browser.get((tmp_path / "plain.html").as_uri())
        text = browser.find_element("css selector", ".board tbody").text
        assert "digits/simclr" in text
        assert "digits/moco" in text
        assert not browser.find_element("css selector", ".tools").is_displayed()
        drawings = browser.find_elements("css selector", "#curves .drawing")
        assert [drawing.is_displayed() for drawing in drawings] == [True] + [False] * (len(drawings) - 1)
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_configurations_unfold_and_are_copied_or_chosen(show: Show) -> None:
    configs = {"best_1.yaml": "name: one\nseed: 0\n"}
    browser = show(asha(), configs=configs)
    browser.find_element("css selector", "#config1 summary").click()
    assert browser.find_element("css selector", "#config1 pre").text == "name: one\nseed: 0"
    button = browser.find_element("css selector", "#config1 .copy")
    button.click()
    wait(browser, lambda: button.text in ("Copied", "Selected"))
    if button.text == "Selected":
        assert browser.execute_script("return getSelection().toString()").startswith("name: one")


@pytest.mark.parametrize("num", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_runs_are_drawn_and_sorted_in_a_moment(show: Show, num: int) -> None:
    line = [(float(step), 90 - 80 / (1 + step)) for step in range(60)]
    runs = [entry(index, 50 + index * 7 % 40, course={"knn_k20_top1": line, "loss": line}) for index in range(num)]
    browser = show(board(runs))
    script = """
    const begun = performance.now();
    document.querySelector('.board thead button:not(#sort0)').click();
    document.getElementById('filter').value = '7';
    document.getElementById('filter').dispatchEvent(new Event('input'));
    return performance.now() - begun;
    """
    assert browser.execute_script(script) < 10_000, "milliseconds, on a machine with other work"
    assert os.path.getsize(browser.current_url.removeprefix("file://")) < 4_000_000


def test_raw_pixels_and_untrained_networks_are_lines_across_the_charts_and_stay_below_the_rows(show: Show) -> None:
    measured = {"knn/k20/top1/pixels": 96.06, "knn/k20/top1/untrained": 41.0}
    found = asha()
    runs = [replace(run, metrics=run.metrics | measured) for run in found.entries]
    browser = show(replace(found, entries=runs))
    for name in ("curves", "cost"):
        told = [
            text.text for text in browser.find_elements("css selector", f"#{name} .drawing:not([hidden]) text.halo")
        ]
        assert {"raw pixels 96.06", "untrained 41"} <= set(told), name
        assert shown(browser, f"#{name} .reference") == 2, name
    heading(browser, "knn_k20_top1").click()
    browser.find_element("id", "filter").send_keys("nothing has this")
    assert column(browser, "run") == []
    assert browser.find_element("css selector", ".board tfoot").text.split() == [
        *("raw", "pixels", "96.06", "96.06"),
        *("untrained", "41", "41"),
    ]


def sections(num: int = 3) -> Leaderboard:
    """Runs of several datasets, with many numbers."""
    names = ("knn/k20/top1", "knn/k20/top5", "knn/k200/top1", "linear/top1", "low_shot/5_shot")
    runs = []
    for index in range(num * 3):
        value, dataset = 50.0 + 7 * (index * 5 % 6), f"photos {index % num}, 1,000 images"
        runs.append(
            entry(
                index,
                value,
                metrics={"knn_k20_top1": value, **dict.fromkeys(names, value)},
                settings={"method": "barlow_twins", "backbone": "resnet", "dataset": dataset},
                config=f"a_run_with_a_long_name_{index}",
                dataset=dataset,
                course={"knn_k20_top1": [(float(at), value * at / 4) for at in range(5)]},
            )
        )
    return board(runs, kind="runs")


def test_each_section_is_sorted_by_itself_and_keeps_its_title(show: Show) -> None:
    browser = show(sections())
    heading(browser, "knn_k20_top1").click()
    script = """
    return [...document.querySelectorAll('.board tbody')].map((body) => [body.rows[0].textContent,
      ...[...body.querySelectorAll('tr[data-row]')].map((row) => Number(row.cells[2].dataset.by))]);
    """
    for title, *values in browser.execute_script(script):
        assert title.startswith("photos ")
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
    assert browser.execute_script("return document.querySelectorAll('[id^=curves] .drawing .curve').length") == 9


def test_a_table_of_runs_fits_a_wide_screen_and_says_on_a_narrow_one_that_it_scrolls(show: Show) -> None:
    wide = "const box = document.querySelector('#results .wide'); return box.scrollWidth <= box.clientWidth"
    browser = show(sections())
    assert browser.execute_script(wide)
    assert shown(browser, ".sideways") == 0
    browser.find_element("id", "more").click()
    assert column(browser, "linear/top1"), "what had no room is there when it is asked for"
    browser.execute_script("sessionStorage.clear()")
    browser = show(sections(), width=390)
    # the drawings of three sections and the table
    wait(browser, lambda: shown(browser, ".sideways") >= 4)
    cut = """
    return [...document.querySelectorAll('.wide, .drawing')].filter((part) => part.getClientRects().length)
      .filter((part) => part.scrollWidth > part.clientWidth + 1 && part.previousElementSibling.hidden).length
    """
    assert browser.execute_script(cut) == 0, "nothing is cut without a word"
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
