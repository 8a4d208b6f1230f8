"""Layouts of datasets with masks."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from raysl.benchmarks.dense.masks import IGNORE, mask_split
from raysl.errors import ConfigError
from raysl.storage.folder import Folder
from tests.benchmarks.dense.scenes import jpeg, palette_png, put, scene


def voc(root: Path, num: int = 4) -> Folder:
    """VOC 2012 with a border of 255 around each object's left side, as VOC has it around all of it."""
    for name, numbers in (("train", range(num)), ("val", range(100, 100 + num))):
        for number in numbers:
            pixels, classes, boxes = scene(number)
            for _, left, top, _, bottom in boxes:
                classes[top:bottom, left] = 255
            put(root / f"JPEGImages/2007_{number:06d}.jpg", jpeg(pixels))
            put(root / f"SegmentationClass/2007_{number:06d}.png", palette_png(classes))
        put(root / f"ImageSets/Segmentation/{name}.txt", "".join(f"2007_{number:06d}\n" for number in numbers))
    return Folder(str(root))


def ade(root: Path, num: int = 3, names: bool = False) -> Folder:
    """ADE20K: class n of a scene is n + 1 in the file, and 0 does not count."""
    for folder, short in (("training", "train"), ("validation", "val")):
        for number in range(num):
            pixels, classes, _ = scene(number + (100 if short == "val" else 0))
            numbers = classes + 1
            numbers[:, 0] = 0
            put(root / f"images/{folder}/ADE_{short}_{number:08d}.jpg", jpeg(pixels))
            out = io.BytesIO()
            Image.fromarray(numbers.astype(np.uint8), mode="L").save(out, "PNG")
            put(root / f"annotations/{folder}/ADE_{short}_{number:08d}.png", out.getvalue())
    if names:
        lines = ["Idx\tRatio\tTrain\tVal\tStuff\tName", *(f"{n}\t0.1\t1\t1\t1\tname{n}, other" for n in range(1, 151))]
        put(root / "objectInfo150.txt", "\n".join(lines))
    return Folder(str(root))


CITY_IDS = {0: 7, 1: 24, 2: 26, 3: 33}
"""Numbers of the classes of a scene in `labelIds` files: road, person, car and bicycle."""


def cityscapes(root: Path, num: int = 4) -> Folder:
    """Cityscapes: pictures in folders of two cities, each with a column of the ego vehicle and a caravan."""
    for name, first in (("train", 0), ("val", 100)):
        for number in range(first, first + num):
            pixels, classes, _ = scene(number)
            numbers = np.vectorize(CITY_IDS.get)(classes)
            numbers[:, 0], numbers[0, 1] = 1, 29
            city = "ulm" if number % 2 else "aachen"
            stem = f"{name}/{city}/{city}_{number:06d}_000019"
            out = io.BytesIO()
            Image.fromarray(pixels).save(out, "PNG")
            put(root / f"leftImg8bit/{stem}_leftImg8bit.png", out.getvalue())
            out = io.BytesIO()
            Image.fromarray(numbers.astype(np.uint8), mode="L").save(out, "PNG")
            put(root / f"gtFine/{stem}_gtFine_labelIds.png", out.getvalue())
            put(root / f"gtFine/{stem}_gtFine_polygons.json", "{}")
    return Folder(str(root))


def test_voc_has_its_21_classes_by_the_places_in_the_palette(tmp_path: Path) -> None:
    split = mask_split("voc", voc(tmp_path), is_train=True)
    assert (len(split), len(split.classes), split.classes[15]) == (4, 21, "person")
    image, mask = split.sample(2)
    pixels, classes, boxes = scene(2)
    assert (torch.from_numpy(pixels).permute(2, 0, 1).int() - image.int()).abs().float().mean() < 15
    _, left, top, _, bottom = boxes[0]
    assert (mask[top:bottom, left] == IGNORE).all()
    counts = mask != IGNORE
    assert torch.equal(mask[counts], torch.from_numpy(classes)[counts])
    assert mask_split("voc", Folder(str(tmp_path)), is_train=False).images.names[0] == "2007_000100.jpg"


def test_trainaug_goes_by_its_name(tmp_path: Path) -> None:
    folder = voc(tmp_path)
    for number in (0, 1, 2, 3, 50, 51):
        pixels, classes, _ = scene(number)
        put(tmp_path / f"JPEGImages/2007_{number:06d}.jpg", jpeg(pixels))
        put(tmp_path / f"SegmentationClassAug/2007_{number:06d}.png", palette_png(classes))
    put(tmp_path / "ImageSets/Segmentation/aug.txt", "2007_000050\n2007_000051\n")  # as MMSegmentation writes it
    parts = mask_split("voc", folder, is_train=True, chosen="trainaug")
    assert [name[-7:-4] for name in parts.targets.names] == ["000", "001", "002", "003", "050", "051"]
    assert parts.targets.folders[0].endswith("/SegmentationClassAug")
    put(tmp_path / "ImageSets/Segmentation/trainaug.txt", "2007_000051\n2007_000003\n")
    listed = mask_split("voc", folder, is_train=True, chosen="trainaug")
    assert listed.images.names == ("2007_000051.jpg", "2007_000003.jpg")
    assert mask_split("voc", folder, is_train=False).targets.folders[0].endswith("/SegmentationClass")


def test_ade_counts_its_150_classes_from_1_and_ignores_0(tmp_path: Path) -> None:
    split = mask_split("ade20k", ade(tmp_path, names=True), is_train=True)
    assert (len(split), len(split.classes), split.classes[:2]) == (3, 150, ("name1", "name2"))
    _, mask = split.sample(1)
    assert (mask[:, 0] == IGNORE).all()
    assert torch.equal(mask[:, 1:], torch.from_numpy(scene(1)[1])[:, 1:])


TRAIN_IDS = [
    *([255] * 7), 0, 1, 255, 255, 2, 3, 4, 255, 255, 255, 5, 255, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 255, 255, 16, 17,
    18,
]  # fmt: skip
"""Train id of each number from 0 to 33, as in `labels.py` of the repository cityscapesScripts."""


def test_cityscapes_has_its_19_train_ids_and_ignores_the_other_numbers(tmp_path: Path) -> None:
    split = mask_split("cityscapes", cityscapes(tmp_path), is_train=True)
    assert (len(split), len(split.classes), split.classes[0], split.classes[18]) == (4, 19, "road", "bicycle")
    assert split.images.names[:2] == tuple(f"aachen/aachen_00000{n}_000019_leftImg8bit.png" for n in (0, 2))
    assert split.targets.names[3] == "ulm/ulm_000003_000019_gtFine_labelIds.png"
    image, mask = split.sample(2)
    pixels, classes, _ = scene(1)
    assert np.array_equal(image.permute(1, 2, 0).numpy(), pixels)
    for row, column in np.ndindex(classes.shape):
        number = 1 if column == 0 else 29 if (row, column) == (0, 1) else CITY_IDS[int(classes[row, column])]
        assert int(mask[row, column]) == TRAIN_IDS[number]
    assert len(mask_split("cityscapes", Folder(str(tmp_path)), is_train=False)) == 4
    every = np.arange(34, dtype=np.uint8)[None].repeat(32, 0)
    out = io.BytesIO()
    Image.fromarray(np.pad(every, ((0, 0), (0, 6)), constant_values=255), mode="L").save(out, "PNG")
    put(tmp_path / "gtFine/train/ulm/ulm_000001_000019_gtFine_labelIds.png", out.getvalue())
    assert split.target(2)[0].tolist() == TRAIN_IDS + [255] * 6


def test_coarse_masks_of_cityscapes_go_by_their_folder(tmp_path: Path) -> None:
    folder = cityscapes(tmp_path, num=1)
    coarse = "gtCoarse/train/aachen/aachen_000000_000019_gtCoarse_labelIds.png"
    put(tmp_path / coarse, (tmp_path / "gtFine/train/aachen/aachen_000000_000019_gtFine_labelIds.png").read_bytes())
    split = mask_split("cityscapes", folder, is_train=True, masks="gtCoarse")
    assert split.targets.uri_of(0).endswith(coarse)


def test_a_city_without_its_masks_and_train_ids_in_place_of_numbers_are_told(tmp_path: Path) -> None:
    folder = cityscapes(tmp_path)
    split = mask_split("cityscapes", folder, is_train=True)
    name = "gtFine/train/aachen/aachen_000000_000019_gtFine_labelIds.png"
    out = io.BytesIO()
    Image.fromarray(np.full((32, 40), 40, np.uint8), mode="L").save(out, "PNG")
    put(tmp_path / name, out.getvalue())
    with pytest.raises(ConfigError, match=f"{name} has a pixel of number 40; the numbers are 0 to 33"):
        split.target(0)
    (tmp_path / name).unlink()
    with pytest.raises(ConfigError, match=r"1 of the 4 files that leftImg8bit/train lists .*_gtFine_labelIds.png"):
        mask_split("cityscapes", folder, is_train=True)
    put(tmp_path / "leftImg8bit/extra/ulm/readme.txt", "")
    with pytest.raises(ConfigError, match=r"leftImg8bit/extra has no folder of a city with files \*_leftImg8bit.png"):
        mask_split("cityscapes", folder, is_train=True, chosen="extra")


def test_classes_of_ade_have_numbers_without_their_list(tmp_path: Path) -> None:
    assert mask_split("ade20k", ade(tmp_path), is_train=False).classes[-1] == "class 150"


def test_a_part_is_an_even_share_with_a_fingerprint_of_its_own(tmp_path: Path) -> None:
    split = mask_split("voc", voc(tmp_path), is_train=True)
    part = split.part(2)
    assert part.images.names == ("2007_000000.jpg", "2007_000002.jpg")
    assert part.targets.names == ("2007_000000.png", "2007_000002.png")
    assert part.fingerprint != split.fingerprint == split.part(9).fingerprint


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: (root / "ImageSets/Segmentation/train.txt").unlink(), "no .*ImageSets/Segmentation/train.txt"),
        (lambda root: put(root / "ImageSets/Segmentation/train.txt", "\n"), "lists no images"),
        (lambda root: put(root / "ImageSets/Segmentation/train.txt", b"\xff\xfe"), "is not UTF-8 text"),
        (lambda root: (root / "JPEGImages/2007_000001.jpg").unlink(), "1 of the 4 files .* first '2007_000001.jpg'"),
        (lambda root: (root / "SegmentationClass/2007_000001.png").unlink(), "first '2007_000001.png'"),
    ],
)  # fmt: skip
def test_a_dataset_that_is_not_whole_is_refused_with_what_lacks(tmp_path: Path, spoil: object, message: str) -> None:
    folder = voc(tmp_path)
    spoil(tmp_path)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=message):
        mask_split("voc", folder, is_train=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (palette_png(np.full((32, 40), 21, np.uint8)), "a pixel of number 21; the numbers are 0 to 20"),
        (palette_png(np.zeros((32, 41), np.uint8)), r"has \[32, 41\] pixels, and its image \[32, 40\]"),
        (jpeg(np.zeros((32, 40, 3), np.uint8)), "mode RGB, and masks have one number"),
        (b"no image", "8 bytes that are not an image"),
    ],
)
def test_a_mask_that_cannot_be_one_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    folder = voc(tmp_path)
    put(tmp_path / "SegmentationClass/2007_000001.png", content)
    with pytest.raises(ConfigError, match=f"2007_000001.png.*{message}"):
        mask_split("voc", folder, is_train=True).sample(1)


def test_a_layout_that_is_another_one_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no .*images/training; .*path that of this layout"):
        mask_split("ade20k", voc(tmp_path), is_train=True)
