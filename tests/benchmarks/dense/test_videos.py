"""The layout of DAVIS 2017."""

from pathlib import Path

import numpy as np
import pytest

from raysl.benchmarks.dense.videos import davis_videos
from raysl.errors import ConfigError
from raysl.storage.folder import Folder
from tests.benchmarks.dense.scenes import jpeg, palette_png, put

BACKGROUND, SQUARE = (40, 90, 60), (230, 60, 200)


def square_video(frames: int = 5, side: int = 16, step: int = 4, size: tuple[int, int] = (48, 64)) -> list[np.ndarray]:
    """Masks uint8 [H, W] of a square of number 1 that moves to the right."""
    masks = []
    for number in range(frames):
        mask = np.zeros(size, np.uint8)
        left = 8 + step * number
        mask[16 : 16 + side, left : left + side] = 1
        masks.append(mask)
    return masks


def davis(root: Path, videos: dict[str, list[np.ndarray]]) -> Folder:
    """Videos of masks, each object in a colour of its own on one background, listed as `val`."""
    colors = np.array([BACKGROUND, SQUARE, (30, 60, 240)], np.uint8)
    for name, masks in videos.items():
        for number, mask in enumerate(masks):
            shown = np.where(mask == 255, 0, mask)
            put(root / f"JPEGImages/480p/{name}/{number:05d}.jpg", jpeg(colors[shown]))
            put(root / f"Annotations/480p/{name}/{number:05d}.png", palette_png(mask))
    put(root / "ImageSets/2017/val.txt", "".join(f"{name}\n" for name in videos))
    return Folder(str(root))


def test_videos_are_those_of_the_list_in_the_order_of_time(tmp_path: Path) -> None:
    folder = davis(tmp_path, {"swan": square_video(5), "bus": square_video(3)})
    davis(tmp_path / "unlisted", {"cat": square_video(3)})
    videos = davis_videos(folder, "val", "480p")
    assert [(video.name, len(video)) for video in videos] == [("swan", 5), ("bus", 3)]
    assert videos[0].frames.names == tuple(f"{number:05d}.jpg" for number in range(5))
    assert (videos[0].mask(2).numpy() == square_video(5)[2]).all()
    assert [video.name for video in davis_videos(folder, "val", "480p", limit=1)] == ["swan"]


def test_void_is_background_and_objects_keep_their_numbers(tmp_path: Path) -> None:
    masks = square_video(3)
    masks[1][0, :4] = [255, 2, 1, 0]
    (video,) = davis_videos(davis(tmp_path, {"swan": masks}), "val", "480p")
    assert video.mask(1)[0, :4].tolist() == [0, 2, 1, 0]


def test_a_dataset_that_is_not_whole_is_refused_with_what_lacks(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no .*ImageSets/2017/val.txt; is the download whole"):
        davis_videos(Folder(str(tmp_path)), "val", "480p")
    folder = davis(tmp_path, {"swan": square_video(4), "bus": square_video(2)})
    with pytest.raises(ConfigError, match=r"bus has 2 .jpg files, and the frames between the first and the last"):
        davis_videos(folder, "val", "480p")
    with pytest.raises(ConfigError, match=r"no .*JPEGImages/1080p/swan, which ImageSets/2017/val.txt lists"):
        davis_videos(folder, "val", "1080p")
    (tmp_path / "Annotations/480p/swan/00002.png").unlink()
    with pytest.raises(ConfigError, match=r"1 of the 4 files that JPEGImages/480p/swan lists .* first '00002.png'"):
        davis_videos(folder, "val", "480p")
