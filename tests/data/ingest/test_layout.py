"""How an ingest lays out rows: units of some bytes, in an order that is drawn once; and what its manifest spares."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from raysl.data.ingest import shard
from raysl.data.ingest.ingest import ingest_source
from raysl.data.ingest.parts import READ_ROWS, RowOrder, cut_parts
from raysl.data.ingest.shard import Layout
from raysl.data.source import Split
from raysl.data.sources.digits import Digits
from raysl.data.sources.image_folder import ImageFolder
from raysl.data.sources.parquet import Parquet
from raysl.data.sources.synthetic import Synthetic
from raysl.errors import ConfigError
from raysl.hashing import Int64s
from tests.data.counted import counted_storage
from tests.data.samples import all_rows, png, sent

DIGITS = Digits.Config(limit=60)
IN_UNITS = Synthetic.Config(image_size=4, num_train=1000, num_test=20, unit_rows=40, is_random_access=False)


def stored(path: Path, name: str = "train") -> Split:
    return Parquet(Parquet.Config(path=str(path))).required(name)


def indices(folder: Path, name: str = "train") -> list[Int64s]:
    """The places in the source of the rows of each file."""
    return [pq.read_table(path, columns=["index"])["index"].to_numpy() for path in sorted(folder.glob(f"{name}*"))]


# the order of rows


def test_training_images_are_stored_in_one_random_order_with_their_labels(tmp_path: Path) -> None:
    ingest_source(DIGITS, str(tmp_path), Layout(rows_per_file=20))
    rows = np.concatenate(indices(tmp_path))
    assert sorted(rows.tolist()) == list(range(60))
    assert all(min(part) < 20 and max(part) >= 40 for part in indices(tmp_path)), "each file has rows from everywhere"
    source = Digits(DIGITS).required("train").read(rows)
    assert np.array_equal(all_rows(stored(tmp_path)).labels, source.labels)
    assert all_rows(stored(tmp_path)).names == source.names
    assert np.concatenate(indices(tmp_path, "test")).tolist() == list(range(60)), "held-out images keep their order"


def test_the_order_belongs_to_the_seed_which_the_manifest_has(tmp_path: Path) -> None:
    orders = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1), ("d", None)):
        ingest_source(DIGITS, str(tmp_path / name), Layout(seed=seed))
        orders[name] = indices(tmp_path / name)[0].tolist()
        assert json.loads((tmp_path / name / "manifest.json").read_text())["layout"]["seed"] == seed
    assert orders["a"] == orders["b"] != orders["c"]
    assert orders["d"] == sorted(orders["a"])


@pytest.mark.thorough
def test_rows_that_are_read_in_units_are_mixed_and_each_unit_is_read_once(tmp_path: Path) -> None:
    ingest_source(IN_UNITS, str(tmp_path), Layout(rows_per_file=200, rows_per_group=40))
    files = indices(tmp_path)
    assert sorted(np.concatenate(files).tolist()) == list(range(1000))
    for rows in files:
        assert len(np.unique(rows // 40)) == 5, "200 rows are five units"
        assert all(len(np.unique(group // 40)) > 2 for group in np.split(rows, 5)), "a row group has rows of most"
    assert max(np.ptp(np.unique(rows // 40)) for rows in files) > 10, "the units are from everywhere"


@pytest.mark.parametrize("num_rows", [37, 400, 1000])
def test_the_parts_of_a_split_hold_each_row_once(num_rows: int) -> None:
    split = Synthetic(replace(IN_UNITS, unit_rows=300)).required("train")
    chunks = [
        chunk for part in cut_parts({"train": split}, num_rows) for chunk in RowOrder(split, part, seed=3).chunks()
    ]
    assert sorted(np.concatenate(chunks).tolist()) == list(range(1000))
    assert max(map(len, chunks)) <= READ_ROWS
    assert all(len(np.unique(chunk // 300)) == 1 for chunk in chunks if len(chunk) == READ_ROWS)


def test_a_negative_seed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"seed=-1 is out of range; give a finite number of at least 0"):
        ingest_source(DIGITS, str(tmp_path / "out"), Layout(seed=-1))


# row groups


def test_row_groups_have_as_many_images_as_fit_into_some_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "GROUP_BYTES", 1500)
    monkeypatch.setattr(shard, "MOST_GROUP_ROWS", 12)
    ingest_source(DIGITS, str(tmp_path))
    split = stored(tmp_path)
    sizes = [len(image) for image in all_rows(split).images if isinstance(image, bytes)]
    ends = np.cumsum(split.unit_sizes)
    groups = [sum(sizes[end - rows : end]) for rows, end in zip(split.unit_sizes, ends, strict=True)]
    assert max(groups) <= 1500
    full = [size + sizes[end] > 1500 for size, end in zip(groups[:-1], ends, strict=False)]
    assert all(is_full or rows == 12 for is_full, rows in zip(full, split.unit_sizes, strict=False))


def test_small_images_fill_no_more_than_some_rows_and_a_large_one_is_a_group_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard, "MOST_GROUP_ROWS", 25)
    ingest_source(DIGITS, str(tmp_path / "a"))
    assert stored(tmp_path / "a").unit_sizes.tolist() == [25, 25, 10]
    monkeypatch.setattr(shard, "GROUP_BYTES", 10)
    ingest_source(DIGITS, str(tmp_path / "b"))
    assert stored(tmp_path / "b").unit_sizes.tolist() == [1] * 60


# what a start reads


def folder_of_images(root: Path) -> ImageFolder.Config:
    for number in range(30):
        path = root / ("train" if number % 5 else "val") / f"class{number % 3}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number))
    return ImageFolder.Config(path=str(root))


@pytest.mark.thorough
def test_a_start_reads_the_manifest_and_no_file_that_it_lists(tmp_path: Path) -> None:
    ingest_source(
        folder_of_images(tmp_path / "images"), str(tmp_path / "out"), Layout(rows_per_file=4, rows_per_group=2)
    )
    expected = {}
    for name in ("train", "test"):  # as it is without a manifest
        part = tmp_path / f"only-{name}"
        part.mkdir()
        for file in (tmp_path / "out").glob(f"{name}*.parquet"):
            (part / file.name).symlink_to(file)
    classes = tuple(f"class{number}" for number in range(3))
    for name in ("train", "test"):
        expected[name] = Parquet(Parquet.Config(train=str(tmp_path / f"only-{name}"))).required("train")
    with counted_storage() as storage:
        source = Parquet(Parquet.Config(path=f"counted://{tmp_path}/out"))
        splits = {name: source.required(name) for name in ("train", "test")}
        content = {name: sent(split).content() for name, split in splits.items()}
        assert storage.reads == {f"{tmp_path}/out/manifest.json": 1}
        assert storage.requests == {"stat": 2, "list": 1, "open": 1, "read": 1}
        for name, split in splits.items():
            assert split.fingerprint == expected[name].fingerprint
            assert split.unit_sizes.tolist() == expected[name].unit_sizes.tolist()
            assert split.is_random_access
            assert split.classes == classes
            assert content[name].keys() == {"files", "labels"}
            assert content[name]["labels"] == expected[name].content()["labels"]
            assert all_rows(split).images == all_rows(expected[name]).images
            assert all_rows(split).labels.tolist() == all_rows(expected[name]).labels.tolist()


def test_other_columns_or_files_than_the_manifest_describes_are_looked_at(tmp_path: Path) -> None:
    ingest_source(folder_of_images(tmp_path / "images"), str(tmp_path / "out"), Layout(rows_per_file=4))
    places = tuple(map(str, range(24)))
    by_index = Parquet(Parquet.Config(path=str(tmp_path / "out"), label_column="index", classes=places))
    assert sorted(all_rows(by_index.required("train")).labels.tolist()) == list(range(24))
    everything = Parquet(Parquet.Config(train=str(tmp_path / "out"))).required("train")
    assert everything.num_samples == 30
    unlabelled = Parquet(Parquet.Config(path=str(tmp_path / "out"), label_column=None)).required("train")
    assert "labels" not in unlabelled.content()
    assert set(all_rows(unlabelled).labels.tolist()) == {-1}


def test_classes_of_the_settings_are_held_against_the_labels_in_the_manifest(tmp_path: Path) -> None:
    ingest_source(folder_of_images(tmp_path / "images"), str(tmp_path / "out"))
    with pytest.raises(ConfigError, match=r"has the label 2, but .* have 2 classes"):
        Parquet(Parquet.Config(path=str(tmp_path / "out"), classes=("a", "b"))).required("train")


def test_training_files_with_names_like_held_out_ones_are_noted(tmp_path: Path) -> None:
    ingest_source(folder_of_images(tmp_path / "images"), str(tmp_path / "out"))
    split = Parquet(Parquet.Config(train=str(tmp_path / "out"))).required("train")
    assert any("1 of the 2 training files" in note for note in split.notes)
