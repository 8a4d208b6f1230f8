"""The files of a leaderboard, in the sweep's folder."""

from dataclasses import replace
from pathlib import Path

import pytest

from raysl.config.dump import dump
from raysl.config.load import load_config
from raysl.leaderboard.best import NUM_BEST
from raysl.leaderboard.board_files import Kept, write
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.storage.folder import Folder
from tests.leaderboard.boards import board, entry, zoo


def swept(tmp_path: Path, num: int = 5, **changes: object) -> Leaderboard:
    """A sweep whose trials have left their settings."""
    sweep = tmp_path / "runs" / "s"
    runs = [entry(index, 90.0 - index, path=str(sweep / f"trial_{index:08x}")) for index in range(num)]
    for run in runs:
        words = [f"optim.lr={run.settings['optim.lr']}", f"storage={sweep}", f"name={run.trial}"]
        (sweep / run.trial).mkdir(parents=True)
        (sweep / run.trial / "run.yaml").write_text(dump(load_config("quickstart", words)))
    return board(runs, path=str(sweep), **changes)


def test_all_files_are_written_and_nothing_half_done_stays(tmp_path: Path) -> None:
    found = swept(tmp_path)
    write(found, Folder(found.facts.path))
    sweep = tmp_path / "runs" / "s"
    names = {file.name for file in sweep.iterdir() if file.is_file()}
    assert {f"leaderboard.{kind}" for kind in ("json", "csv", "tex", "html")} | {
        f"best_{n}.yaml" for n in (1, 2, 3)
    } <= names
    assert not [name for name in names if name.endswith(".part")]
    assert Leaderboard.load(str(sweep)) == found
    assert Leaderboard.load(str(sweep / "leaderboard.json")) == found
    assert (sweep / "leaderboard.csv").read_text() == found.csv()


@pytest.mark.thorough
def test_the_best_configurations_load_beside_the_sweep_with_the_settings_of_their_runs(tmp_path: Path) -> None:
    found = swept(tmp_path)
    write(found, Folder(found.facts.path))
    for rank in range(1, NUM_BEST + 1):
        path = tmp_path / "runs" / "s" / f"best_{rank}.yaml"
        config = load_config(str(path))
        assert config.optim.lr == pytest.approx(0.1 + rank - 1)
        assert config.storage == str(tmp_path / "runs")
        assert config.name == f"s-{rank - 1:08x}"
    text, html = path.read_text(), (path.parent / "leaderboard.html").read_text()
    assert f"<pre>raysl pretrain {path.parent}/best_1.yaml</pre>" in html
    assert text.startswith(f"# Rank 3 of s: knn_k20_top1 88; run trial_00000002, seed 2.\n# raysl pretrain {path}\n")


def test_runs_that_have_left_nothing_yet_have_no_configuration(tmp_path: Path) -> None:
    found = board([entry(0, 90.0, path=str(tmp_path / "trial_00000000")), entry(1)], path=str(tmp_path))
    write(found, Folder(str(tmp_path)))
    assert not list(tmp_path.glob("best_*"))
    assert Leaderboard.load(str(tmp_path)) == found


def test_what_is_written_again_and_again_is_that_of_now(tmp_path: Path) -> None:
    now = swept(tmp_path, state="running")
    kept = Kept()
    write(now, Folder(now.facts.path), kept)
    sweep = tmp_path / "runs" / "s"
    first = (sweep / "best_1.yaml").read_text()
    later = board(
        [*now.entries, replace(now.entries[4], trial="trial_9", index=9, metrics={"knn_k20_top1": 99.0})],
        path=now.facts.path,
    )
    write(later, Folder(now.facts.path), kept)
    assert Leaderboard.load(str(sweep)) == later
    assert (sweep / "leaderboard.csv").read_text() == later.csv()
    assert "The sweep runs" not in (sweep / "leaderboard.html").read_text()
    assert (sweep / "best_1.yaml").read_text() != first
    assert "run trial_9" in (sweep / "best_1.yaml").read_text()


def test_the_table_for_papers_has_its_best_in_bold_and_deviations_small(tmp_path: Path) -> None:
    found = zoo(["simclr", "moco", "sinkhorn"])
    write(found, Folder(str(tmp_path)))
    lines = (tmp_path / "leaderboard.tex").read_text().splitlines()
    assert lines[3].startswith(r"config & seeds & low\_shot/5\_shot & step\_s & knn/k20/top1 & geometry/alpha\_req")
    body = lines[5:-2]
    assert len(body) == 3
    assert body[0].count(r"\textbf") >= 1
    assert r"{\scriptsize $\pm$" in body[0]
    assert [line for line in body if "sinkhorn & 1 &" in line and " to " in line], "of one seed alone what was measured"


def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    found, kept = swept(tmp_path), Kept()
    write(found, Folder(found.facts.path), kept)
    (tmp_path / "runs" / "s" / "leaderboard.csv").unlink()
    write(found, Folder(found.facts.path), kept)
    assert not (tmp_path / "runs" / "s" / "leaderboard.csv").exists()
    assert (tmp_path / "runs" / "s" / "leaderboard.html").exists()
