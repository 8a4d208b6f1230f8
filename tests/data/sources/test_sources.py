import io
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pyarrow import fs

from raysl.config.build import build_node
from raysl.config.places import source_at
from raysl.data.source import Missing, Split
from raysl.data.sources import image_files
from raysl.data.sources.concat import Concat
from raysl.data.sources.digits import Digits
from raysl.data.sources.file_list import FileList
from raysl.data.sources.image_files import check_present
from raysl.data.sources.image_folder import ImageFolder
from raysl.data.sources.listing import list_folder_files
from raysl.data.sources.parquet import Parquet
from raysl.data.sources.synthetic import Synthetic
from raysl.errors import ConfigError


def png(shade: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (shade, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def everything(split: Split) -> list[tuple[Any, int]]:
    rows = split.read(np.arange(split.num_samples))
    return list(zip(rows.images, rows.labels.tolist(), strict=True))


def sent(split: Split) -> Split:
    """As it arrives in another process."""
    copy = pickle.loads(pickle.dumps(split))
    assert isinstance(copy, Split)
    return copy


# digits


def test_digits_are_split_by_class_the_same_way_every_time() -> None:
    train, test = (Digits(Digits.Config()).required(name) for name in ("train", "test"))
    assert train.num_samples + test.num_samples == 1797
    train_rows, test_rows = train.read(np.arange(train.num_samples)), test.read(np.arange(test.num_samples))
    assert not set(train_rows.names) & set(test_rows.names)
    counts = np.bincount(np.concatenate([train_rows.labels, test_rows.labels]))
    assert np.array_equal(np.bincount(test_rows.labels), counts // 5)
    assert test_rows.names[:4] == ["digit 4", "digit 7", "digit 8", "digit 12"]
    assert sent(test).read(np.arange(test.num_samples)).names == test_rows.names


def test_a_digit_is_what_scikit_learn_has_there() -> None:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    rows = sent(Digits(Digits.Config()).required("test")).read(np.array([5, 0]))
    for image, label, name in zip(rows.images, rows.labels, rows.names, strict=True):
        number = int(name.split()[1])
        assert label == bunch.target[number]
        assert np.abs(np.asarray(image) - bunch.images[number] * 255 / 16).max() <= 0.5


# synthetic


def test_synthetic_images_depend_on_their_index_alone() -> None:
    train = Synthetic(Synthetic.Config(num_train=40, image_size=8)).required("train")
    rows, one = train.read(np.arange(40)), sent(train).read(np.array([17]))
    assert np.array_equal(one.images[0], rows.images[17])
    assert len({np.asarray(image).tobytes() for image in rows.images}) == 40
    assert set(rows.labels) <= set(range(10))


def test_synthetic_splits_share_no_image() -> None:
    source = Synthetic(Synthetic.Config(num_train=50, num_test=50, image_size=8))
    pixels = [{np.asarray(image).tobytes() for image, _ in everything(source.required(n))} for n in ("train", "test")]
    assert not pixels[0] & pixels[1]
    with pytest.raises(ConfigError, match=r"num_classes: 0 is out of range; give a number in \[1, 100000\]"):
        build_node(Synthetic.Config, {"num_classes": 0}, "data")


def test_a_limit_takes_an_even_share_of_a_split() -> None:
    source = Synthetic(Synthetic.Config(num_train=100, image_size=8, limit=4))
    whole = Synthetic(Synthetic.Config(num_train=100, image_size=8)).required("train")
    rows, expected = source.required("train").read(np.arange(4)), whole.read(np.array([0, 25, 50, 75]))
    assert all(np.array_equal(a, b) for a, b in zip(rows.images, expected.images, strict=True))
    assert source.required("train").fingerprint != whole.fingerprint


# image_folder


def fill(folder: Path, files: Iterable[str]) -> Path:
    for shade, name in enumerate(sorted(files)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(shade))
    return folder


def names_and_labels(split: Split, root: Path) -> list[tuple[str, int]]:
    rows = sent(split).read(np.arange(split.num_samples))
    assert all(isinstance(image, bytes) and image.startswith(b"\x89PNG") for image in rows.images)
    inner = [Path(name).relative_to(root).as_posix() for name in rows.names]
    return list(zip(inner, rows.labels.tolist(), strict=True))


def folder_of(root: Path, **settings: Any) -> ImageFolder:
    return ImageFolder(ImageFolder.Config(path=str(root), **settings))


def test_sub_folders_are_classes_however_deep_the_images_lie(tmp_path: Path) -> None:
    source = folder_of(fill(tmp_path, ["b/1.png", "a/x/y/2.JPEG", "a/3.png", "a/notes.txt"]))
    train = source.required("train")
    assert train.classes == ("a", "b")
    assert names_and_labels(train, tmp_path) == [("a/3.png", 0), ("a/x/y/2.JPEG", 0), ("b/1.png", 1)]
    assert source.optional("test") is None


def test_images_that_lie_flat_have_no_labels(tmp_path: Path) -> None:
    train = folder_of(fill(tmp_path, ["2.png", "1.png", ".hidden.png", ".cache/3.png"])).required("train")
    assert train.classes == ()
    assert names_and_labels(train, tmp_path) == [("1.png", -1), ("2.png", -1)]


NFC, NFD = "caf\u00e9", "cafe\u0301"


def test_names_in_decomposed_characters_are_those_in_composed_ones(tmp_path: Path) -> None:
    fill(tmp_path, [f"train/{NFC}/1.png", f"train/{NFD}/2.png", "train/dog/3.png", f"val/{NFD}/{NFD}.png"])
    source = folder_of(tmp_path)
    assert (source.required("train").classes, source.required("train").num_samples) == ((NFC, "dog"), 3)
    assert names_and_labels(source.required("test"), tmp_path) == [(f"val/{NFD}/{NFD}.png", 0)]
    (tmp_path / "list.csv").write_text(f"path,label\n{NFC}.png,{NFC}\n")
    (tmp_path / "names.txt").write_text(f"{NFC}.png\n")
    listed = FileList.Config(train=str(tmp_path / "list.csv"), root=str(tmp_path / "val" / NFD))
    assert everything(FileList(listed).required("train")) == [(png(3), 0)]
    config = ImageFolder.Config(train=str(tmp_path / "val"), subset=str(tmp_path / "names.txt"))
    assert ImageFolder(config).required("train").num_samples == 1
    (file,) = check_present(str(tmp_path / "val" / NFD), [f"{NFC}.png"], "the list")
    assert file.path == f"{NFD}.png"
    both = {"a": ImageFolder.Config(train=str(tmp_path / "val")), "b": listed}
    joined = Concat(Concat.Config(sources=both)).required("train")
    assert (joined.classes, joined.labels_of(np.arange(2)).tolist()) == ((NFC,), [0, 0])


LEFTOVERS = [
    "@eaDir/1.png/SYNOPHOTO_THUMB_M.png",
    "#recycle/2.png",
    "$RECYCLE.BIN/$R1.png",
    "__MACOSX/cat/1.png",
    ".Trash-1000/files/3.png",
    ".ipynb_checkpoints/1-checkpoint.png",
    "lost+found/4.png",
    "System Volume Information/5.png",
    "Thumbs.db/6.png",
    "cat/._1.png",
    "cat/@eaDir/7.png",
]


def test_what_systems_leave_behind_is_no_class(tmp_path: Path) -> None:
    fill(tmp_path, ["train/cat/1.png", "train/dog/2.png", *(f"train/{name}" for name in LEFTOVERS), "__MACOSX/0.png"])
    train = folder_of(tmp_path).required("train")
    assert (train.classes, train.num_samples, train.notes) == (("cat", "dog"), 2, ())
    assert sorted(list_folder_files(str(tmp_path / "train/cat"))) == ["1.png"]


def test_what_systems_leave_behind_in_a_bucket_is_no_class() -> None:
    memory = fsspec.filesystem("memory")
    for name in ("cat/1.png", "dog/2.png", *LEFTOVERS):
        memory.pipe(f"/leftovers/{name}", png(7))
    try:
        assert ImageFolder(ImageFolder.Config(path="memory://leftovers")).required("train").classes == ("cat", "dog")
    finally:
        memory.rm("/leftovers", recursive=True)


def test_a_folder_is_known_by_its_images_not_by_what_systems_leave_behind(tmp_path: Path) -> None:
    fill(tmp_path, LEFTOVERS)
    (tmp_path / "cat" / "train.tar").write_bytes(b"")
    assert source_at(str(tmp_path))["name"] == "webdataset"


@pytest.mark.parametrize("held_out", ["val", "test"])
def test_train_and_held_out_folders_are_the_splits(tmp_path: Path, held_out: str) -> None:
    source = folder_of(fill(tmp_path, ["train/a/1.png", "train/b/2.png", f"{held_out}/b/3.png", "other/c/4.png"]))
    assert names_and_labels(source.required("train"), tmp_path) == [("train/a/1.png", 0), ("train/b/2.png", 1)]
    test = source.required("test")
    assert names_and_labels(test, tmp_path) == [(f"{held_out}/b/3.png", 1)], "labels are those of the training classes"
    assert test.classes == ("a", "b")


def test_held_out_images_never_train_even_without_a_train_folder(tmp_path: Path) -> None:
    source = folder_of(fill(tmp_path, ["a/1.png", "val/a/2.png"]))
    assert names_and_labels(source.required("train"), tmp_path) == [("a/1.png", 0)]
    assert names_and_labels(source.required("test"), tmp_path) == [("val/a/2.png", 0)]


def test_neither_of_two_held_out_folders_trains(tmp_path: Path) -> None:
    source = folder_of(fill(tmp_path, ["a/1.png", "val/a/2.png", "test/a/3.png"]))
    assert source.required("train").classes == ("a",)
    assert names_and_labels(source.required("train"), tmp_path) == [("a/1.png", 0)]
    assert names_and_labels(source.required("test"), tmp_path) == [("val/a/2.png", 0)]
    alone = folder_of(fill(tmp_path / "none", ["val/2.png", "test/3.png"]))
    with pytest.raises(ConfigError, match=r"no images in '.*none' outside val/ and test/; it is searched for"):
        alone.required("train")


def test_a_held_out_class_without_training_images_is_refused(tmp_path: Path) -> None:
    source = folder_of(fill(tmp_path, ["train/cat/1.png", "val/cats/2.png"]))
    with pytest.raises(ConfigError, match=r"classes without training images: cats"):
        source.required("test")


def test_paths_are_absolute_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, ["images/a/1.png"])
    pq.write_table(pa.table({"image": [png(1)]}), tmp_path / "x.parquet")
    monkeypatch.chdir(tmp_path)
    folder, table = ImageFolder.Config(path="images"), Parquet.Config(path="x.parquet")
    monkeypatch.chdir("/")
    assert folder.path == str(tmp_path / "images")
    for split in (ImageFolder(folder).required("train"), Parquet(table).required("train")):
        assert len(sent(split).read(np.array([0])).images) == 1
    assert ImageFolder.Config(train="memory://x").train == "memory://x"


def test_other_images_have_another_fingerprint(tmp_path: Path) -> None:
    fill(tmp_path, ["a.png", "b.png"])
    before = folder_of(tmp_path).required("train").fingerprint
    assert folder_of(tmp_path).required("train").fingerprint == before
    (tmp_path / "c.png").write_bytes(png(3))
    assert folder_of(tmp_path).required("train").fingerprint != before


def test_images_are_in_the_order_of_torchvision(tmp_path: Path) -> None:
    from torchvision.datasets import ImageFolder as Reference

    names = ["a/z.png", "a/b/1.png", "a-b/1.png", "a/10.png", "a/9.png", "a/b-c/1.png", "B/1.png"]
    fill(tmp_path, names)
    expected = [(Path(path).relative_to(tmp_path).as_posix(), label) for path, label in Reference(tmp_path).samples]
    assert names_and_labels(folder_of(tmp_path).required("train"), tmp_path) == expected


def test_an_image_that_vanished_is_missing_and_the_others_are_read(tmp_path: Path) -> None:
    train = folder_of(fill(tmp_path, ["a/1.png", "b/2.png"])).required("train")
    (tmp_path / "a/1.png").unlink()
    rows = sent(train).read(np.array([1, 0]))
    assert rows.images == [png(1), Missing("file not found")]
    assert rows.names[1] == str(tmp_path / "a/1.png")


def test_labels_and_names_are_told_without_reading_images(tmp_path: Path) -> None:
    train = folder_of(fill(tmp_path, ["a/1.png", "b/2.png"])).required("train")
    (tmp_path / "b/2.png").unlink()
    assert train.labels_of(np.array([1, 0])).tolist() == [1, 0]
    assert train.names_of(np.array([1])) == [str(tmp_path / "b/2.png")]


def test_a_folder_is_opened_once_for_the_names_of_many_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = folder_of(fill(tmp_path, ["a/1.png", "b/2.png", "b/3.png"])).required("train")
    opened: list[str] = []
    monkeypatch.setattr(image_files, "open_uri", lambda uri: opened.append(uri) or (fs.LocalFileSystem(), uri))
    assert train.names_of(np.array([2, 0])) == [str(tmp_path / "b/3.png"), str(tmp_path / "a/1.png")]
    assert opened == [str(tmp_path)]


def test_a_split_of_many_files_is_sent_small(tmp_path: Path) -> None:
    names = [f"class_{number % 3}/image_{number:05d}.png" for number in range(300)]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert len(pickle.dumps(folder_of(tmp_path).required("train"))) < sum(map(len, names)) + 300 * 16 + 2000


class Forbidden(fsspec.AbstractFileSystem):
    """A folder that may be seen but neither be listed nor be read from."""

    def info(self, path: str, **settings: Any) -> dict[str, Any]:
        return {"name": path, "type": "directory", "size": 0}

    def find(self, path: str, **settings: Any) -> dict[str, Any]:
        raise PermissionError(13, "Permission denied", path)

    def cat_file(self, path: str, start: Any = None, end: Any = None, **settings: Any) -> bytes:
        raise PermissionError(13, "Permission denied", path)


def forbidden(uri: str) -> tuple[fs.FileSystem, str]:
    return fs.PyFileSystem(fs.FSSpecHandler(Forbidden(skip_instance_cache=True))), uri


def test_a_folder_without_the_rights_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysl.storage.addresses.open_uri", forbidden)
    with pytest.raises(ConfigError, match=r"cannot read '/secret': .*Permission denied.*; check the address"):
        folder_of(Path("/secret")).required("train")


def test_a_bucket_that_is_not_there_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(self: Any, path: str, **settings: Any) -> dict[str, Any]:
        raise OSError("When getting information for bucket 'gone': AWS Error NO_SUCH_BUCKET\nRequest ID: 1")

    monkeypatch.setattr(Forbidden, "info", gone)
    monkeypatch.setattr("raysl.storage.addresses.open_uri", forbidden)
    for source in (ImageFolder(ImageFolder.Config(train="s3://gone/x")), Parquet(Parquet.Config(train="s3://gone/x"))):
        with pytest.raises(
            ConfigError, match=r"cannot read 's3://gone/x': .*NO_SUCH_BUCKET; check the address"
        ) as caught:
            source.required("train")
        assert "\n" not in str(caught.value)


def test_an_image_without_the_rights_is_no_missing_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = folder_of(fill(tmp_path, ["a/1.png"])).required("train")
    monkeypatch.setattr("raysl.data.sources.image_files.open_uri", forbidden)
    with pytest.raises(ConfigError, match=r"cannot read '.*a/1.png': .*Permission denied"):
        train.read(np.array([0]))


def test_images_behind_a_uri() -> None:
    memory = fsspec.filesystem("memory")
    for name in ("train/a/1.png", "train/b/2.png"):
        memory.pipe(f"/remote_images/{name}", png(7))
    try:
        rows = ImageFolder(ImageFolder.Config(path="memory://remote_images")).required("train").read(np.array([1, 0]))
        assert rows.images == [png(7), png(7)]
        assert rows.labels.tolist() == [1, 0]
    finally:
        memory.rm("/remote_images", recursive=True)


def test_held_out_images_behind_a_uri_with_a_query_never_train(tmp_path: Path) -> None:
    for name in ("cat/1.png", "val/cat/2.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(png(int(name[-5])))
    source = ImageFolder(ImageFolder.Config(path=f"file://{tmp_path}?mode=a/b"))
    assert [everything(source.required(name)) for name in ("train", "test")] == [[(png(1), 0)], [(png(2), 0)]]


# parquet


def write(path: Path, shades: Iterable[int], labels: Any = "own", rows: int = 2, column: Any = None) -> None:
    shades = list(shades)
    table: dict[str, Any] = {"image": [png(shade) for shade in shades] if column is None else column}
    if labels is not None:
        table["label"] = shades if labels == "own" else labels
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table), path, row_group_size=rows)


def table_of(path: Path, **settings: Any) -> Parquet:
    return Parquet(Parquet.Config(path=str(path), **settings))


def test_row_groups_are_the_units_and_any_order_can_be_read(tmp_path: Path) -> None:
    write(tmp_path / "b.parquet", range(5, 8))
    write(tmp_path / "a.parquet", range(5))
    train = table_of(tmp_path).required("train")
    assert train.unit_sizes.tolist() == [2, 2, 1, 2, 1]
    assert train.classes == tuple(str(label) for label in range(8))
    rows = sent(train).read(np.array([7, 0, 3, 3]))
    assert rows.images == [png(7), png(0), png(3), png(3)]
    assert rows.labels.tolist() == [7, 0, 3, 3]
    assert rows.names[0] == f"{tmp_path}/b.parquet row 0"


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train-0.parquet", "test-0.parquet"),
        ("train-0.parquet", "validation-0.parquet"),
        ("data/train/0.parquet", "data/val/0.parquet"),
        ("images.parquet", "test.parquet"),
    ],
)
def test_names_of_files_or_folders_pick_the_split(tmp_path: Path, train: str, test: str) -> None:
    write(tmp_path / train, [0, 1])
    write(tmp_path / test, [2], labels=[1])
    source = table_of(tmp_path)
    assert everything(source.required("train")) == [(png(0), 0), (png(1), 1)]
    assert everything(source.required("test")) == [(png(2), 1)]


def test_val_is_preferred_and_neither_trains(tmp_path: Path) -> None:
    for shade, name in enumerate(["x.parquet", "val.parquet", "test.parquet"]):
        write(tmp_path / name, [shade], labels=[0])
    source = table_of(tmp_path)
    assert everything(source.required("train")) == [(png(0), 0)]
    assert everything(source.required("test")) == [(png(1), 0)]


def test_splits_can_be_named_one_by_one(tmp_path: Path) -> None:
    write(tmp_path / "p.parquet", [0, 1])
    write(tmp_path / "q.parquet", [1])
    settings = Parquet.Config(train=str(tmp_path / "p.parquet"), test=str(tmp_path / "q.parquet"), classes=("x", "y"))
    source = Parquet(settings)
    assert source.required("train").classes == ("x", "y")
    assert everything(source.required("test")) == [(png(1), 1)]
    assert Parquet(Parquet.Config(train=str(tmp_path / "p.parquet"))).optional("test") is None


def test_without_a_label_column_nothing_is_labelled(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [3, 4], labels=None)
    train = table_of(tmp_path).required("train")
    assert train.classes == ()
    assert everything(train) == [(png(3), -1), (png(4), -1)]


def test_null_labels_are_unlabelled_and_null_images_are_left_to_the_decoder(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [0, 1], labels=[None, 1], column=[png(0), None])
    assert everything(table_of(tmp_path).required("train")) == [(png(0), -1), (None, 1)]


def test_images_may_be_structs_of_bytes_and_path(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [5], labels=[0], column=[{"bytes": png(5), "path": "5.png"}])
    assert everything(table_of(tmp_path).required("train")) == [(png(5), 0)]


def test_two_columns_of_one_file_are_kept_apart(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": [png(1)], "depth": [png(2)]}), tmp_path / "a.parquet")
    assert everything(table_of(tmp_path).required("train")) == [(png(1), -1)]
    assert everything(table_of(tmp_path, image_column="depth").required("train")) == [(png(2), -1)]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"picture": [b"x"]}, r"has no column 'image'; its columns: picture; set data.image_column="),
        ({"image": ["a.png"]}, r"column 'image' holds string, not encoded images"),
        ({"image": [b"x"], "label": [1.5]}, r"a.parquet, row 1: the label 1.5 is no whole number"),
        ({"image": pa.array([], pa.binary())}, r"no rows in"),
    ],
)
def test_tables_that_are_no_images_are_refused(tmp_path: Path, table: dict[str, Any], message: str) -> None:
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=message):
        table_of(tmp_path).required("train")


def test_a_large_table_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.parquet", range(4))
    assert table_of(tmp_path).required("train").is_random_access
    monkeypatch.setattr("raysl.data.sources.parquet_split.RANDOM_ACCESS_BYTES", 100)
    assert not table_of(tmp_path).required("train").is_random_access


def test_only_the_named_sub_folders_of_a_folder_are_used(tmp_path: Path) -> None:
    for name in ("train/ant/1.png", "train/bee/2.png", "train/cat/3.png", "val/ant/4.png", "val/bee/5.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(png(1))
    source = ImageFolder(ImageFolder.Config(path=str(tmp_path), classes=("bee", "ant")))
    train, test = source.required("train"), source.required("test")
    assert (train.classes, train.num_samples, test.num_samples) == (("ant", "bee"), 2, 2)
    assert train.names_of(np.arange(2)) == [f"{tmp_path}/train/{name}" for name in ("ant/1.png", "bee/2.png")]
    with pytest.raises(ConfigError, match=r"1 of the 2 folders that data.classes= names have no images in .*: dog"):
        ImageFolder(ImageFolder.Config(path=str(tmp_path), classes=("dog", "ant"))).required("train")
