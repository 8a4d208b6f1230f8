"""The page over all runs of a storage."""

import http.client
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raysl.benchmarks.suite.protocols import stored_protocols
from raysl.cli import app
from raysl.config.dump import dump
from raysl.config.load import load_config
from raysl.data.dataset_note import DatasetNote
from raysl.errors import ConfigError
from raysl.leaderboard.entry import Objective
from raysl.leaderboard.of_runs import RunsPage
from raysl.leaderboard.serve import RunsServer
from raysl.runs.folder import RunFolder
from raysl.storage.owner import own_folder
from tests.leaderboard.test_run_list import make_run


def with_seed(run: Path, seed: int) -> Path:
    settings = (run / "run.yaml").read_text()
    assert "seed: 0\n" in settings
    (run / "run.yaml").write_text(settings.replace("seed: 0\n", f"seed: {seed}\n"))
    return run


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Two seeds of one run, another method, one that failed, one that was cut off and one that has not begun."""
    make_run(tmp_path / "a", 4.0, end="finished", knn_k20_top1=80.0)
    with_seed(make_run(tmp_path / "b", 4.0, end="finished", knn_k20_top1=84.0), 1)
    make_run(tmp_path / "deep" / "c", 4.0, "byol", end="finished", knn_k20_top1=90.0)
    (tmp_path / "deep" / "c" / "report.html").write_text("<p>a page</p>")
    with_seed(make_run(tmp_path / "failed", 1.0, end="failed"), 2)
    with_seed(make_run(tmp_path / "cut", 2.5), 3)
    with_seed(make_run(tmp_path / "new"), 4)
    return tmp_path


def test_runs_that_differ_in_their_seed_share_a_row_and_the_best_is_first(storage: Path) -> None:
    board = RunsPage(str(storage)).board()
    first, second = board.choices[:2]
    assert (first.config, first.value("knn_k20_top1"), first.settings["method"]) == ("deep/c", 90.0, "byol")
    assert (second.config, second.value("knn_k20_top1"), [run.trial for run in second.counted]) == (
        "a",
        82.0,
        ["a", "b"],
    )
    statuses = {entry.trial: (entry.status, entry.reason) for entry in board.entries}
    assert statuses["failed"] == ("failed", "failed because")
    assert statuses["cut"][0] == "stopped"
    assert "the command that started it goes on" in statuses["cut"][1]
    assert statuses["new"] == ("waiting", "")


def of(storage: Path, name: str, knn: str, dataset: str = "digits", **metrics: float) -> None:
    """A finished run of a dataset with a `knn` benchmark of its own."""
    folder = make_run(storage / name, 4.0, end="finished", **metrics)
    (folder / "run.yaml").write_text(dump(load_config("digits/simclr", ["benchmarks=[]", f"benchmarks.knn={knn}"])))
    note = DatasetNote(fingerprint=dataset, num_samples=len(dataset), num_classes=10, epoch_len=10)
    (folder / "dataset.json").write_text(json.dumps(asdict(note)))
    (folder / "report.json").write_text(json.dumps({"metrics": {"knn/k20/top1": metrics["knn_k20_top1"] + 1}}))


def test_intervals_of_shares_end_at_100_percent_and_those_of_one_run_are_its_reports(tmp_path: Path) -> None:
    parts = {"trained": 98.0, "interval": [97.0, 99.0], "unit": "%"}
    scores = [{"benchmark": "svm", "metric": "map", **parts}, {"benchmark": "geometry", "metric": "rank", **parts}]
    scores[1]["unit"] = ""
    for name, value in (("a", 90.0), ("b", 98.0)):
        of(tmp_path, name, "{}", knn_k20_top1=value)
        metrics = {"svm/map": value, "geometry/rank": value}
        (tmp_path / name / "report.json").write_text(json.dumps({"metrics": metrics, "scores": scores}))
    (row,) = RunsPage(str(with_seed(tmp_path / "b", 1).parent)).board().rows
    assert (row["svm/map"], row["svm/map: low"] < 94, row["svm/map: high"]) == (94.0, True, 100.0)
    assert row["geometry/rank: high"] > 100
    (row,) = RunsPage(str(tmp_path), where=["name=b"]).board().rows
    assert (row["svm/map: low"], row["svm/map: high"]) == (97.0, 99.0)


def ranked(storage: Path) -> dict[str, list[str]]:
    """Names of the runs by the titles of the sections, the best first."""
    board = RunsPage(str(storage), protocols=stored_protocols).board()
    return {section.title: [row.runs[0].trial for row in section.choices] for section in board.sections}


def test_runs_whose_lists_of_k_are_in_another_order_rank_equal_metrics_together(tmp_path: Path) -> None:
    of(tmp_path, "one", "{k: [20, 200]}", knn_k20_top1=80.0, knn_k200_top1=92.0)
    of(tmp_path, "two", "{k: [200, 20]}", knn_k20_top1=85.0, knn_k200_top1=70.0)
    of(tmp_path, "three", "{k: [20]}", knn_k20_top1=82.0)
    assert ranked(tmp_path) == {"": ["two", "three", "one"]}


@pytest.mark.thorough
def test_runs_with_another_protocol_are_ranked_apart_and_the_page_says_so(tmp_path: Path) -> None:
    of(tmp_path, "warm", "{k: [20], temperature: 0.1}", knn_k20_top1=95.0)
    of(tmp_path, "one", "{k: [20, 200]}", knn_k20_top1=80.0)
    of(tmp_path, "two", "{k: [200, 20]}", knn_k20_top1=85.0)
    assert ranked(tmp_path) == {
        "knn_k20_top1: default settings": ["two", "one"],
        "knn_k20_top1: temperature=0.1": ["warm"],
    }
    text = RunsPage(str(tmp_path), protocols=stored_protocols).html()
    assert "Rows are ranked within a section: numbers of other images or protocols cannot be compared." in text
    assert "<h3>The best of knn_k20_top1: temperature=0.1</h3>" in text
    by_loss = RunsPage(str(tmp_path), objective=Objective("loss", "min"), protocols=stored_protocols)
    assert [section.title for section in by_loss.board().sections] == [""], "the loss has no such protocol"
    mixed = "not to be compared: knn/k20/top1 (default settings; temperature=0.1)"
    assert mixed in by_loss.html()


@pytest.mark.thorough
def test_each_dataset_has_a_section_and_a_column_and_a_best_run_of_its_own(tmp_path: Path) -> None:
    of(tmp_path, "easy", "{k: [20]}", "flowers", knn_k20_top1=99.0)
    of(tmp_path, "one", "{k: [20]}", knn_k20_top1=80.0)
    of(tmp_path, "two", "{k: [20, 200]}", knn_k20_top1=85.0)
    assert ranked(tmp_path) == {"digits, 6 images": ["two", "one"], "digits, 7 images": ["easy"]}
    pages = RunsPage(str(tmp_path), protocols=stored_protocols)
    rows = pages.board().rows
    assert [(row["section"], row["rank"], row["trial"]) for row in rows] == [
        ("digits, 6 images", 1, "two"),
        ("digits, 6 images", 2, "one"),
        ("digits, 7 images", 1, "easy"),
    ]
    assert [row["dataset"] for row in rows] == ["digits, 6 images"] * 2 + ["digits, 7 images"]
    text = pages.html()
    assert [text.count(f"The best of digits, {num} images") for num in (6, 7)] == [1, 1]
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    marks = re.findall(r'data-row="(\d+)"', text[text.index('id="curves-2"') :].partition("</section>")[0])
    assert set(marks) == {"2"}, "the drawing of a section has its rows alone"


def test_runs_of_equal_settings_that_have_not_begun_are_of_the_same_dataset(tmp_path: Path) -> None:
    of(tmp_path, "one", "{k: [20]}", knn_k20_top1=80.0)
    waiting = make_run(tmp_path / "new")
    (waiting / "run.yaml").write_text((tmp_path / "one" / "run.yaml").read_text())
    assert list(ranked(tmp_path)) == [""]


def test_another_number_ranks_and_settings_have_columns_where_they_are_asked_for(storage: Path) -> None:
    pages = RunsPage(str(storage), ["state=finished"], ["optim.lr", "loss"], Objective("loss", "min"))
    board = pages.board()
    assert [entry.trial for entry in board.entries] == ["a", "b", "deep/c"]
    assert set(board.entries[0].settings) == {"method", "backbone", "optim.lr"}
    assert "ranked by <b>loss (less is better)</b>" in pages.html()


def test_curves_have_all_lines_and_a_changed_run_is_read_again(storage: Path) -> None:
    pages = RunsPage(str(storage), ["name=a"])
    (entry,) = pages.board().entries
    assert entry.course["knn_k20_top1"] == [(4.0, 80.0)]
    with (storage / "a" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 50, "epoch": 5.0, "knn_k20_top1": 81.0}) + "\n")
    (entry,) = pages.board().entries
    assert entry.course["knn_k20_top1"] == [(4.0, 80.0), (5.0, 81.0)]
    assert entry.course["seconds"] == [(4.0, 40 * 0.5)]
    assert entry.costs == {"step_s": 0.5}


def test_the_page_links_to_pages_that_are_there(storage: Path) -> None:
    text = RunsPage(str(storage)).html()
    assert 'href="deep/c/report.html"' in text
    assert 'href="a/report.html"' not in text
    assert "<b>6 runs</b>" in text
    assert "trial" not in text.partition("<script>")[0].partition("</style>")[2]


def test_the_command_writes_the_page_beside_the_runs(storage: Path) -> None:
    result = CliRunner().invoke(app, ["runs", str(storage), "--page", "--best", "knn_k20_top1"])
    assert (result.exit_code, result.output) == (0, f"page        {storage}/runs.html\n")
    assert (storage / "runs.html").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("words", [["--page", "--json"], ["--page", "--serve"]])
def test_ways_to_show_exclude_each_other(storage: Path, words: list[str]) -> None:
    result = CliRunner().invoke(app, ["runs", str(storage), *words])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == "--json, --page and --serve exclude each other; give one"


def test_a_storage_that_is_not_there_is_told_before_anything_is_served(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["runs", str(tmp_path / "none"), "--serve"])
    assert isinstance(result.exception, ConfigError)
    assert "there is no folder" in str(result.exception)


@contextmanager
def served(storage: Path) -> Iterator[RunsServer]:
    pages = RunsPage(str(storage))
    with RunsServer(pages, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def asked(server: RunsServer, path: str, host: str = "localhost:1") -> tuple[int, str, str]:
    client = http.client.HTTPConnection(*server.server_address[:2], timeout=20)
    client.request("GET", path, headers={"Host": host})
    answer = client.getresponse()
    found = answer.status, answer.getheader("Content-Security-Policy", ""), answer.read().decode()
    client.close()
    return found


@pytest.mark.cluster
def test_a_browser_on_this_machine_gets_the_page_as_it_is_and_reports_of_runs(storage: Path) -> None:
    busy = RunFolder(str(storage / "cut"))
    with own_folder(busy), served(storage) as server:
        assert server.url.startswith("http://127.0.0.1:")
        status, _, page = asked(server, "/")
        assert (status, "Runs go on." in page, "<b>6 runs</b>" in page) == (200, True, True)
        assert asked(server, "/deep/c/report.html") == (
            200,
            "default-src 'none'; img-src data:; style-src 'unsafe-inline'",
            "<p>a page</p>",
        )
        (storage / "report.html").write_text("of no run")
        (storage.parent / "report.html").write_text("of no run")
        for path in (
            "/report.html",
            "/../report.html",
            "/deep/c/../../report.html",
            "/a/report.html",
            "/deep/c/run.yaml",
        ):
            assert asked(server, path)[0] == 404
        assert asked(server, "/", "evil.example:80")[0] == 403


@pytest.mark.cluster
def test_a_port_that_is_taken_is_a_message(storage: Path) -> None:
    with served(storage) as server:
        port = server.server_address[1]
        with pytest.raises(ConfigError, match=rf"cannot listen on port {port} of 127.0.0.1: .*give another --port"):
            RunsServer(RunsPage(str(storage)), port)
