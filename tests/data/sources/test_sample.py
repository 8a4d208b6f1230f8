"""A sample of a large dataset costs the reading of few bytes beside those of its images."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysl.data.source import Split, make_source
from raysl.data.sources import parquet_split
from raysl.data.sources.concat import Concat
from raysl.data.sources.parquet import Parquet
from raysl.data.sources.sample import is_sorted_by_class, sample_rows, unit_parts, unit_share
from raysl.data.sources.subset import Subset, sample_of
from raysl.data.sources.synthetic import Synthetic
from raysl.storage.cache import RecentlyUsed
from tests.data.counted import CountedFiles, counted_storage

UNIT, ROW_BYTES, CLASSES = 16, 20_000, 4
NUM, FILE_ROWS = 1280, 160


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[CountedFiles]:
    """All Parquet sets are too large for random access, and no row group is cached from another test."""
    monkeypatch.setattr(parquet_split, "RANDOM_ACCESS_BYTES", 0)
    monkeypatch.setattr(parquet_split, "_PARTS", RecentlyUsed(parquet_split.PART_BYTES))
    with counted_storage() as files:
        yield files


def large_set(folder: Path, is_sorted: bool = False, labelled: bool = True) -> Split:
    """A Parquet set of many row groups, whose images are noise of ROW_BYTES bytes."""
    random = np.random.default_rng(0)
    labels = np.arange(NUM) * CLASSES // NUM if is_sorted else random.integers(0, CLASSES, NUM)
    columns = {"image": [random.bytes(ROW_BYTES) for _ in range(NUM)], **({"label": labels} if labelled else {})}
    table = pa.table(columns)
    folder.mkdir(exist_ok=True)
    for first in range(0, NUM, FILE_ROWS):
        part = table.slice(first, FILE_ROWS)
        pq.write_table(part, folder / f"train-{first:05d}.parquet", row_group_size=UNIT, compression="none")
    return Parquet(Parquet.Config(path=f"counted://{folder}")).required("train")


def bytes_a_byte(split: Split, rows: np.ndarray, counted: CountedFiles) -> float:
    """Bytes that are read for each byte of some images, read 10 rows at a time."""
    counted.num_bytes = 0
    for part in np.split(rows, range(10, len(rows), 10)):
        split.read(part)
    return counted.num_bytes / (len(rows) * ROW_BYTES)


@pytest.mark.thorough
@pytest.mark.parametrize("most", [40, 64, 500])
def test_a_sample_reads_at_most_twice_its_bytes(tmp_path: Path, counted: CountedFiles, most: int) -> None:
    split = large_set(tmp_path)
    rows = sample_rows(split, most)
    assert len(rows) == most
    assert (np.diff(rows) > 0).all()
    assert rows[-1] < split.num_samples
    assert bytes_a_byte(split, rows, counted) <= 2


@pytest.mark.thorough
def test_few_rows_cost_one_unit(tmp_path: Path, counted: CountedFiles) -> None:
    split = large_set(tmp_path)
    assert bytes_a_byte(split, sample_rows(split, 4), counted) < 1.3 * UNIT / 4


@pytest.mark.thorough
def test_another_seed_chooses_other_units_and_the_same_one_the_same(tmp_path: Path) -> None:
    split = large_set(tmp_path)
    assert np.array_equal(sample_rows(split, 50), sample_rows(split, 50))
    assert not np.array_equal(sample_rows(split, 50), sample_rows(split, 50, seed=1))


@pytest.mark.thorough
def test_all_classes_are_in_a_sample_of_a_set_sorted_by_class(tmp_path: Path) -> None:
    split = large_set(tmp_path, is_sorted=True)
    assert is_sorted_by_class(split)
    rows = sample_rows(split, 32)
    assert rows.tolist() == list(range(0, NUM, 40)), "at even distances"


@pytest.mark.thorough
def test_mixed_unlabelled_and_one_class_sets_are_not_sorted(tmp_path: Path) -> None:
    assert not is_sorted_by_class(large_set(tmp_path / "mixed"))
    assert not is_sorted_by_class(large_set(tmp_path / "unlabelled", labelled=False))
    one_class = Synthetic(Synthetic.Config(num_classes=1, is_random_access=False)).required("train")
    assert not is_sorted_by_class(one_class)


def test_a_sample_of_a_set_with_random_access_is_at_even_distances() -> None:
    split = Synthetic(Synthetic.Config(num_train=1000)).required("train")
    assert sample_rows(split, 10).tolist() == list(range(0, 1000, 100))


@pytest.mark.thorough
def test_ranks_share_a_sample_without_sharing_a_unit(tmp_path: Path) -> None:
    split = sample_of(large_set(tmp_path), 100)  # 7 units
    units = split.rows // UNIT  # type: ignore[attr-defined]
    for world in (1, 2, 3, 5, 8):
        shares = [unit_share(split, rank, world) for rank in range(world)]
        assert [row for share in shares for row in share] == list(range(100))
        read = [unit for share in shares for unit in set(units[share.start : share.stop].tolist())]
        assert len(read) == len(set(read))


@pytest.mark.thorough
def test_processes_that_read_parts_of_a_sample_read_no_unit_twice(
    tmp_path: Path, counted: CountedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = large_set(tmp_path)
    images, rows = sample_of(split, 500), sample_rows(split, 500)
    parts = [part for rank in range(3) for part in unit_parts(images, unit_share(images, rank, 3), 24, 64)]
    assert [row for part in parts for row in part] == list(range(500))
    assert {len(part) for part in parts} <= {4, 16, 32}
    for part in parts:
        # as a new process, which has read nothing yet
        monkeypatch.setattr(parquet_split, "_PARTS", RecentlyUsed(parquet_split.PART_BYTES))
        split.read(rows[part.start : part.stop])
    assert counted.num_bytes <= 1.3 * 500 * ROW_BYTES


def test_parts_of_images_that_are_read_alone_and_of_large_units_have_the_sizes_asked_for() -> None:
    alone = Synthetic(Synthetic.Config(num_train=100)).required("train")
    assert list(unit_parts(alone, range(10, 100), 40, 64)) == [range(10, 50), range(50, 90), range(90, 100)]
    large = Subset(alone, np.arange(100))
    large.is_random_access, large.unit_sizes = False, np.array([100])
    assert list(unit_parts(large, range(100), 40, 64)) == [range(64), range(64, 100)]


@pytest.mark.thorough
def test_a_sample_of_joined_and_selected_sets_is_of_few_units(tmp_path: Path, counted: CountedFiles) -> None:
    for name in "ab":
        large_set(tmp_path / name)
    sources = {name: Parquet.Config(path=f"counted://{tmp_path / name}", skip=0, limit=NUM // 2) for name in "ab"}
    split = Concat(Concat.Config(sources=sources)).required("train")
    rows = sample_rows(split, 200)
    assert bytes_a_byte(split, rows, counted) <= 2 * 2


@pytest.mark.thorough
def test_a_limit_of_a_large_set_reads_at_most_twice_its_bytes(tmp_path: Path, counted: CountedFiles) -> None:
    large_set(tmp_path)
    source = Parquet(Parquet.Config(path=f"counted://{tmp_path}", limit=64))
    split = source.required("train")
    assert split.num_samples == 64
    assert split.unit_sizes.tolist() == [UNIT] * 4
    assert bytes_a_byte(split, np.arange(64), counted) <= 2
    assert split.fingerprint == source.required("train").fingerprint


@pytest.mark.thorough
def test_a_limit_that_costs_little_or_is_of_a_sorted_set_is_at_even_distances(tmp_path: Path) -> None:
    large_set(tmp_path / "mixed")
    large_set(tmp_path / "sorted", is_sorted=True)
    for name, limit in (("mixed", NUM // 2), ("sorted", 64)):
        split = make_source(Parquet.Config(path=f"counted://{tmp_path / name}", limit=limit)).required("train")
        assert split.rows.tolist() == list(range(0, NUM, NUM // limit))  # type: ignore[attr-defined]


@pytest.mark.thorough
def test_images_that_cost_many_times_their_bytes_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    large_set(tmp_path)
    Parquet(Parquet.Config(path=f"counted://{tmp_path}", limit=40, balanced=True)).required("train")
    assert "the 40 train images that the settings choose are spread over the dataset: reading them costs" in caplog.text
    assert "raysl ingest with the same data settings stores them alone" in caplog.text
