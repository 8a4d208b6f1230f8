import os
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysl.data.source import Missing
from raysl.data.sources import hugging_face
from raysl.data.sources.concat import Concat
from raysl.data.sources.hugging_face import HuggingFace
from raysl.errors import ConfigError, DamagedData
from tests.data.samples import all_rows, png, sent

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked of the hub, and what is prepared lies in the test's own folder."""
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def table_of(shades: list[int], labels: list[Any] | None = None, kind: Any = None) -> Any:
    """Rows of encoded images, with class labels where a kind of label is given."""
    columns: dict[str, Any] = {"image": [{"bytes": png(shade), "path": None} for shade in shades]}
    features = {"image": datasets.Image()}
    if kind is not None:
        columns["label"] = labels
        features["label"] = kind
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def source_of(path: object, **settings: Any) -> HuggingFace:
    return HuggingFace(HuggingFace.Config(dataset=str(path), **settings))


def message_of(source: HuggingFace, name: str = "train") -> str:
    with pytest.raises(ConfigError) as caught:
        source.required(name)
    return str(caught.value)


@pytest.mark.thorough
def test_a_saved_dataset_is_read_as_it_is(tmp_path: Path) -> None:
    kind = datasets.ClassLabel(names=["cat", "dog"])
    parts = {
        "train": table_of([1, 2, 3], [1, None, 0], kind),
        "test": table_of([4], [-1], kind),
        "validation": table_of([5], [1], kind),
    }
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    source = source_of(tmp_path / "saved")
    train = source.required("train")
    assert (train.classes, train.unit_sizes.tolist(), train.is_random_access) == (("cat", "dog"), [3], True)
    rows = sent(train).read(np.array([2, 0, 1, 1]))
    assert rows.images == [png(3), png(1), png(2), png(2)]
    assert rows.labels.tolist() == [0, 1, -1, -1]
    assert rows.names[0] == f"{tmp_path}/saved train 2"
    assert all_rows(source.required("test")).images == [png(5)], "validation before test"
    named = source_of(tmp_path / "saved", test_split="test")
    assert (all_rows(named.required("test")).images, all_rows(named.required("test")).labels.tolist()) == (
        [png(4)],
        [-1],
    )
    assert len(pickle.dumps(train)) < 3000


def test_one_saved_table_is_the_training_images(tmp_path: Path) -> None:
    table_of([1, 2]).save_to_disk(str(tmp_path / "saved"))
    source = source_of(tmp_path / "saved")
    rows = all_rows(source.required("train"))
    assert (rows.images, rows.labels.tolist()) == ([png(1), png(2)], [-1, -1])
    assert source.required("train").classes == ()
    assert source.optional("test") is None


def test_rows_that_were_selected_and_turned_stay_so(tmp_path: Path) -> None:
    table = table_of([1, 2, 3], [0, 1, 2], datasets.Value("int64")).select([2, 0])
    table.save_to_disk(str(tmp_path / "saved"))
    train = source_of(tmp_path / "saved").required("train")
    rows = all_rows(train)
    assert (rows.images, rows.labels.tolist(), train.classes) == ([png(3), png(1)], [2, 0], ("0", "1", "2"))


@pytest.mark.thorough
def test_held_out_labels_are_of_the_training_classes(tmp_path: Path) -> None:
    kind = datasets.Value("int64")
    parts = {"train": table_of([1, 2, 3], [0, 1, 2], kind), "val": table_of([4], [0], kind)}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "a"))
    assert source_of(tmp_path / "a").required("test").classes == ("0", "1", "2")
    for name, labels, label in (("b", [7, 0], "7"), ("c", [-5, 0], "-5")):
        datasets.DatasetDict(parts | {"val": table_of([4, 5], labels, kind)}).save_to_disk(str(tmp_path / name))
        message = message_of(source_of(tmp_path / name), "test")
        assert message.startswith(f"the split 'val' of '{tmp_path}/{name}' has the label {label}")


@pytest.mark.thorough
def test_held_out_labels_of_other_names_are_numbered_by_those_of_the_training_images(tmp_path: Path) -> None:
    def saved(folder: str, train: list[str], test: list[str], labels: list[int]) -> HuggingFace:
        kinds = [datasets.ClassLabel(names=names) for names in (train, test)]
        parts = {
            "train": table_of(list(range(len(train))), list(range(len(train))), kinds[0]),
            "test": table_of(list(range(len(labels))), labels, kinds[1]),
        }
        datasets.DatasetDict(parts).save_to_disk(str(tmp_path / folder))
        return source_of(tmp_path / folder)

    test = saved("a", ["cat", "dog", "emu"], ["cat", "emu"], [0, 1, -1, 1]).required("test")
    assert (all_rows(test).labels.tolist(), test.classes) == ([0, 2, -1, 2], ("cat", "dog", "emu"))
    assert all_rows(saved("b", ["cat", "dog"], ["emu", "cat"], [1]).required("test")).labels.tolist() == [0]
    assert "has labels that no training image has: 'emu'; use the same names" in message_of(
        saved("c", ["cat", "dog"], ["emu", "cat"], [0]), "test"
    )
    both = {key: HuggingFace.Config(dataset=str(tmp_path / key)) for key in ("a", "b")}
    joined = Concat(Concat.Config(sources=both)).required("test")
    assert (joined.classes, all_rows(joined).labels.tolist()) == (("cat", "dog", "emu"), [0, 2, -1, 2, 0])


@pytest.mark.thorough
def test_texts_and_floats_are_labels_by_the_rule_of_all_columns(tmp_path: Path) -> None:
    def saved(folder: str, kind: str, train: list[Any], test: list[Any]) -> HuggingFace:
        parts = {
            part: table_of(list(range(len(labels))), labels, datasets.Value(kind))
            for part, labels in (("train", train), ("test", test))
        }
        datasets.DatasetDict(parts).save_to_disk(str(tmp_path / folder))
        return source_of(tmp_path / folder)

    source = saved("a", "string", ["dog", "cafe\u0301", "nan", None], ["caf\u00e9", "", "dog"])
    assert source.required("train").classes == ("caf\u00e9", "dog")
    assert all_rows(source.required("train")).labels.tolist() == [1, 0, -1, -1]
    assert all_rows(source.required("test")).labels.tolist() == [0, -1, 1]
    source = saved("b", "float64", [1.0, float("nan"), 2.0], [2.0, 1.0])
    assert all_rows(source.required("train")).labels.tolist() == [1, -1, 2]
    assert all_rows(source.required("test")).labels.tolist() == [2, 1]
    assert "row 2: the label 'x' is no whole number" in message_of(saved("c", "string", ["1", "x"], ["1"]))
    assert "no training image has: 'emu'" in message_of(saved("d", "string", ["cat", "dog"], ["emu"]), "test")
    assert "no training image has: '0'" in message_of(saved("e", "string", ["cat", "dog"], ["0"]), "test")
    assert "no training image has: 0; number" in message_of(saved("f", "int64", [1, 2, 3], [0, 1, 2]), "test")


@pytest.mark.thorough
def test_ids_are_no_labels(tmp_path: Path) -> None:
    table_of([1], [30_000_000], datasets.Value("int64")).save_to_disk(str(tmp_path / "saved"))
    assert "has the label 30000000; the largest is 10,000,000: are these ids? set data.label_column=" in message_of(
        source_of(tmp_path / "saved")
    )


@pytest.mark.thorough
def test_a_folder_of_parquet_files_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    for shade, part in enumerate(("train", "test")):
        table = pa.table({"picture": [png(shade)] * 2, "kind": [0, 1]})
        pq.write_table(table, tmp_path / "files" / f"{part}-00000-of-00001.parquet")
    source = source_of(tmp_path / "files", image_column="picture", label_column="kind")
    assert all_rows(source.required("train")).images == [png(0)] * 2
    assert all_rows(source.required("test")).images == [png(1)] * 2
    assert all_rows(source.required("test")).labels.tolist() == [0, 1]


def test_images_may_be_files_and_one_that_vanishes_is_missing(tmp_path: Path) -> None:
    for shade, label in enumerate(("cat", "dog")):
        (tmp_path / "files" / "train" / label).mkdir(parents=True)
        (tmp_path / "files" / "train" / label / "1.png").write_bytes(png(shade))
    train = source_of(tmp_path / "files").required("train")
    assert train.classes == ("cat", "dog")
    assert all_rows(train).images == [png(0), png(1)]
    (tmp_path / "files" / "train" / "cat" / "1.png").unlink()
    assert all_rows(train).images == [Missing("file not found"), png(1)]
    assert all_rows(train).labels.tolist() == [0, 1]


def test_other_images_have_another_fingerprint(tmp_path: Path) -> None:
    prints = []
    for number, shades in enumerate([[1, 2], [1, 2], [1, 2, 3]]):
        table_of(shades).save_to_disk(str(tmp_path / str(number)))
        prints.append(source_of(tmp_path / str(number)).required("train").fingerprint)
    assert prints[0] == prints[1] != prints[2]


def test_paths_are_absolute_and_names_of_the_hub_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table_of([1]).save_to_disk(str(tmp_path / "saved"))
    monkeypatch.chdir(tmp_path)
    assert HuggingFace.Config(dataset="saved").dataset == str(tmp_path / "saved")
    assert HuggingFace.Config(dataset="uoft-cs/cifar10").dataset == "uoft-cs/cifar10"


def test_columns_that_are_none_are_refused(tmp_path: Path) -> None:
    table_of([1], ["cat"], datasets.Value("string")).save_to_disk(str(tmp_path / "saved"))
    assert "has no column 'img'; its columns: image, label; set data.image_column=" in message_of(
        source_of(tmp_path / "saved", image_column="img")
    )
    assert "column 'label' holds Value('string'), not images" in message_of(
        source_of(tmp_path / "saved", image_column="label")
    )
    table_of([1], [[0]], datasets.Sequence(datasets.Value("int64"))).save_to_disk(str(tmp_path / "lists"))
    message = message_of(source_of(tmp_path / "lists"))
    assert (
        "column 'label' holds List(Value('int64')), not class labels, numbers or names; set data.label_col" in message
    )


@pytest.mark.thorough
def test_places_that_are_no_dataset_are_told(tmp_path: Path) -> None:
    assert "hugging_face needs data.dataset=" in message_of(HuggingFace(HuggingFace.Config()))
    assert "no folder" in message_of(source_of(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    assert f"cannot load '{tmp_path}/empty' with datasets: " in message_of(source_of(tmp_path / "empty"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "train.parquet").write_bytes(b"x")
    assert "datasets: Parquet" in message_of(source_of(tmp_path / "broken"))
    table_of([]).save_to_disk(str(tmp_path / "no_rows"))
    assert f"cannot load '{tmp_path}/no_rows' with datasets: " in message_of(source_of(tmp_path / "no_rows"))
    table_of([1]).save_to_disk(str(tmp_path / "saved"))
    assert "has no split 'unlabeled'; its splits: train; set data.train_split=" in message_of(
        source_of(tmp_path / "saved", train_split="unlabeled")
    )


def test_a_dataset_that_is_saved_anew_is_read_anew_and_not_under_a_run(tmp_path: Path) -> None:
    def save(shades: list[int]) -> None:
        shutil.rmtree(tmp_path / "saved", ignore_errors=True)
        table_of(shades, shades, datasets.Value("int64")).save_to_disk(str(tmp_path / "saved"))

    save([1, 2, 3])
    before = source_of(tmp_path / "saved").required("train")
    assert all_rows(before).labels.tolist() == [1, 2, 3]
    unread = source_of(tmp_path / "saved").required("train")
    hugging_face._images.cache_clear()
    save([3, 2, 1])
    rows = all_rows(source_of(tmp_path / "saved").required("train"))
    assert (rows.images, rows.labels.tolist()) == ([png(3), png(2), png(1)], [3, 2, 1])
    with pytest.raises(DamagedData, match=r"the dataset '.*/saved' was written anew while it was in use; start again"):
        all_rows(sent(unread))


def test_files_that_are_written_anew_are_read_anew(tmp_path: Path) -> None:
    for number, shades in enumerate(([1, 2, 3], [3, 2, 1])):
        file = tmp_path / "files" / "train.parquet"
        file.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"image": [png(shade) for shade in shades], "label": shades}), file)
        os.utime(file, (number + 1, number + 1))
        rows = all_rows(source_of(tmp_path / "files").required("train"))
        assert (rows.images, rows.labels.tolist()) == ([png(shade) for shade in shades], shades)


@pytest.mark.parametrize(
    ("settings", "held_out"), [({}, "test"), ({"train_split": "trainval"}, "test"), ({"train_split": "train"}, "val")]
)
def test_trainval_contains_val_so_that_test_is_held_out(tmp_path: Path, settings: Any, held_out: str) -> None:
    shades = {"trainval": 1, "val": 2, "test": 3} | ({"train": 4} if settings else {})
    datasets.DatasetDict({name: table_of([shade]) for name, shade in shades.items()}).save_to_disk(str(tmp_path / "s"))
    source = source_of(tmp_path / "s", **settings)
    assert all_rows(source.required("train")).images == [png(shades[settings.get("train_split", "trainval")])]
    assert all_rows(source.required("test")).images == [png(shades[held_out])]
    assert bool(source.required("train").notes) == (settings.get("train_split") != "trainval"), "a choice needs no note"


def test_a_split_without_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysl.data.sources.hugging_face._load", lambda *_: {"train": table_of([])})
    assert message_of(source_of("mine")) == "the split 'train' of 'mine' has no rows"


def test_without_the_package_its_installation_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "run `pip install datasets`" in message_of(source_of(tmp_path))


@pytest.mark.thorough
def test_splits_are_known_by_the_usual_names(tmp_path: Path) -> None:
    parts = {"Training": table_of([1]), "extra": table_of([2]), "valid": table_of([3]), "testing": table_of([4])}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "a"))
    source = source_of(tmp_path / "a")
    assert [all_rows(source.required(name)).images for name in ("train", "test")] == [[png(1)], [png(3)]]
    assert source.required("train").notes == ()
    datasets.DatasetDict({"train": table_of([1]), "dev": table_of([2])}).save_to_disk(str(tmp_path / "b"))
    assert source_of(tmp_path / "b").required("train").notes == (
        f"'{tmp_path}/b' has no split that is called held-out; its splits dev are not used: give data.test_split= to "
        "measure on one",
    )


def test_what_the_settings_name_must_be_there(tmp_path: Path) -> None:
    table_of([1], [0], datasets.Value("int64")).save_to_disk(str(tmp_path / "saved"))
    assert f"'{tmp_path}/saved' has no column 'kind'; its columns: image, label; set data.label_column=" in message_of(
        source_of(tmp_path / "saved", label_column="kind")
    )
    assert "data.subset_name='x': " in message_of(source_of(tmp_path / "saved", subset_name="x"))
    assert source_of(tmp_path / "saved", label_column=None).required("train").classes == ()
