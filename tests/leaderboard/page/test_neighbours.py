"""Pictures of the best runs, taken from their own pages."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from raysl.leaderboard.board_files import write
from raysl.leaderboard.page.leaderboard_page import NUM_QUERIES, WIDTH, neighbours_of
from raysl.report.contents import Neighbours
from raysl.report.run_page import page, write_report
from raysl.storage.folder import Folder
from tests.leaderboard.boards import board, entry
from tests.report.run import example


def many() -> Neighbours:
    """Ten queries with eight neighbours each."""
    pixels = np.random.default_rng(0).integers(0, 256, (10, 8, 8, 8, 3), dtype=np.uint8)
    labels = np.zeros((10, 8), np.int64)
    return Neighbours(
        queries=pixels[:, 0],
        query_labels=labels[:, 0],
        images=pixels,
        labels=labels,
        similarities=labels.astype(np.float32),
    )


def opened(source: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2])))


@pytest.mark.thorough
def test_the_first_queries_of_a_run_s_page_are_taken_small() -> None:
    whole = page(example(neighbours=many()))
    source = neighbours_of(whole)
    assert source.startswith("data:image/webp;base64,")
    picture = opened(source)
    assert picture.width == WIDTH
    sheet = opened(whole[whole.index("data:image", whole.index('<section id="neighbours">')) :].partition('"')[0])
    assert picture.height / picture.width < sheet.height / sheet.width * (NUM_QUERIES + 0.5) / 10
    assert len(source) < 130_000, "of noise"


@pytest.mark.thorough
def test_a_page_without_neighbours_or_cut_off_has_none() -> None:
    assert neighbours_of(page(example(neighbours=None))) == ""
    assert neighbours_of("") == ""
    broken = '<section id="neighbours"><img src="data:image/png;base64,aGVsbG8=">'
    assert neighbours_of(broken) == ""


@pytest.mark.thorough
def test_the_page_shows_the_neighbours_of_the_best_that_have_a_page(tmp_path: Path) -> None:
    runs = [entry(index, 90.0 - index, path=str(tmp_path / f"trial_{index:08x}")) for index in range(4)]
    for run in runs[1:]:
        write_report(example(neighbours=many()), tmp_path / run.trial)
    write(board(runs, path=str(tmp_path)), Folder(str(tmp_path)))
    text = (tmp_path / "leaderboard.html").read_text()
    assert text.count("Queries and their nearest neighbours of rank") == 2
    assert "neighbours of rank 2" in text
    assert "neighbours of rank 1" not in text
