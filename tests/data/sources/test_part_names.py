import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysl.data.source import Source, Split
from raysl.data.sources.concat import Concat
from raysl.data.sources.image_folder import ImageFolder
from raysl.data.sources.paired import Paired
from raysl.data.sources.parquet import Parquet
from raysl.data.sources.part_names import find_part, parse_part_name
from raysl.data.sources.webdataset import WebDataset
from raysl.errors import ConfigError
from tests.data.samples import all_rows, png
from tests.data.sources.test_webdataset import tar_of


def fill(root: Path, *files: str) -> Path:
    """Images, tables and tars of one image each; the shade is the place in the list."""
    for shade, name in enumerate(files):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet"):
            pq.write_table(pa.table({"image": [png(shade)]}), path)
        else:
            path.write_bytes(tar_of({"0.png": png(shade)}) if name.endswith(".tar") else png(shade))
    return root


def shades(split: Split | None) -> list[int]:
    assert split is not None
    return [[png(shade) for shade in range(9)].index(image) for image in all_rows(split).images]  # type: ignore[arg-type]


def folder(root: Path) -> Source:
    return ImageFolder(ImageFolder.Config(path=str(root)))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("Val", "val"),
        ("validation", "val"),
        ("VALID", "val"),
        ("training", "train"),
        ("split=test", "test"),
        ("test_images", "test"),
        ("train2017", "train"),
        ("trainval", "trainval"),
        ("train_station", None),
        ("valley", None),
        ("contest", None),
        ("invalid", None),
        ("a_test", None),
    ],
)
def test_a_folder_is_a_part_where_its_whole_name_says_so(name: str, part: str | None) -> None:
    assert parse_part_name(name) == part


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("train-00000-of-00012.parquet", "train"),
        ("b_test.parquet", "test"),
        ("b-test-0001.snappy.parquet", "test"),
        ("imagenet.val.0003.tar", "val"),
        ("split=test/0.parquet", "test"),
        ("Validation/part-0.parquet", "val"),
        ("trainImages/0.tar", "train"),
        ("testdata-0.tar", "test"),
        ("test/train-0.tar", "train"),
        ("train_station/0.tar", "train"),
        ("contest.parquet", None),
        ("valley/0.tar", None),
        ("my_test_of_it.parquet", None),
    ],
)
def test_a_file_is_of_the_part_that_its_name_begins_or_ends_with(path: str, part: str | None) -> None:
    assert find_part(path) == part


@pytest.mark.parametrize("held_out", ["Val", "validation", "valid", "split=test", "Testing", "test_images"])
@pytest.mark.parametrize("training", ["train", "Training", "split=train", "."])
def test_parts_of_an_image_folder_have_many_names(tmp_path: Path, held_out: str, training: str) -> None:
    source = folder(fill(tmp_path, f"{training}/cat/1.png", f"{held_out}/cat/2.png"))
    assert (shades(source.required("train")), shades(source.required("test"))) == ([0], [1])
    assert source.required("train").classes == ("cat",)


@pytest.mark.parametrize("kind", ["parquet", "tar"])
@pytest.mark.parametrize("held_out", ["Val/0", "validation/0", "valid-0", "split=test/0", "b_test", "x-testing-000"])
@pytest.mark.parametrize("training", ["training/0", "a", "split=train/0", "x-train-000"])
def test_parts_of_files_have_many_names(tmp_path: Path, kind: str, held_out: str, training: str) -> None:
    fill(tmp_path, f"{training}.{kind}", f"{held_out}.{kind}")
    made = Parquet if kind == "parquet" else WebDataset
    source = made(made.Config(path=str(tmp_path)))
    assert (shades(source.required("train")), shades(source.required("test"))) == ([0], [1])


@pytest.mark.parametrize("kind", ["png", "parquet", "tar"])
def test_trainval_contains_val_so_that_test_is_held_out(tmp_path: Path, kind: str) -> None:
    def opened(*parts: str) -> Source:
        ending = "a/0.png" if kind == "png" else f"0.{kind}"
        root = fill(tmp_path / "-".join(parts), *(f"{part}/{ending}" for part in parts))
        made = {"png": ImageFolder, "parquet": Parquet, "tar": WebDataset}[kind]
        return made(made.Config(path=str(root)))

    source = opened("trainval", "val", "test")
    assert (shades(source.required("train")), shades(source.required("test"))) == ([0], [2])
    note = source.required("train").notes[-1]
    assert note.startswith("val in '")
    assert note.endswith("' is not held out, as trainval contains it by its name; data.test= holds it out")
    assert opened("trainval", "val").optional("test") is None
    given = type(source)(replace(source.config, test=str(Path(source.config.path) / "val")))
    assert shades(given.required("test")) == [1]
    assert not any("not held out" in note for note in given.required("train").notes), "what is given needs no note"
    source = opened("trainval", "train", "val")
    assert (shades(source.required("train")), shades(source.required("test"))) == ([1], [2])
    note = source.required("train").notes[-1]
    assert "is not used, as there is train; data.train= trains on it" in note


def test_two_folders_of_one_part_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, "train/a/1.png", "Training/a/2.png")
    with pytest.raises(ConfigError, match=r"'Training' and 'train' in '.*' are both train by name; give data.train="):
        folder(tmp_path).required("train")
    fill(tmp_path / "b", "a/1.png", "val/a/2.png", "valid/a/3.png")
    with pytest.raises(ConfigError, match=r"'val' and 'valid' in '.*' are both val by name; give data.test="):
        folder(tmp_path / "b").optional("test")
    source = ImageFolder(ImageFolder.Config(path=str(tmp_path / "b"), test=str(tmp_path / "b" / "val")))
    assert (shades(source.required("train")), shades(source.required("test"))) == ([0], [1])


def test_held_out_images_by_other_names_are_told(tmp_path: Path) -> None:
    fill(tmp_path / "images", "libpng-dev/1.png", "cat/my_test_of_it/2.png", "dev/3.png")
    (note,) = folder(tmp_path / "images").required("train").notes
    assert note.startswith("2 of the 3 training images in '")
    assert "cat/my_test_of_it, dev; if they are, rename their folder to val or test" in note
    fill(tmp_path / "tables", "a.parquet", "my_test_of_it.parquet")
    (note,) = Parquet(Parquet.Config(path=str(tmp_path / "tables"))).required("train").notes
    assert note.startswith("1 of the 2 training files in '")
    fill(tmp_path / "tars", "train-0.tar", "test-0.tar")
    (note,) = WebDataset(WebDataset.Config(train=str(tmp_path / "tars"))).required("train").notes
    assert "names like held-out ones: test-0.tar" in note
    assert WebDataset(WebDataset.Config(path=str(tmp_path / "tars"))).required("train").notes == ()


def test_files_of_no_part_beside_training_files_are_told(tmp_path: Path) -> None:
    fill(tmp_path, "train-0.parquet", "extra.parquet")
    (note,) = Parquet(Parquet.Config(path=str(tmp_path))).required("train").notes
    assert note.startswith("1 files in '")
    assert note.endswith(": extra.parquet")


def test_classes_beside_one_that_is_called_train_are_told(tmp_path: Path) -> None:
    fill(tmp_path, "bus/0.png", "car/1.png", "train/2.png")
    split = folder(tmp_path).required("train")
    assert shades(split) == [2]
    assert split.notes == (
        f"2 folders in '{tmp_path}' are not used: bus, car; by its name, 'train' is the training images; "
        f"if it is a class like them, give data.train={tmp_path}",
    )
    whole = ImageFolder(ImageFolder.Config(train=str(tmp_path))).required("train")
    assert (whole.classes, whole.notes) == (("bus", "car", "train"), ())


def test_a_folder_that_is_held_out_by_its_name_alone_is_told(tmp_path: Path) -> None:
    notes = folder(fill(tmp_path, "invalid/1.png", "good/3.png", "valid/2.png")).required("train").notes
    assert notes == (
        f"valid in '{tmp_path}' is held out because of its name; if it is a class, give data.train= the folder that "
        "contains the classes",
    )


def test_a_folder_around_all_classes_is_told(tmp_path: Path) -> None:
    notes = folder(fill(tmp_path, "usr/share/a/1.png", "usr/share/b/2.png")).required("train").notes
    assert notes == (f"all 2 images are one class, 'usr'; did you mean data.path={tmp_path}/usr/share?",)
    inner = {name: ImageFolder.Config(path=str(tmp_path)) for name in ("x", "y")}
    for several in (Concat(Concat.Config(sources=inner)), Paired(Paired.Config(sources=inner))):
        assert several.required("train").notes == (*notes, *notes)
    split = Parquet(Parquet.Config(train=str(fill(tmp_path / "p", "a.parquet")))).required("train")
    assert split.notes == ()


def test_a_circle_of_links_is_not_followed_and_links_to_one_file_are_told(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.png", "a/2.png", "b/3.png")
    os.symlink("..", tmp_path / "b/around")
    assert shades(folder(tmp_path).required("train")) == [0, 1, 2]
    os.symlink("../a/1.png", tmp_path / "b/again.png")
    os.symlink("gone.png", tmp_path / "b/dangling.png")
    os.symlink("a", tmp_path / "c")
    split = folder(tmp_path).required("train")
    assert split.num_samples == 6, "links are images of their own"
    assert split.notes == (
        f"3 of the 6 images of '{tmp_path}' are links to other images there: 'b/again.png' is 'a/1.png'; "
        "remove such links if each image is to count once",
        f"links to a folder that contains them are not followed in '{tmp_path}': b/around",
        f"1 links in '{tmp_path}' point to missing files and are left out: b/dangling.png",
    )


@pytest.mark.parametrize("kind", ["parquet", "tar"])
def test_a_circle_of_links_multiplies_no_files(tmp_path: Path, kind: str) -> None:
    fill(tmp_path, f"in/a.{kind}")
    os.symlink("..", tmp_path / "in/around")
    source = Parquet if kind == "parquet" else WebDataset
    assert source(source.Config(path=str(tmp_path))).required("train").num_samples == 1


def test_a_name_that_is_not_utf_8_is_an_image_like_others(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.png")
    odd = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(odd)
    (Path(os.fsdecode(odd + b"/\xff.png"))).write_bytes(png(5))
    split = folder(tmp_path).required("train")
    assert split.classes == ("a", "caf\\xe9")
    assert shades(split) == [0, 5]
    assert all_rows(split).names[1] == f"{tmp_path}/caf\\xe9/\\xff.png"


@pytest.mark.parametrize("kind", ["parquet", "tar"])
def test_a_file_of_many_images_whose_name_is_not_utf_8_is_named(tmp_path: Path, kind: str) -> None:
    fill(tmp_path, f"a.{kind}")
    os.rename(tmp_path / f"a.{kind}", os.fsencode(tmp_path) + b"/\xe9." + kind.encode())
    source = Parquet if kind == "parquet" else WebDataset
    with pytest.raises(ConfigError, match=r"the name of '\\\\xe9\..*' in '.*' is not UTF-8; rename it"):
        source(source.Config(path=str(tmp_path))).required("train")


def test_every_format_that_is_read_has_its_endings_and_others_are_told(tmp_path: Path) -> None:
    names = ["1.jfif", "2.ppm", "3.jp2", "4.JPE", "5.tiff"]
    split = folder(fill(tmp_path, *names, "6.heic", "7.avif", "notes.txt")).required("train")
    assert split.num_samples == 5
    (note,) = split.notes
    assert note.startswith("2 files in '")
    assert note.endswith("because raysl does not read their format: 6.heic, 7.avif; convert them to JPEG or PNG")


def test_an_absent_path_is_refused_beside_other_settings(tmp_path: Path) -> None:
    fill(tmp_path, "train/a/1.png")
    config = ImageFolder.Config(path=str(tmp_path / "gone"), train=str(tmp_path / "train"))
    with pytest.raises(ConfigError, match=r"no folder '.*gone'"):
        ImageFolder(config).optional("test")
