"""Layouts of datasets with boxes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysl.benchmarks.dense.boxes import CLASSES, coco_boxes, voc_boxes
from raysl.errors import ConfigError
from raysl.storage.folder import Folder
from tests.benchmarks.dense.scenes import jpeg, put, scene


def xml(boxes: list[tuple[int, ...]], difficult: int = -1) -> str:
    """An annotation of VOC; pixels count from 1, and the last one is in the box."""
    objects = "".join(
        f"<object><name>{CLASSES[label - 1]}</name><difficult>{int(n == difficult)}</difficult><bndbox><xmin>{left + 1}"
        f"</xmin><ymin>{top + 1}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
        for n, (label, left, top, right, bottom) in enumerate(boxes)
    )
    return f"<annotation><filename>x.jpg</filename>{objects}</annotation>"


def voc(root: Path, num: int = 6) -> Folder:
    """VOC 2007; the second object of test images is difficult."""
    for name, numbers in (("trainval", range(num)), ("test", range(100, 100 + num))):
        for number in numbers:
            pixels, _, boxes = scene(number)
            put(root / f"JPEGImages/{number:06d}.jpg", jpeg(pixels))
            put(root / f"Annotations/{number:06d}.xml", xml(boxes, difficult=1 if name == "test" else -1))
        put(root / f"ImageSets/Main/{name}.txt", "".join(f"{number:06d}\n" for number in numbers))
    return Folder(str(root))


def coco(root: Path, num: int = 6, classes: int = 3) -> Folder:
    """COCO with ids that leave gaps, polygons, a crowd in the first image and nothing in the last."""
    for name, first in (("train2017", 0), ("val2017", 100)):
        images: list[dict[str, Any]] = []
        notes: list[dict[str, Any]] = []
        for number in range(first, first + num):
            pixels, _, boxes = scene(number)
            put(root / f"{name}/{number:012d}.jpg", jpeg(pixels))
            images.append({"id": 7 * number + 1, "file_name": f"{number:012d}.jpg", "height": 32, "width": 40})
            for label, left, top, right, bottom in boxes if number < first + num - 1 else []:
                note = {"id": len(notes) + 5, "image_id": 7 * number + 1, "category_id": 10 * label, "iscrowd": 0}
                note |= {"bbox": [left, top, right - left, bottom - top], "area": (right - left) * (bottom - top)}
                notes.append(note | {"segmentation": [[left, top, right, top, right, bottom, left, bottom]]})
        runs = {"counts": [0, 32, 32 * 39], "size": [32, 40]}
        notes.append(notes[0] | {"id": 1, "bbox": [0, 0, 1, 32], "iscrowd": 1, "area": 32, "segmentation": runs})
        categories = [{"id": 10 * (label + 1), "name": f"kind{label}"} for label in reversed(range(classes))]
        content = {"images": images[::-1], "annotations": notes, "categories": categories}
        put(root / f"annotations/instances_{name}.json", json.dumps(content))
    return Folder(str(root))


def test_voc_has_edges_of_pixels_that_count_from_0(tmp_path: Path) -> None:
    split = voc_boxes(voc(tmp_path), "test")
    assert (len(split), len(split.classes), split.classes[0]) == (6, 20, "aeroplane")
    for number in range(6):
        boxes = scene(100 + number)[2]
        assert split.objects[number].boxes.tolist() == [[float(edge) for edge in box[1:]] for box in boxes]
        assert split.objects[number].labels.tolist() == [box[0] - 1 for box in boxes]
        assert split.objects[number].is_apart.tolist() == [False, True]
    assert split.image(2).shape == (3, 32, 40)


def test_coco_has_its_classes_and_images_in_the_order_of_their_ids(tmp_path: Path) -> None:
    split = coco_boxes(coco(tmp_path), "val2017", with_segments=True)
    assert (len(split), split.classes) == (6, ("kind0", "kind1", "kind2"))
    assert split.images.names[0] == "000000000100.jpg"
    boxes = scene(101)[2]
    assert split.objects[1].boxes.tolist() == [[float(edge) for edge in box[1:]] for box in boxes]
    assert split.objects[1].labels.tolist() == [box[0] - 1 for box in boxes]
    assert split.objects[0].is_apart.tolist() == [False, False, True]
    assert len(split.objects[0].segments) == 3
    assert len(split.objects[5]) == 0


def test_training_leaves_out_crowds_empty_boxes_and_images_without_objects(tmp_path: Path) -> None:
    split = coco_boxes(coco(tmp_path), "train2017", with_segments=False)
    split.objects[2].boxes[0, 2] = split.objects[2].boxes[0, 0]
    train = split.trainable(with_apart=False)
    assert [len(one) for one in train.objects] == [2, 2, 1, 2, 2]
    assert not any(one.is_apart.any() for one in train.objects)
    assert train.images.names == split.images.names[:5]
    voc_train = voc_boxes(voc(tmp_path / "voc"), "test").trainable(with_apart=True)
    assert [len(one) for one in voc_train.objects] == [2] * 6


def test_years_stand_behind_one_another_and_are_parted_together(tmp_path: Path) -> None:
    split = voc_boxes(voc(tmp_path / "a"), "trainval")
    both = split.with_more(voc_boxes(voc(tmp_path / "b", num=3), "test"))
    assert len(both) == 9
    assert np.array_equal(both.image(7).numpy(), voc_boxes(Folder(str(tmp_path / "b")), "test").image(1).numpy())
    part = both.part(3)
    assert part.images.names == ("000000.jpg", "000003.jpg", "000100.jpg")
    assert np.array_equal(part.objects[2].boxes, both.objects[6].boxes)
    assert len({split.fingerprint, both.fingerprint, part.fingerprint}) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<annotation><object>", "is not an annotation of VOC: no element found"),
        ("<annotation><object><name>cat</name></object></annotation>", "an object has no bndbox/xmin"),
        (xml([(1, 0, 0, 5, 5)]).replace("aeroplane", "ufo"), "'ufo' is none of its 20 classes"),
        (xml([(1, 0, 0, 5, 5)]).replace("<xmax>5", "<xmax>five"), "'five'"),
    ],
)
def test_an_annotation_of_voc_that_is_none_is_named(tmp_path: Path, content: str, message: str) -> None:
    folder = voc(tmp_path)
    put(tmp_path / "Annotations/000003.xml", content)
    with pytest.raises(ConfigError, match=f"000003.xml .*{message}"):
        voc_boxes(folder, "trainval")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("images"), "KeyError 'images'"),
        (lambda content: content["annotations"][0].pop("bbox"), "KeyError 'bbox'"),
        (lambda content: content["annotations"][0].update(image_id=5), "KeyError 5"),
        (lambda content: content["annotations"][0].update(category_id=11), "KeyError 11"),
    ],
)
def test_an_annotation_file_of_coco_that_is_none_is_named(tmp_path: Path, change: Any, message: str) -> None:
    folder = coco(tmp_path)
    path = tmp_path / "annotations/instances_train2017.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=f"instances_train2017.json is not a COCO annotation file: {message}"):
        coco_boxes(folder, "train2017", with_segments=False)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no .*ImageSets/Main/train.txt"):
        voc_boxes(voc(tmp_path), "train")
    (tmp_path / "Annotations/000001.xml").unlink()
    with pytest.raises(ConfigError, match=r"1 of the 6 files .* first '000001.xml'"):
        voc_boxes(Folder(str(tmp_path)), "trainval")
    with pytest.raises(ConfigError, match=r"no .*instances_val2014.json"):
        coco_boxes(coco(tmp_path / "coco"), "val2014", with_segments=False)
