import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from raysl.benchmarks.shifted_sets import by_folder, filled, objectnet, real_labels, reassessed
from raysl.data.source import Missing
from raysl.data.sources.image_folder import ImageFolder
from raysl.errors import ConfigError

WORDS = ("n01440764", "n01443537", "n01484850", "n01491361", "n01494475", "n01496331")
"""WordNet ids of the first classes of ImageNet."""


def save(path: Path, color: int = 100, border: int = 0) -> None:
    """A grey image of 12 x 10 pixels, in a red border."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((12 + 2 * border, 10 + 2 * border, 3), (255, 0, 0), np.uint8)
    pixels[border : 12 + border, border : 10 + border] = color
    Image.fromarray(pixels).save(path)


def imagenet(folder: Path) -> Path:
    """Training and validation images of six classes, in folders by WordNet ids."""
    number = 0
    for label, word in enumerate(WORDS):
        for copy in range(4):
            save(folder / "train" / word / f"{word}_{copy}.png", 20 + 40 * label + copy)
        for copy in range(2):
            number += 1
            save(folder / "val" / word / f"ILSVRC2012_val_{number:08d}.png", 21 + 40 * label + copy)
    return folder


def object_net(folder: Path, change: dict[str, Any] | None = None) -> Path:
    """Three objects: one is a class, one is two, one is none; counts of ImageNet's labels are not those of torch."""
    for number, name in enumerate(("alarm_clock", "chair", "spatula")):
        for copy in range(2):
            save(folder / "images" / name / f"{copy}.png", 60 + 40 * number, border=2)
    mappings = {
        "folder_to_objectnet_label.json": {"alarm_clock": "Alarm clock", "chair": "Chair", "spatula": "Spatula"},
        "objectnet_to_imagenet_1k.json": {
            "Alarm clock": "analog clock; digital clock",
            "Chair": "rocking chair, rocker",
        },
        "pytorch_to_imagenet_2012_id.json": {"0": 2, "1": 0, "2": 1, "3": 3, "4": 4, "5": 5},
    } | (change or {})
    (folder / "mappings").mkdir(parents=True, exist_ok=True)
    for name, content in mappings.items():
        (folder / "mappings" / name).write_text(json.dumps(content))
    lines = ["digital clock", "tench, Tinca tinca", "analog clock", "rocking chair, rocker", "goldfish", "hammer"]
    (folder / "mappings" / "imagenet_to_label_2012_v2").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("inside", ["", "sketch"])
def test_folders_of_wordnet_ids_are_the_classes(tmp_path: Path, inside: str) -> None:
    for word in (WORDS[4], WORDS[1]):
        for copy in range(2):
            save(tmp_path / inside / word / f"{copy}.png")
    (tmp_path / "README.txt").write_text("no image")
    found = by_folder(str(tmp_path), WORDS, is_masked=True)
    assert found.right.tolist() == [[1], [1], [4], [4]]
    assert found.allowed is not None
    assert found.allowed.tolist() == [1, 4]
    assert found.images.names_of(found.rows)[2].endswith(f"{WORDS[4]}/0.png")
    assert by_folder(str(tmp_path), WORDS, is_masked=False).allowed is None


def test_folders_of_imagenet_v2_are_numbers_of_classes(tmp_path: Path) -> None:
    for label in (5, 0, 3):
        save(tmp_path / str(label) / "a.png")
    assert by_folder(str(tmp_path), WORDS, is_masked=False).right.tolist() == [[0], [3], [5]]


def test_folders_that_are_no_class_are_told(tmp_path: Path) -> None:
    save(tmp_path / WORDS[0] / "a.png")
    save(tmp_path / "n99999999" / "a.png")
    with pytest.raises(ConfigError, match=r"1 of 2 folders .* first 'n99999999'; those are called such as 'n0144"):
        by_folder(str(tmp_path), WORDS, is_masked=False)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no images below"):
        by_folder(str(tmp_path / "empty"), WORDS, is_masked=False)


def test_objects_are_any_of_their_classes_and_others_are_left_out(tmp_path: Path) -> None:
    found = objectnet(str(object_net(tmp_path)), WORDS)
    names = [Path(name).parent.name for name in found.images.names_of(found.rows)]
    assert names == ["alarm_clock", "alarm_clock", "chair", "chair"]
    # line 2 of the labels is torch's class 0, line 0 its class 1, line 3 its class 3
    assert found.right.tolist() == [[0, 1], [0, 1], [3, -1], [3, -1]]
    assert found.allowed is not None
    assert found.allowed.tolist() == [0, 1, 3]


def test_the_red_border_of_objectnet_is_cut_off(tmp_path: Path) -> None:
    found = objectnet(str(object_net(tmp_path)), WORDS)
    (image,) = found.images.read(np.array([2])).images
    assert isinstance(image, np.ndarray)
    assert image.shape == (12, 10, 3)
    assert (image == 100).all()


def test_images_of_objectnet_without_an_inside_are_missing(tmp_path: Path) -> None:
    object_net(tmp_path)
    Image.fromarray(np.zeros((4, 9, 3), np.uint8)).save(tmp_path / "images" / "chair" / "0.png")
    (tmp_path / "images" / "chair" / "1.png").write_bytes(b"no image")
    found = objectnet(str(tmp_path), WORDS)
    small, broken = found.images.read(np.array([2, 3])).images
    assert isinstance(small, Missing)
    assert "no more than its border" in small.reason
    assert isinstance(broken, Missing)


def test_mappings_that_do_not_fit_are_told(tmp_path: Path) -> None:
    wrong: dict[str, Any] = {"objectnet_to_imagenet_1k.json": {"Alarm clock": "no such class"}}
    with pytest.raises(ConfigError, match=r"do not fit each other \(KeyError\('no such class'\)\); fetch"):
        objectnet(str(object_net(tmp_path, wrong)), WORDS)
    with pytest.raises(ConfigError, match=r"names class 3 and 2 are trained on; ObjectNet goes with all"):
        objectnet(str(object_net(tmp_path)), WORDS[:2])
    (tmp_path / "mappings" / "objectnet_to_imagenet_1k.json").write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        objectnet(str(tmp_path), WORDS)
    (tmp_path / "mappings" / "objectnet_to_imagenet_1k.json").unlink()
    with pytest.raises(ConfigError, match="objectnet_to_imagenet_1k"):
        objectnet(str(tmp_path), WORDS)


def test_reassessed_labels_are_found_by_the_number_in_the_name(tmp_path: Path) -> None:
    imagenet(tmp_path)
    test = ImageFolder(ImageFolder.Config(path=str(tmp_path))).split("test")
    assert test is not None
    (tmp_path / "real.json").write_text(json.dumps([[0], [], [1, 3], [2], *[[number // 2] for number in range(4, 12)]]))
    labels = real_labels(str(tmp_path / "real.json"), 6)
    found = reassessed(test, labels)
    assert found.rows.tolist() == [0, *range(2, 12)]
    assert found.right[:3].tolist() == [[0, -1], [1, 3], [2, -1]]
    assert found.allowed is None


def test_reassessed_labels_of_other_images_are_told(tmp_path: Path) -> None:
    imagenet(tmp_path)
    test = ImageFolder(ImageFolder.Config(path=str(tmp_path))).split("test")
    assert test is not None
    with pytest.raises(ConfigError, match=r"has labels of 3 images .* a test image is called .*_00000004.png"):
        reassessed(test, [[0]] * 3)
    with pytest.raises(ConfigError, match="none of 12 test images has a label in ReaL"):
        reassessed(test, [[]] * 12)
    train = ImageFolder(ImageFolder.Config(path=str(tmp_path))).required("train")
    with pytest.raises(ConfigError, match=r"a test image is called .*n01440764_0.png"):
        reassessed(train, [[0]] * 50)


@pytest.mark.parametrize(
    ("content", "told"),
    [("{}", "is not a list of lists"), ("[1]", "is not a list of lists"),
     ("[[0], [6]]", "image 2: 6 is not one of the 6"),
     ('[["a"]]', "image 1: 'a' is not one of"), ("[", "is not JSON")],
)  # fmt: skip
def test_files_that_are_no_reassessed_labels_are_told(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "real.json").write_text(content)
    with pytest.raises(ConfigError, match=told):
        real_labels(str(tmp_path / "real.json"), 6)


def test_lists_of_classes_are_filled_up() -> None:
    assert filled([[1], [2, 3, 4]]).tolist() == [[1, -1, -1], [2, 3, 4]]
