"""Videos with a mask of each object in each frame: the layout of DAVIS 2017 (Pont-Tuset et al., arXiv 1704.00675)."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raysl.benchmarks.dense.dataset_files import Files, even_part, lines_of
from raysl.benchmarks.dense.masks import indices
from raysl.errors import ConfigError
from raysl.storage.folder import Folder

VOID = 255
"""Number of pixels that belong to no object, which the evaluation of DAVIS counts as background."""


@dataclass(frozen=True)
class Video:
    """Frames of a video, and the masks of its objects.

    Args:
        frames, masks: files, in the order of time.
    """

    name: str
    frames: Files
    masks: Files

    def __len__(self) -> int:
        return len(self.frames)

    def mask(self, number: int) -> Tensor:
        """Read the object of each pixel of a frame, uint8 [H, W]: 0 is the background, objects count from 1."""
        objects = self.masks.decoded(number, indices)
        return torch.from_numpy(np.where(objects == VOID, 0, objects).astype(np.uint8))


def davis_videos(folder: Folder, chosen: str, resolution: str, limit: int | None = None) -> list[Video]:
    """List the videos of a set.

    Args:
        folder: root with `JPEGImages`, `Annotations` and `ImageSets` in it.
        chosen: the list in `ImageSets/2017`, as `val`.
        resolution: folder of frames and masks, as `480p`.
        limit: largest number of videos, an even share; None takes all.
    """
    listed = f"ImageSets/2017/{chosen}.txt"
    names = lines_of(folder, listed)
    return [_video(folder, names[number], resolution, listed) for number in even_part(len(names), limit).tolist()]


def _video(folder: Folder, name: str, resolution: str, listed: str) -> Video:
    frames, masks = f"JPEGImages/{resolution}/{name}", f"Annotations/{resolution}/{name}"
    if not folder.exists(frames):
        raise ConfigError(f"no {folder.uri_of(frames)}, which {listed} lists; is the download whole?")
    images = sorted(file for file in folder.child(frames).names() if file.endswith(".jpg"))
    if len(images) < 3:
        raise ConfigError(
            f"{folder.uri_of(frames)} has {len(images)} .jpg files, and the frames between the first and the last are "
            "measured; is the download whole?"
        )
    return Video(
        name,
        Files.of(folder.uri_of(frames), images, frames),
        Files.of(folder.uri_of(masks), [f"{file.removesuffix('.jpg')}.png" for file in images], frames),
    )
