"""The data paths that `python -m perf pipeline` compares do the same work."""

from itertools import islice
from pathlib import Path

import pytest
import torch

from perf.pictures import STORED, read_pictures, write_pictures
from perf.pipeline import measure, table
from perf.streams import STREAMS, StreamTask, parts_of_local
from raysl.data.decode.decode import decode


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> StreamTask:
    folder = tmp_path_factory.mktemp("speed")
    write_pictures(folder / "pictures.parquet", 32, 64)
    file = str(folder / "pictures.parquet")
    return StreamTask(name="x", socket="", folder=str(folder), file=file, size=32, batch_size=16, threads=1)


@pytest.mark.parametrize("size", list(STORED))
def test_pictures_are_different_jpeg_files_of_the_stored_size(size: int, tmp_path: Path) -> None:
    write_pictures(tmp_path / "x.parquet", size, 6)
    images = read_pictures(tmp_path / "x.parquet")
    assert len(set(images)) == 6
    assert all(data[:2] == b"\xff\xd8" for data in images)
    assert {tuple(decode(data).shape[1:]) for data in images} == {STORED[size]}


@pytest.mark.cluster
@pytest.mark.parametrize("name", [name for name in STREAMS if name != "decode"])
def test_each_path_gives_two_normalised_float_views_of_each_image(name: str, task: StreamTask) -> None:
    if module := {"dali": "nvidia.dali", "stable": "stable_pretraining"}.get(name):
        pytest.importorskip(module)
    for batch in islice(STREAMS[name](task), 2):
        views = batch.views["global"] if name == "raysl_local" else batch
        if name == "stable":
            views = [view["image"] for view in batch["views"]]
        if isinstance(views, list):  # lightly's: a list of views [B, C, H, W]
            views = torch.stack(views, dim=1)
        assert views.shape == (16, 2, 3, 32, 32)
        assert views.dtype == torch.float32
        assert -3 < views.min() < -0.5
        assert not torch.equal(views[:, 0], views[:, 1])


@pytest.mark.thorough
def test_the_time_of_an_image_is_split_into_its_parts(task: StreamTask) -> None:
    parts = parts_of_local(task, num_batches=2)
    assert list(parts) == ["order", "read and decode", "crop", "augment", "normalise"]
    assert all(spent > 0 for spent in parts.values())


@pytest.mark.slow
def test_contenders_are_measured_side_by_side() -> None:
    numbers = measure("bd", sizes=(32,), repeats=1, seconds=0.1, threads=1)
    assert set(numbers["32"]) == set("bd")
    assert numbers["ratios"]["32"] == {"d/best": numbers["32"]["d"] / numbers["32"]["b"]}
    assert "d/best of abchi" in table(numbers)


@pytest.mark.slow
def test_all_that_need_no_extra_are_measured_at_both_sizes() -> None:
    numbers = measure(repeats=1, seconds=0.5)
    for size in ("32", "224"):
        assert set(numbers[size]) == set("abcdefh")
        assert set(numbers["ratios"][size]) == {"d/best", "e/d", "e/best"}
