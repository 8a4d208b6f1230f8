"""The layout of BTS, and training crops."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from raysl.benchmarks.dense import depths
from raysl.benchmarks.dense.depth_files import PROTOCOLS, depth_split
from raysl.benchmarks.dense.depths import colored, depth_crop, turned
from raysl.errors import ConfigError
from raysl.storage.folder import Folder
from tests.benchmarks.dense.scenes import jpeg, put
from tests.benchmarks.dense.test_crops import random_of

NEAR, FAR = 1.0, 3.0


def depth_png(millimetres: np.ndarray) -> bytes:
    """A PNG file of 16 bits."""
    out = io.BytesIO()
    Image.fromarray(millimetres.astype(np.uint16)).save(out, "PNG")
    return out.getvalue()


def room(number: int, height: int = 32, width: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Pixels uint8 [H, W, 3] and millimetres [H, W]: a bright near block, a dark far wall, an unknown column."""
    random = np.random.default_rng(number)
    depth = np.full((height, width), 1000 * FAR)
    left, top = int(random.integers(2, 20)), int(random.integers(2, 14))
    depth[top : top + 14, left : left + 16] = 1000 * NEAR
    pixels = np.where(depth[..., None] < 2000, np.array([230, 200, 180]), np.array([40, 60, 90])).astype(np.uint8)
    depth[:, 0] = 0
    return pixels, depth


def bts(root: Path, num: int = 6) -> Folder:
    """NYU Depth v2, with two scenes in each set."""
    for inner, first in (("sync", 0), ("official_splits/test", 100)):
        for number in range(first, first + num):
            pixels, depth = room(number)
            scene = root / inner / ("kitchen_0001a" if number % 2 else "bath_0002")
            put(scene / f"rgb_{number:05d}.jpg", jpeg(pixels))
            put(scene / f"sync_depth_{number:05d}.png", depth_png(depth))
    return Folder(str(root))


KITTI_SIDES = (370, 1226)
DRIVES = {"2011_09_26_drive_0001_sync": "train", "2011_09_26_drive_0002_sync": "val"}
"""Drives, and the folder of the download that has their depths."""


def street(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels and 256ths of a metre of a picture as large as KITTI's: bright near, dark far, known at some pixels."""
    height, width = KITTI_SIDES
    random = np.random.default_rng(number)
    metres = np.linspace(90, 4, height)[:, None] + np.linspace(0, 3, width)[None]
    pixels = (255 * np.exp(-metres / 40))[..., None].repeat(3, 2).astype(np.uint8)
    is_known = random.random((height, width)) < 0.2
    return pixels, np.where(is_known, 256 * metres, 0).astype(np.uint16)


def kitti(root: Path, is_download: bool = False) -> Folder:
    """KITTI with two pictures of each drive, as the toolbox lays it out, or as its archives are unpacked."""
    images, depths = ("", "data_depth_annotated") if is_download else ("input", "gt_depth")
    lines: dict[str, list[str]] = {"train": [], "test": []}
    for number, drive in enumerate(DRIVES):
        for frame in (5, 9):
            image = f"2011_09_26/{drive}/image_02/data/{frame:010d}.png"
            depth = f"{drive}/proj_depth/groundtruth/image_02/{frame:010d}.png"
            pixels, values = street(10 * number + frame)
            out = io.BytesIO()
            Image.fromarray(pixels).save(out, "PNG", compress_level=1)
            put(root / images / image, out.getvalue())
            put(root / depths / (DRIVES[drive] if is_download else "") / depth, depth_png(values))
            lines["train" if frame == 5 else "test"].append(f"{image} {depth} 721.5377")
    lines["test"].append("2011_09_26/2011_09_26_drive_0009_sync/image_02/data/0000000001.png None 721.5377")
    for name, rows in lines.items():
        put(root / f"kitti_eigen_{name}.txt", "\n".join(rows))
    return Folder(str(root))


@pytest.mark.thorough
@pytest.mark.parametrize("is_download", [False, True], ids=["toolbox", "download"])
def test_kitti_is_cut_and_in_256ths_of_a_metre(is_download: bool, tmp_path: Path) -> None:
    folder = kitti(tmp_path, is_download)
    split = depth_split(folder, "kitti_eigen_test.txt", "kitti")
    assert len(split) == 2  # the third has no depths
    assert all(name.endswith("/0000000009.png") for name in split.images.names)
    root = "data_depth_annotated/val" if is_download else "gt_depth"
    assert split.targets.names[1].startswith(f"{root}/2011_09_26_drive_0002_sync/proj_depth/groundtruth/")
    image, depth = split.sample(1)
    pixels, values = street(19)
    left = (1226 - 1216) // 2
    assert np.array_equal(depth.numpy(), values[370 - 352 :, left : left + 1216].astype(np.float32) / 256)
    assert np.array_equal(image.permute(1, 2, 0).numpy(), pixels[370 - 352 :, left : left + 1216])


def test_the_measured_part_of_kitti_is_the_share_of_garg() -> None:
    height, width = PROTOCOLS["kitti"].cut or (0, 0)
    rows = [int(share * height) for share in (0.40810811, 0.99189189)]
    columns = [int(share * width) for share in (0.03594771, 0.96405229)]
    assert PROTOCOLS["kitti"].test_area == (*rows, *columns)


@pytest.mark.thorough
def test_a_kitti_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    folder = kitti(tmp_path)
    with pytest.raises(ConfigError, match=r"'input' is no list; KITTI's images are those of a list that ends in .txt"):
        depth_split(folder, "input", "kitti")
    put(tmp_path / "small.txt", "a/1.png drive/1.png 1")
    put(tmp_path / "input/a/1.png", jpeg(np.zeros((300, 1300, 3), np.uint8)))
    put(tmp_path / "gt_depth/drive/1.png", depth_png(np.ones((300, 1300))))
    with pytest.raises(ConfigError, match=r"a/1.png has 300x1300 pixels, and the field cuts KITTI's"):
        depth_split(folder, "small.txt", "kitti").sample(0)
    (tmp_path / "gt_depth").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="has neither gt_depth nor data_depth_annotated with the depths"):
        depth_split(folder, "kitti_eigen_train.txt", "kitti")


def test_each_image_of_a_folder_of_scenes_has_its_depths_in_metres(tmp_path: Path) -> None:
    split = depth_split(bts(tmp_path), "sync")
    assert (len(split), split.num_samples, split.classes) == (6, 6, ())
    assert split.images.names[:2] == ("sync/bath_0002/rgb_00000.jpg", "sync/bath_0002/rgb_00002.jpg")
    image, depth = split.sample(4)
    pixels, millimetres = room(3)
    assert split.images.names[4] == "sync/kitchen_0001a/rgb_00003.jpg"
    assert depth.dtype == torch.float32
    assert np.array_equal(depth.numpy(), (millimetres / 1000).astype(np.float32))
    assert (torch.from_numpy(pixels).permute(2, 0, 1).int() - image.int()).abs().float().mean() < 10
    part = split.part(2)
    assert part.targets.names == ("sync/bath_0002/sync_depth_00000.png", "sync/kitchen_0001a/sync_depth_00001.png")
    assert part.fingerprint != split.fingerprint == split.part(9).fingerprint


def test_a_list_names_its_images_from_its_own_folder(tmp_path: Path) -> None:
    folder = bts(tmp_path)
    lines = [
        "/kitchen_0001a/rgb_00001.jpg /kitchen_0001a/sync_depth_00001.png 518.8579",
        "bath_0002/rgb_00004.jpg bath_0002/sync_depth_00004.png 518.8579",
        "bath_0002/rgb_00002.jpg None 518.8579",
    ]
    put(tmp_path / "sync/nyu_train.txt", "\n".join(lines))
    split = depth_split(folder, "sync/nyu_train.txt")
    assert split.images.names == ("sync/bath_0002/rgb_00004.jpg", "sync/kitchen_0001a/rgb_00001.jpg")
    put(tmp_path / "sync/short.txt", "bath_0002/rgb_00004.jpg\n")
    with pytest.raises(ConfigError, match=r"short.txt: the line 'bath_0002/rgb_00004.jpg' has one word"):
        depth_split(folder, "sync/short.txt")


def test_a_dataset_that_is_not_whole_is_refused_with_what_lacks(tmp_path: Path) -> None:
    folder = bts(tmp_path)
    with pytest.raises(ConfigError, match=r"no .*/synced; is the download whole"):
        depth_split(folder, "synced")
    with pytest.raises(ConfigError, match=r"official_splits has no folder with files rgb_\*; is it a folder of scenes"):
        depth_split(folder, "official_splits")
    (tmp_path / "sync/bath_0002/sync_depth_00002.png").unlink()
    with pytest.raises(ConfigError, match=r"1 of the 6 files that sync lists .*'sync/bath_0002/sync_depth_00002.png'"):
        depth_split(folder, "sync")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (depth_png(np.ones((32, 41))), r"has \[32, 41\] pixels, and its image \[32, 40\]"),
        (jpeg(np.zeros((32, 40, 3), np.uint8)), "mode RGB, and depths are numbers of 16 bits, 1,000 for a metre"),
        (b"no image", "8 bytes that are not an image"),
    ],
)
def test_depths_that_cannot_be_some_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    split = depth_split(bts(tmp_path), "sync")
    put(tmp_path / "sync/bath_0002/sync_depth_00002.png", content)
    with pytest.raises(ConfigError, match=f"sync_depth_00002.png.*{message}"):
        split.sample(1)


def test_a_crop_and_its_depths_show_the_same_place() -> None:
    pixels, millimetres = room(1, 48, 64)
    image, depth = torch.from_numpy(pixels).permute(2, 0, 1), torch.from_numpy(millimetres / 1000).float()
    shares = []
    for place in range(40):
        crop, metres = depth_crop(image, depth, (4, 44, 2, 60), (32, 40), random_of(place))
        assert (crop.shape, metres.shape) == ((3, 32, 40), (32, 40))
        assert 0 <= crop.min() <= crop.max() <= 1
        known = metres > 0
        shares.append(float(((crop[0] > 0.33) == (metres < 2))[known].float().mean()))
        assert set(metres.unique().tolist()) <= {0.0, NEAR, FAR}  # depths are never blended
    assert min(shares) > 0.95
    assert len({float(depth_crop(image, depth, None, (32, 40), random_of(place))[0].mean()) for place in range(9)}) > 5


def test_half_of_the_crops_are_mirrored() -> None:
    depth = torch.arange(1.0, 41).expand(32, 40)
    image = torch.zeros(3, 32, 40, dtype=torch.uint8)
    crops = [depth_crop(image, depth, None, (20, 30), random_of(place))[1] for place in range(60)]
    assert 15 < sum(bool(metres[10, 5] > metres[10, 25]) for metres in crops) < 45


def test_beyond_the_area_nothing_is_known() -> None:
    image, depth = torch.full((3, 20, 20), 200, dtype=torch.uint8), torch.ones(20, 20)
    crop, metres = depth_crop(image, depth, (0, 10, 0, 10), (16, 16), random_of(0))
    assert (metres[10:] == 0).all()
    assert (metres[:, 10:] == 0).all()
    assert (crop[:, 10:] == 0).all()


def test_a_turn_keeps_the_centre_and_is_that_of_the_angle() -> None:
    values = torch.zeros(1, 41, 61)
    values[0, 20, 30], values[0, 20, 50] = 1, 2
    found = turned(values, 30.0, "nearest")[0]
    assert found[20, 30] == 1
    (place,) = (found == 2).nonzero().tolist()
    assert abs(np.hypot(place[0] - 20, place[1] - 30) - 20) < 1
    assert abs(abs(np.degrees(np.arctan2(place[0] - 20, place[1] - 30))) - 30) < 2
    assert torch.allclose(turned(values, 0.0, "bilinear"), values, atol=1e-4)


def test_colours_are_a_power_and_factors_of_values_in_255ths(monkeypatch: pytest.MonkeyPatch) -> None:
    image = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(depths, "GAMMA", (0.9, 0.9))
    monkeypatch.setattr(depths, "COLOR", (1.1, 1.1))
    expected = np.clip((255 * image.numpy()) ** 0.9 * 1.2 * 1.1, 0, 255) / 255
    assert np.allclose(colored(image, random_of(0), (1.2, 1.2)).numpy(), expected, atol=1e-5)
