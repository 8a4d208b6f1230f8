"""Labels and names in Parquet files; `test_sources` has what else there is to them."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from raysl.config.places import source_at
from raysl.data.ingest.ingest import ingest_source
from raysl.data.ingest.shard import Layout
from raysl.data.sources import parquet_columns, parquet_split
from raysl.data.sources.parquet import Parquet
from raysl.data.sources.parquet_columns import CLASSES_KEY
from raysl.data.sources.synthetic import Synthetic
from raysl.data.split import Missing
from raysl.errors import ConfigError, DamagedData, RunFailed
from tests.data.counted import counted_storage
from tests.data.samples import all_rows, png, sent


def write(file: Path, **columns: Any) -> None:
    table = pa.table({"image": [png(shade) for shade in range(3)], **columns})
    pq.write_table(table, file, row_group_size=2)


def source(path: Path, **settings: Any) -> Parquet:
    return Parquet(Parquet.Config(path=str(path), **settings))


def test_a_source_that_has_opened_its_splits_can_be_sent_to_another_process(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", label=["dog", "cat", "dog"])
    opened = source(tmp_path)
    train = opened.required("train")
    assert pickle.loads(pickle.dumps(opened)).required("train").fingerprint == train.fingerprint


@pytest.mark.parametrize("dictionary", [False, True])
def test_names_as_labels_are_sorted_and_numbered_by_the_training_images(tmp_path: Path, dictionary: bool) -> None:
    def column(*names: str | None) -> pa.Array:
        return pa.array(names).dictionary_encode() if dictionary else pa.array(names)

    write(tmp_path / "train-0.parquet", label=column("dog", "ant", None))
    write(tmp_path / "train-1.parquet", label=column("cat", "ant", "ant"))
    write(tmp_path / "test.parquet", label=column("dog", "dog", None))
    train, test = (source(tmp_path).required(name) for name in ("train", "test"))
    assert train.classes == test.classes == ("ant", "cat", "dog")
    assert all_rows(train).labels.tolist() == [2, 0, -1, 1, 0, 0]
    assert all_rows(test).labels.tolist() == [2, 2, -1]
    assert sent(train).labels_of(np.array([3, 0])).tolist() == [1, 2]
    assert all_rows(source(tmp_path, classes=("dog", "cat", "ant")).required("test")).labels.tolist() == [0, 0, -1]


def test_a_held_out_name_that_no_training_image_has_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", label=["dog", "ant", "ant"])
    write(tmp_path / "test.parquet", label=["cow", "ant", "owl"])
    with pytest.raises(ConfigError, match=r"test.parquet has labels that no training image has: 'cow', 'owl'"):
        source(tmp_path).required("test")
    with pytest.raises(ConfigError, match=r"train.parquet has labels that no training image has: 'dog'"):
        source(tmp_path, classes=("ant",)).required("train")


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.list_(pa.int8(), 2), pa.large_list(pa.int32())])
def test_lists_of_labels_make_a_multi_label_split(tmp_path: Path, kind: pa.DataType) -> None:
    write(tmp_path / "train.parquet", label=pa.array([[1, 0], [0, -1], None], kind))
    write(tmp_path / "test.parquet", label=pa.array([None, None, [1, 1]], kind))
    train, test = (source(tmp_path).required(name) for name in ("train", "test"))
    assert train.is_multilabel
    assert train.classes == test.classes == ("0", "1")
    assert all_rows(train).labels.tolist() == [[1, 0], [0, -1], [-1, -1]]
    assert all_rows(test).labels.tolist() == [[-1, -1], [-1, -1], [1, 1]], "the first row group is all null"


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.list_(pa.int8(), 2)])
def test_a_null_in_a_list_of_labels_is_unknown(tmp_path: Path, kind: pa.DataType) -> None:
    write(tmp_path / "train.parquet", label=pa.array([[1, None], [0, 1], [None, None]], kind))
    assert all_rows(source(tmp_path).required("train")).labels.tolist() == [[1, -1], [0, 1], [-1, -1]]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[1, 0], [1], [0, 0]], r"a.parquet: lists of 1 and of 2 labels; give one for each class"),
        ([[1, 0], [2, 0], [0, 0]], r"a.parquet has the label 2; multi-label entries are 1 for present"),
        ([0.5, 1.0, 2.0], r"a.parquet, row 1: the label 0.5 is no whole number, but row 2 has the number 1.0"),
        ([[0.5], [1.0], [2.0]], r"'label' holds list<.*double>, not numbers, names or lists of integers; set data.lab"),
        (["0", "1", "x"], r"a.parquet, row 3: the label 'x' is no whole number, .* or give data.classes= the names if"),
    ],
)
def test_columns_that_are_no_labels_are_refused(tmp_path: Path, labels: Any, message: str) -> None:
    write(tmp_path / "a.parquet", label=labels)
    with pytest.raises(ConfigError, match=message):
        source(tmp_path).required("train")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": ["x", "y", "z"]}, r"'label': .*a.parquet has int64, .*b.parquet has string; .* same columns"),
        ({}, r"'label': .*a.parquet has int64, .*b.parquet has none"),
        ({"label": [[1], [0], [1]]}, r"a.parquet has int64, .*b.parquet has list<.*int64>"),
    ],
)
def test_files_of_different_columns_are_refused(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    write(tmp_path / "a.parquet", label=[0, 1, 2])
    write(tmp_path / "b.parquet", **columns)
    with pytest.raises(ConfigError, match=message):
        source(tmp_path).required("train")


def test_lists_of_another_length_in_the_second_file_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", label=[[1, 0]] * 3)
    write(tmp_path / "b.parquet", label=[[1, 0, 0]] * 3)
    with pytest.raises(ConfigError, match=r"b.parquet has lists of 3 labels for 2 classes"):
        source(tmp_path).required("train")


@pytest.mark.parametrize("column", ["name", "path"])
def test_a_column_of_names_names_the_images(tmp_path: Path, column: str) -> None:
    write(tmp_path / "a.parquet", **{column: ["x/0.png", None, "x/2.png"]})
    rows = all_rows(source(tmp_path).required("train"))
    assert rows.names == ["x/0.png", f"{tmp_path}/a.parquet row 1", "x/2.png"]
    (tmp_path / "list.txt").write_text("2\nx/0\n")
    listed = source(tmp_path, subset=str(tmp_path / "list.txt")).required("train")
    assert all_rows(listed).images == [png(0), png(2)], "beside a name 2 is one too"


def test_an_index_column_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", index=[2, 1, 0], label=[0, 1, 2])
    rows = all_rows(source(tmp_path).required("train"))
    assert rows.images == [png(0), png(1), png(2)]
    assert rows.labels.tolist() == [0, 1, 2]


def test_class_names_in_the_file_are_used(tmp_path: Path) -> None:
    table = pa.table({"image": [png(0)], "label": [1]})
    stored = table.replace_schema_metadata({CLASSES_KEY: json.dumps(["cat", "dog"])})
    pq.write_table(stored, tmp_path / "a.parquet")
    assert source(tmp_path).required("train").classes == ("cat", "dog")
    assert source(tmp_path, classes=("x", "y")).required("train").classes == ("x", "y")


def test_labels_and_names_are_read_without_the_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.parquet", label=[0, 1, 1], name=["a", "b", "c"])
    split = source(tmp_path).required("train")
    columns: list[str] = []
    row_group = parquet_split.ParquetSplit._row_group

    def noted(self: Any, path: str, group: int, wanted: list[str]) -> pa.Table:
        columns.extend(wanted)
        return row_group(self, path, group, wanted)

    monkeypatch.setattr(parquet_split.ParquetSplit, "_row_group", noted)
    assert split.labels_of(np.array([2, 0])).tolist() == [1, 0]
    assert split.names_of(np.array([2, 0])) == ["c", "a"]
    assert set(columns) == {"label", "name"}


def test_a_read_that_fails_is_tried_again_and_then_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.parquet")
    split = source(tmp_path).required("train")
    failures = [OSError("connection reset")]
    row_group = parquet_split.ParquetSplit._row_group

    def shaky(self: Any, path: str, group: int, wanted: list[str]) -> pa.Table:
        if failures:
            raise failures.pop()
        return row_group(self, path, group, wanted)

    monkeypatch.setattr("raysl.storage.reads.FIRST_WAIT_S", 0.0)
    monkeypatch.setattr(parquet_split.ParquetSplit, "_row_group", shaky)
    assert split.read(np.array([1])).images == [png(1)]
    failures += [OSError("connection reset")] * 5
    with pytest.raises(RunFailed, match=r"cannot read '.*a.parquet' after 5 tries: connection reset"):
        split.read(np.array([2]))


@pytest.mark.parametrize("has_statistics", [True, False])
@pytest.mark.parametrize("label", [7, -5])
def test_a_held_out_number_that_no_training_image_has_is_refused(
    tmp_path: Path, label: int, has_statistics: bool
) -> None:
    write(tmp_path / "train.parquet", label=[0, 1, 2])
    table = pa.table({"image": [png(0)] * 3, "label": [label, None, 0]})
    pq.write_table(table, tmp_path / "val.parquet", write_statistics=has_statistics)
    with pytest.raises(ConfigError, match=rf"val.parquet has the label {label}[,;]"):
        source(tmp_path).required("test")
    with pytest.raises(ConfigError, match=r"train.parquet has the label 2, .* have 2 classes"):
        source(tmp_path, classes=("x", "y")).required("train")


@pytest.mark.parametrize(("label", "kind"), [(30_000_000, pa.int32()), (2**63 + 1, pa.uint64())])
@pytest.mark.parametrize("has_statistics", [True, False])
def test_ids_are_no_labels(tmp_path: Path, label: int, kind: pa.DataType, has_statistics: bool) -> None:
    table = pa.table({"image": [png(0)], "label": pa.array([label], kind)})
    pq.write_table(table, tmp_path / "a.parquet", write_statistics=has_statistics)
    with pytest.raises(ConfigError, match=r"a.parquet.* are these ids\? set data.label_column="):
        source(tmp_path).required("train")


def named(file: Path, classes: list[str], label: Any) -> None:
    table = pa.table({"image": [png(0)] * len(label), "label": label})
    pq.write_table(table.replace_schema_metadata({CLASSES_KEY: json.dumps(classes)}), file)


def test_files_of_one_split_that_name_classes_otherwise_are_refused(tmp_path: Path) -> None:
    named(tmp_path / "train-0.parquet", ["cat", "dog"], [1])
    named(tmp_path / "train-1.parquet", ["dog", "cat"], [1])
    named(tmp_path / "val.parquet", ["dog"], [0])
    with pytest.raises(ConfigError, match=r"0.parquet has the classes 'cat', 'dog', and .*1.parquet 'dog', 'cat'; mak"):
        source(tmp_path).required("train")
    assert all_rows(source(tmp_path, classes=("x", "y")).required("train")).labels.tolist() == [1, 1]
    (tmp_path / "train-1.parquet").unlink()
    assert all_rows(source(tmp_path).required("test")).labels.tolist() == [1]


def of_datasets(file: Path, classes: list[str], label: list[int]) -> None:
    """As the package `datasets` writes a column of class labels."""
    features = {"image": {"_type": "Image"}, "label": {"names": classes, "_type": "ClassLabel"}}
    table = pa.table({"image": [png(0)] * len(label), "label": label})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})}), file)


@pytest.mark.parametrize("write_named", [named, of_datasets])
def test_held_out_labels_are_numbered_by_the_names_of_the_training_images(tmp_path: Path, write_named: Any) -> None:
    write_named(tmp_path / "train.parquet", ["cat", "dog", "cafe\u0301"], [0, 1, 2])
    write_named(tmp_path / "val.parquet", ["emu", "dog", "caf\u00e9", "cat"], [3, 1, -1, 2, 3])
    train, test = (source(tmp_path).required(name) for name in ("train", "test"))
    assert train.classes == test.classes == ("cat", "dog", "caf\u00e9")
    assert all_rows(test).labels.tolist() == [0, 1, -1, 2, 0], "no image is an emu"
    assert all_rows(source(tmp_path, classes=tuple("abcd")).required("test")).labels.tolist() == [3, 1, -1, 2, 3]
    write_named(tmp_path / "val.parquet", ["emu", "dog"], [0, 1])
    with pytest.raises(ConfigError, match=r"val.parquet has labels that no training image has: 'emu'; use the same"):
        source(tmp_path).required("test")
    write_named(tmp_path / "val.parquet", ["dog"], [1])
    with pytest.raises(ConfigError, match=r"val.parquet has the label 1, but .* have 1 classes"):
        source(tmp_path).required("test")


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64()])
def test_held_out_numbers_whose_names_are_stored_are_matched_with_names_of_the_training_images(
    tmp_path: Path, kind: pa.DataType
) -> None:
    write(tmp_path / "train.parquet", label=["cat", "dog", "cat"])
    for names, numbers in ((["dog", "cat"], [0, None, 1]), (["emu", "dog", "cat"], [1, None, 2])):
        named(tmp_path / "val.parquet", names, pa.array(numbers, kind))
        test = source(tmp_path).required("test")
        assert (test.classes, all_rows(test).labels.tolist()) == (("cat", "dog"), [1, -1, 0])
    named(tmp_path / "val.parquet", ["emu", "dog"], pa.array([0], kind))
    with pytest.raises(ConfigError, match=r"val.parquet has labels that no training image has: 'emu'; use the same"):
        source(tmp_path).required("test")
    named(tmp_path / "train.parquet", ["cat", "dog"], pa.array([0, 1], kind))
    named(tmp_path / "val.parquet", ["dog", "cat"], pa.array([0, 1], kind))
    assert all_rows(source(tmp_path).required("test")).labels.tolist() == [1, 0]


def test_lists_whose_classes_have_another_order_are_refused(tmp_path: Path) -> None:
    for part, classes in (("train", ["cat", "dog"]), ("val", ["dog", "cat"])):
        table = pa.table({"image": [png(0)], "label": [[1, 0]]})
        pq.write_table(table.replace_schema_metadata({CLASSES_KEY: json.dumps(classes)}), tmp_path / f"{part}.parquet")
    with pytest.raises(ConfigError, match=r"val.* has the classes 'dog', 'cat', and the training images 'cat', 'dog'"):
        source(tmp_path).required("test")


@pytest.mark.parametrize(
    ("column", "labels"),
    [
        (pa.array([1.0, None, 3.0]), [1, -1, 3]),
        (pa.array([1.0, float("nan"), 3.0], pa.float32()), [1, -1, 3]),
        (["1", "nan", "3.0"], [1, -1, 3]),
    ],
)
def test_floats_and_texts_of_whole_numbers_are_numbers(tmp_path: Path, column: Any, labels: list[int]) -> None:
    write(tmp_path / "train.parquet", label=column)
    write(tmp_path / "test.parquet", label=column)
    for part in ("train", "test"):
        split = source(tmp_path).required(part)
        assert (all_rows(split).labels.tolist(), split.classes) == (labels, ("0", "1", "2", "3"))
    write(tmp_path / "test.parquet", label=["cat", "1", None])
    with pytest.raises(ConfigError, match=r"test.parquet, row 1: the label 'cat' is no whole number"):
        source(tmp_path).required("test")


def test_texts_of_numbers_are_names_where_classes_say_so(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", label=["1", "A", "0"])
    write(tmp_path / "test.parquet", label=["A", "0", None])
    splits = [source(tmp_path, classes=("0", "1", "A")).required(part) for part in ("train", "test")]
    assert [all_rows(split).labels.tolist() for split in splits] == [[1, 2, 0], [2, 0, -1]]
    assert splits[0].content()["labels"]


def test_one_file_with_names_and_one_with_numbers_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "train-0.parquet", label=["cat", "dog", ""])
    write(tmp_path / "train-1.parquet", label=["1", "2", "3"])
    with pytest.raises(ConfigError, match=r"0.parquet has names in the column 'label' and .*1.parquet has numbers"):
        source(tmp_path).required("train")
    (tmp_path / "train-1.parquet").unlink()
    write(tmp_path / "test.parquet", label=[0, 1, 1])
    with pytest.raises(ConfigError, match=r"test.parquet has numbers as labels, and the training images have names"):
        source(tmp_path).required("test")


LISTS, SINGLE = "lists of labels", "one label for each image"


@pytest.mark.parametrize(
    ("train", "test", "own", "other"),
    [
        ([[1, 0, 1], [0, 0, 1], [1, 1, 1]], [0, 1, 2], SINGLE, LISTS),
        ([[1, 0, 1], [0, 0, 1], [1, 1, 1]], ["a", "b", "a"], SINGLE, LISTS),
        ([0, 1, 2], [[1, 0, 1], [0, 0, 1], [1, 1, 1]], LISTS, SINGLE),
        (["x", "y", "x"], [[1, 0], [0, 1], [1, 1]], LISTS, SINGLE),
    ],
)
def test_held_out_lists_beside_single_labels_of_the_training_images_are_refused_and_the_reverse(
    tmp_path: Path, train: Any, test: Any, own: str, other: str
) -> None:
    write(tmp_path / "train.parquet", label=train)
    write(tmp_path / "test.parquet", label=test)
    message = rf"test.parquet has {own}, and the training images have {other}; use one of both"
    with pytest.raises(ConfigError, match=message):
        source(tmp_path).required("test")
    write(tmp_path / "test.parquet")
    assert (all_rows(source(tmp_path).required("test")).labels == -1).all(), "held-out images may have no labels"


def test_held_out_labels_of_folders_beside_lists_of_the_training_images_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", label=[[1, 0], [0, 1], [1, 1]])
    (tmp_path / "test/label=1").mkdir(parents=True)
    write(tmp_path / "test/label=1/0.parquet")
    with pytest.raises(ConfigError, match=rf"0.parquet has {SINGLE}, and the training images have {LISTS}"):
        source(tmp_path).required("test")


@pytest.mark.parametrize("first", [0, 1])
def test_held_out_numbers_from_another_one_on_are_refused(tmp_path: Path, first: int) -> None:
    write(tmp_path / "train.parquet", label=[1, 2, 3])
    write(tmp_path / "test.parquet", label=[first, first + 1, first + 2])
    if first == 1:
        assert all_rows(source(tmp_path).required("test")).labels.tolist() == [1, 2, 3]
        return
    with pytest.raises(ConfigError, match=r"has labels that no training image has: 0; number the classes alike"):
        source(tmp_path).required("test")
    classes = ("none", "cat", "dog", "emu")
    assert source(tmp_path, classes=classes).required("test").num_samples == 3, "a class may lack training images"


def test_folders_of_hive_partitions_label_their_files(tmp_path: Path) -> None:
    null = "__HIVE_DEFAULT_PARTITION__"
    for name in ("train/label=dog", "train/label=big%20cat", f"train/label={null}", "test/label=dog"):
        (tmp_path / name).mkdir(parents=True)
        write(tmp_path / name / "part-0.parquet")
    train, test = (source(tmp_path).required(part) for part in ("train", "test"))
    assert train.classes == test.classes == ("big cat", "dog")
    assert all_rows(train).labels.tolist() == [-1] * 3 + [0] * 3 + [1] * 3
    assert (all_rows(test).labels.tolist(), test.notes) == ([1] * 3, ())
    other = source(tmp_path, classes=("dog", "big cat")).required("train")
    assert train.content()["labels"] != other.content()["labels"]
    (tmp_path / "test/label=dog").rename(tmp_path / "test/label=emu")
    with pytest.raises(ConfigError, match="has labels that no training image has: 'emu'"):
        source(tmp_path).required("test")
    write(tmp_path / "train" / "part-1.parquet")
    with pytest.raises(ConfigError, match=r"train/part-1.parquet is in no folder label=..., but other files are"):
        source(tmp_path).required("train")


def test_folders_above_the_dataset_label_nothing_and_the_nearest_one_counts(tmp_path: Path) -> None:
    root = tmp_path / "label=clean" / "data"
    for folder in ("label=x/label=a", "label=y/label=b"):
        (root / folder).mkdir(parents=True)
        write(root / folder / "0.parquet")
    train = source(root).required("train")
    assert (train.classes, all_rows(train).labels.tolist()) == (("a", "b"), [0, 0, 0, 1, 1, 1])
    flat = tmp_path / "label=clean" / "flat"
    flat.mkdir()
    write(flat / "0.parquet")
    for path in (flat, flat / "0.parquet"):
        train = source(path).required("train")
        assert (train.classes, all_rows(train).labels.tolist()) == ((), [-1, -1, -1])


def test_folders_of_another_key_with_numbers_label_their_files(tmp_path: Path) -> None:
    for number in (0, 1, 10):
        (tmp_path / f"kind={number}").mkdir()
        write(tmp_path / f"kind={number}" / "part-0.parquet")
    train = source(tmp_path, label_column="kind").required("train")
    assert all_rows(train).labels.tolist() == [0] * 3 + [1] * 3 + [10] * 3
    assert source(tmp_path).required("train").classes == ()


def test_columns_that_may_be_labels_are_named_where_images_have_none(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", cat=[1, 0, 0], dog=[False, True, False], labels=[[0], [1], []], name=list("abc"))
    (note,) = source(tmp_path).required("train").notes
    assert f"the images in '{tmp_path}' have no labels, as there is no column 'label'; the columns cat, dog" in note
    assert source(tmp_path, label_column="cat").required("train").notes == ()
    assert source(tmp_path, label_column=None).required("train").notes == ()


@pytest.mark.parametrize("ending", ["pq", "PARQUET", "Pq"])
def test_files_of_other_endings_are_read(tmp_path: Path, ending: str) -> None:
    write(tmp_path / f"train-0.{ending}", label=[0, 1, 2])
    write(tmp_path / f"b-val.{ending}", label=[0, 1, 2])
    found = source_at(str(tmp_path))
    assert found == {"name": "parquet", "path": str(tmp_path)}
    assert [source(tmp_path).required(part).num_samples for part in ("train", "test")] == [3, 3]


def ingested(folder: Path) -> Path:
    """A finished ingest of six training images in two files."""
    ingest_source(
        Synthetic.Config(name="synthetic", image_size=4, num_train=6, num_test=3), str(folder), Layout(rows_per_file=3)
    )
    return folder


@pytest.mark.parametrize("name", ["manifest.json", "train-00001-of-00002.parquet"])
def test_an_unfinished_ingest_is_no_dataset(tmp_path: Path, name: str) -> None:
    folder = ingested(tmp_path / "out")
    assert source(tmp_path).required("train").num_samples == 6
    (folder / name).unlink()
    with pytest.raises(
        ConfigError, match=rf"out is an unfinished ingest: {name} is missing .*; run the same `raysl in"
    ):
        source(tmp_path).required("train")


def test_a_file_that_is_gone_damaged_or_another_one_is_named_with_its_row_group(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    write(file)
    whole, split = file.read_bytes(), source(tmp_path).required("train")
    file.unlink()
    with pytest.raises(RunFailed, match=r"cannot read row group 1 of .*a.parquet: .*No such file.*; restore the file"):
        sent(split).read(np.array([2]))
    file.write_bytes(whole[:4] + bytes(200) + whole[204:])  # Arrow's error is that of a storage that fails
    with pytest.raises(DamagedData, match=r"cannot read row group 0 of .*a.parquet: .*; restore the file"):
        sent(split).read(np.array([0]))
    file.write_bytes(b"x" * len(whole))
    with pytest.raises(RunFailed, match=r"cannot read row group 1 of .*a.parquet: .*; restore the file"):
        sent(split).read(np.array([2]))
    pq.write_table(pa.table({"image": [png(0)] * 2}), file, row_group_size=1)
    with pytest.raises(RunFailed, match=r"row group 0 of .*a.parquet changed while it was in use; start again"):
        sent(split).read(np.array([0]))


def test_what_the_settings_name_must_be_there(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", kind=["x", "y", "x"])
    with pytest.raises(
        ConfigError, match=r"a.parquet has no column 'class'; its columns: image, kind; set data.label_col"
    ):
        source(tmp_path, label_column="class").required("train")
    with pytest.raises(
        ConfigError, match=r"data.classes= names 2 classes, and .*a.parquet has no column of labels; set"
    ):
        source(tmp_path, classes=("x", "y")).required("train")
    assert source(tmp_path).required("train").classes == (), "the default may be absent"
    assert source(tmp_path, label_column="kind").required("train").classes == ("x", "y")
    unlabelled = source(tmp_path, label_column=None).required("train")
    assert (unlabelled.classes, all_rows(unlabelled).labels.tolist()) == ((), [-1, -1, -1])


@pytest.mark.parametrize("kind", ["binary", "struct"])
def test_images_of_a_dictionary_are_read(tmp_path: Path, kind: str) -> None:
    column = pa.array([png(1), png(2), png(1)]).dictionary_encode()
    if kind == "struct":
        column = pa.StructArray.from_arrays([column, pa.array(["1", "2", "1"])], ["bytes", "path"])
    pq.write_table(pa.table({"image": column}), tmp_path / "a.parquet", row_group_size=2)
    split = source(tmp_path).required("train")
    assert all_rows(split).images == [png(1), png(2), png(1)]
    assert sent(split).read(np.array([2, 0])).images == [png(1), png(1)]


def test_a_path_without_bytes_is_told_as_such(tmp_path: Path) -> None:
    column = pa.array([{"bytes": png(1), "path": "a.png"}, {"bytes": None, "path": "b.png"}])
    pq.write_table(pa.table({"image": column}), tmp_path / "a.parquet")
    image, missing = all_rows(source(tmp_path).required("train")).images
    assert image == png(1)
    assert isinstance(missing, Missing)
    assert missing.reason.startswith("only the path 'b.png', no bytes; store the images themselves")


@pytest.mark.parametrize("column", ["image", "label"])
def test_a_column_that_is_there_twice_is_named(tmp_path: Path, column: str) -> None:
    other = "label" if column == "image" else "image"
    arrays = {"image": pa.array([png(1)]), "label": pa.array([1])}
    table = pa.Table.from_arrays([arrays[name] for name in (column, other, column)], [column, other, column])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=rf"a.parquet has 2 columns '{column}'; give each its own name"):
        source(tmp_path).required("train")


def test_the_manifest_of_an_ingest_says_which_files_count(tmp_path: Path) -> None:
    folder = ingested(tmp_path / "out")
    write(folder / "train-extra.parquet", label=[0, 0, 0])
    (folder / "more").mkdir()
    write(folder / "more" / "train-9.parquet", label=[0, 0, 0])
    for place in (folder, tmp_path):
        split = source(place).required("train")
        assert split.num_samples == 6
        (note,) = split.notes
        assert note.startswith("2 Parquet files in '")
        assert "more/train-9.parquet" in note
        assert "train-extra.parquet" in note
    write(tmp_path / "train-beside.parquet", label=[0, 0, 0])
    assert source(tmp_path).required("train").num_samples == 9, "what is around the ingest counts"


def test_a_folder_whose_manifest_lists_no_parquet_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    folder = ingested(tmp_path / "out")
    manifest = json.loads((folder / "manifest.json").read_text())
    for split in manifest["splits"].values():
        split["files"] = []
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match=r"manifest.json of the ingest in '.*' lists none of its 3 .parquet files"):
        source(folder).required("train")


def test_held_out_images_show_the_notes_of_their_folder_if_the_training_images_lie_elsewhere(tmp_path: Path) -> None:
    folder = ingested(tmp_path / "out")
    write(folder / "extra.parquet", label=[0, 0, 0])
    write(tmp_path / "val.parquet", label=[0, 0, 0])
    write(tmp_path / "train.parquet", label=[0, 0, 0])
    assert source(tmp_path).required("test").notes == ()
    (note,) = source(tmp_path, train=str(tmp_path / "train.parquet")).required("test").notes
    assert "out/extra.parquet" in note


@pytest.mark.parametrize("setting", ["path", "train"])
def test_a_missing_folder_is_told_without_a_setting_that_may_not_be_the_cause(tmp_path: Path, setting: str) -> None:
    missing = Parquet(Parquet.Config(**{setting: str(tmp_path / "gone")}))
    with pytest.raises(ConfigError, match=r"no file or folder '.*/gone'; give a Parquet file or a folder of them"):
        missing.required("train")


def large_table(path: Path, monkeypatch: pytest.MonkeyPatch, num_groups: int = 6) -> None:
    """A file of row groups of five images, that counts as too large to be kept in memory."""
    monkeypatch.setattr(parquet_split, "RANDOM_ACCESS_BYTES", 0)
    table = pa.table({"image": [png(number) for number in range(5 * num_groups)], "label": range(5 * num_groups)})
    pq.write_table(table, path, row_group_size=5)


def test_a_row_group_that_is_read_whole_is_one_request_and_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large_table(tmp_path / "train.parquet", monkeypatch)
    with counted_storage() as storage:
        split = Parquet(Parquet.Config(path=f"counted://{tmp_path}")).required("train")
        split.read(np.arange(5))  # reads the footer once for this process
        storage.requests.clear()
        before = parquet_split._PARTS.num_bytes
        for index in (np.arange(5, 10), np.array([14, 12, 10, 11, 13]), np.arange(5, 10)):
            assert split.read(index).labels.tolist() == index.tolist()
        assert storage.requests == {"open": 3, "read": 3}
        assert parquet_split._PARTS.num_bytes == before


def test_the_rest_of_a_row_group_is_kept_for_later_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large_table(tmp_path / "train.parquet", monkeypatch)
    with counted_storage() as storage:
        split = Parquet(Parquet.Config(path=f"counted://{tmp_path}")).required("train")
        split.read(np.array([7, 9]))
        storage.requests.clear()
        assert split.read(np.array([5, 6, 8])).labels.tolist() == [5, 6, 8]
        assert not storage.requests


@pytest.mark.thorough
def test_the_footer_of_each_file_is_one_request_however_long_it_is(tmp_path: Path) -> None:
    num_files = 400
    for number in range(num_files):
        table = pa.table({"image": [png(1)] * 2, "label": [number % 10, 3]})
        pq.write_table(table, tmp_path / f"train-{number:03}.parquet")
    with pq.ParquetWriter(tmp_path / "train-long.parquet", table.schema) as writer:
        for _ in range(600):
            writer.write_table(table)
    assert pq.read_metadata(tmp_path / "train-long.parquet").serialized_size > parquet_columns.TAIL_BYTES
    expected = Parquet(Parquet.Config(path=str(tmp_path), label_column=None)).required("train")
    with counted_storage() as storage:
        split = Parquet(Parquet.Config(path=f"counted://{tmp_path}", label_column=None)).required("train")
        assert {path: num for path, num in storage.reads.items() if num > 1} == {f"{tmp_path}/train-long.parquet": 2}
        assert storage.requests["read"] == num_files + 2
    assert split.fingerprint == expected.fingerprint
    assert split.num_samples == 2 * num_files + 1200
    assert split.classes == ()


@pytest.mark.thorough
def test_labels_without_statistics_are_read_side_by_side(tmp_path: Path) -> None:
    for number in range(40):
        table = pa.table({"image": [png(1)] * 2, "label": [number % 10, 3]})
        pq.write_table(table, tmp_path / f"train-{number:03}.parquet", write_statistics=False)
    with counted_storage(together=5):
        split = Parquet(Parquet.Config(path=f"counted://{tmp_path}")).required("train")
    assert split.classes == tuple(map(str, range(10)))
    with pytest.raises(ConfigError, match=r"train-004.parquet has the label 4, but .* have 4 classes"):
        Parquet(Parquet.Config(path=str(tmp_path), classes=tuple("abcd"))).required("train")


@pytest.mark.thorough
def test_a_split_of_many_row_groups_is_sent_as_arrays(tmp_path: Path) -> None:
    tables = [pa.table({"image": [png(1)], "label": [1]})] * 2000
    with pq.ParquetWriter(tmp_path / "train.parquet", tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    split = Parquet(Parquet.Config(path=str(tmp_path))).required("train")
    assert len(pickle.dumps(split)) < 2000 * 20 + 4000
    assert all_rows(split).labels.tolist() == [1] * 2000


def test_what_writers_note_beside_the_columns_does_not_make_schemas_differ(tmp_path: Path) -> None:
    for number in range(3):
        table = pa.table({"image": [png(1)], "label": [1]}).replace_schema_metadata({"pandas": f"rows {number}"})
        pq.write_table(table, tmp_path / f"train-{number}.parquet")
    files = [str(path) for path in sorted(tmp_path.iterdir())]
    footers = parquet_columns.read_footers(fs.LocalFileSystem(), files, "image", "label", {}, "")
    assert list(footers.schemas) == files[:1]
