import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysl.data.sources.coco import COCO
from raysl.errors import ConfigError
from tests.data.samples import all_rows, png, sent

CATEGORIES = [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}, {"id": 3, "name": "car"}]


def note(image: int, category: int, iscrowd: int = 0) -> dict[str, int]:
    return {"id": 7, "image_id": image, "category_id": category, "iscrowd": iscrowd}


def dataset(root: Path, year: str = "2017", folder: str = "", **content: Any) -> Path:
    """Three training images and a held-out one, in COCO's layout."""
    parts = {
        f"train{year}": (
            [9, 2, 5],
            [note(9, 18), note(9, 18), note(9, 1, 1), note(2, 1, 1), note(2, 1), note(2, 1, 1)],
        ),
        f"val{year}": ([4], [note(4, 3)]),
    }
    (root / "annotations").mkdir(parents=True)
    for part, (ids, notes) in parts.items():
        images = [{"id": number, "file_name": f"{number:012d}.jpg"} for number in ids]
        table = {"images": images, "annotations": notes, "categories": CATEGORIES, **content}
        (root / "annotations" / f"instances_{part}.json").write_text(json.dumps(table))
        (root / folder / part).mkdir(parents=True)
        for number in ids:
            (root / folder / part / f"{number:012d}.jpg").write_bytes(png(number))
    return root


def source_of(path: Path, **settings: Any) -> COCO:
    return COCO(COCO.Config(path=str(path), **settings))


def message_of(source: COCO, name: str = "train") -> str:
    with pytest.raises(ConfigError) as caught:
        source.required(name)
    return str(caught.value)


@pytest.mark.parametrize(("year", "folder"), [("2017", ""), ("2014", "images")])
def test_labels_say_which_categories_an_image_has(tmp_path: Path, year: str, folder: str) -> None:
    source = source_of(dataset(tmp_path, year, folder))
    train = source.required("train")
    assert (train.classes, train.is_multilabel, train.num_samples) == (("person", "car", "dog"), True, 3)
    rows = all_rows(train)
    assert rows.images == [png(2), png(5), png(9)], "in the order of their ids"
    assert rows.labels.dtype == np.int64
    assert rows.labels.tolist() == [[1, 0, 0], [0, 0, 0], [-1, 0, 1]]
    assert rows.names[0] == str(tmp_path / folder / f"train{year}" / "000000000002.jpg")
    assert sent(source.required("test")).read(np.array([0])).labels.tolist() == [[0, 1, 0]]


def test_sets_can_be_named(tmp_path: Path) -> None:
    path = dataset(tmp_path)
    source = source_of(path, train_set="val2017", test_set="train2017")
    assert (source.required("train").num_samples, source.required("test").num_samples) == (1, 3)
    (path / "annotations/instances_val2017.json").unlink()
    assert source_of(path).optional("test") is None


def test_other_labels_have_another_fingerprint(tmp_path: Path) -> None:
    prints = {source_of(dataset(tmp_path / "a")).required("train").fingerprint}
    prints.add(source_of(dataset(tmp_path / "b")).required("train").fingerprint)
    assert len(prints) == 1
    prints.add(source_of(dataset(tmp_path / "c", annotations=[])).required("train").fingerprint)
    assert len(prints) == 2


def test_an_image_of_another_size_gives_another_fingerprint(tmp_path: Path) -> None:
    path = dataset(tmp_path)
    before = source_of(path).required("train").fingerprint
    (path / "train2017" / "000000000005.jpg").write_bytes(b"other")
    assert source_of(path).required("train").fingerprint != before


def test_a_uri_may_have_a_query(tmp_path: Path) -> None:
    split = COCO(COCO.Config(path=f"file://{dataset(tmp_path)}?mode=1")).required("train")
    assert all_rows(split).images == [png(2), png(5), png(9)]


def test_annotations_that_name_absent_images_are_refused(tmp_path: Path) -> None:
    path = dataset(tmp_path)
    (path / "train2017" / "000000000005.jpg").unlink()
    message = message_of(source_of(path))
    assert message.startswith("1 of the 3 images that instances_train2017.json lists are not in")
    assert message.endswith("first '000000000005.jpg'; is the download complete?")
    for file in (path / "train2017").iterdir():
        file.unlink()
    (path / "train2017").rmdir()
    assert "no folder" in message_of(source_of(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"images": []}, "instances_train2017.json lists no images"),
        ({"annotations": [note(77, 1)]}, "names the image 77 and the category 1, of which the file lists at most one"),
        ({"annotations": [note(9, 2)]}, "names the image 9 and the category 2, of which the file lists at most one"),
        (
            {"images": [{"id": 1, "file_name": f"{number}.jpg"} for number in range(3)]},
            "instances_train2017.json: 3 of 'images' have the id 1; give each an id of its own",
        ),
        (
            {"categories": [*CATEGORIES, {"id": 3, "name": "bus"}]},
            "instances_train2017.json: 2 of 'categories' have the id 3; give each an id of its own",
        ),
    ],
)
def test_annotations_that_fit_nothing_are_refused(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    assert message in message_of(source_of(dataset(tmp_path, **content)))


def test_files_that_are_missing_or_none_are_told(tmp_path: Path) -> None:
    assert "coco needs data.path=" in message_of(COCO(COCO.Config()))
    assert "no instances_train2017.json or instances_train2014.json in" in message_of(source_of(tmp_path))
    path = dataset(tmp_path / "coco")
    assert f"no {path}/annotations/instances_x.json" in message_of(source_of(path, test_set="x"), "test")
    for content in ("{", "[]", '{"images": []}'):
        (path / "annotations/instances_train2017.json").write_text(content)
        assert "instances_train2017.json is not a COCO annotation file" in message_of(source_of(path))


def test_held_out_images_of_other_categories_are_refused(tmp_path: Path) -> None:
    path = dataset(tmp_path)
    table = json.loads((path / "annotations/instances_val2017.json").read_text())
    table["categories"][0]["name"] = "cat"
    (path / "annotations/instances_val2017.json").write_text(json.dumps(table))
    assert "the categories of 'val2017' and 'train2017' differ, first in (18, 'cat')" in message_of(
        source_of(path), "test"
    )


@pytest.mark.parametrize(
    ("part", "entry", "field"),
    [
        ("images", {"id": 3}, "file_name"),
        ("annotations", {"id": 7, "image_id": 9}, "category_id"),
        ("categories", {"name": "cat"}, "id"),
    ],
)
def test_an_entry_without_what_is_needed_is_shown(tmp_path: Path, part: str, entry: dict[str, Any], field: str) -> None:
    path = dataset(tmp_path)
    file = path / "annotations" / "instances_train2017.json"
    content = json.loads(file.read_text())
    content[part].append(entry)
    file.write_text(json.dumps(content))
    assert message_of(source_of(path)) == f"{file}: the entry {entry} of {part!r} has no {field!r}; add it"
