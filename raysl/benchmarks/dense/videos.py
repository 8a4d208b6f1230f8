"""Videos with a mask of each object in each frame, and labels that spread over the frames to the nearest features.

The layout is that of DAVIS 2017 (Pont-Tuset et al., arXiv 1704.00675). Labels spread as in Jabri, Owens and Efros 2020,
Space-Time Correspondence as a Contrastive Random Walk, arXiv 2006.14613, with the numbers of
`eval_video_segmentation.py` in the repository of DINO (Caron et al. 2021, arXiv 2104.14294).
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.benchmarks.dense.dataset_files import Files, lines_of
from raysl.benchmarks.dense.masks import indices
from raysl.data.sources.sample import even_index
from raysl.errors import ConfigError
from raysl.storage.folder import Folder

VOID = 255
"""Number of pixels that belong to no object, which the evaluation of DAVIS counts as background."""


@dataclass(frozen=True)
class Video:
    """Frames of a video and the masks of its objects, in the order of time."""

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
    return [
        _video(folder, names[number], resolution, listed)
        for number in even_index(len(names), limit or len(names)).tolist()
    ]


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


AT_ONCE = 2**26
"""Similarities that are in memory at once."""


def propagated(
    query: Tensor, keys: Tensor, labels: Tensor, radius: int | None, neighbours: int, temperature: float
) -> Tensor:
    """Return the labels of the places of a frame: means over the nearest places of others, of their softmax.

    Only places that are at most `radius` rows and `radius` columns away are looked at. Places that are as near as the
    last of the nearest count too.

    Args:
        query: features of length 1 of the frame [C, h, w].
        keys: those of other frames [T, C, h, w].
        labels: labels of their places [T, K, h, w].
        radius: distance in places; None looks at all.
        neighbours: places that count.
        temperature: divisor of the cosines.

    Returns:
        Labels [K, h, w].
    """
    num_frames, width, height, across = keys.shape
    reach = max(height, across) if radius is None else radius
    # rows of the frame at a time whose similarities to all places of all frames fit into AT_ONCE
    rows = max(1, AT_ONCE // (num_frames * height * across**2))
    columns = torch.arange(across, device=query.device)
    is_near_across = (columns[:, None] - columns).abs() <= reach  # [w, w]
    parts = []
    for top in range(0, height, rows):
        part = query[:, top : top + rows]  # [C, r, w]
        first, last = max(0, top - reach), min(height, top + part.shape[1] + reach)
        own_rows = torch.arange(top, top + part.shape[1], device=query.device)
        is_near_down = (own_rows[:, None] - torch.arange(first, last, device=query.device)).abs() <= reach  # [r, b]
        is_near = is_near_down[:, None, :, None] & is_near_across[None, :, None, :]  # [r, w, b, w]
        band = keys[:, :, first:last].transpose(0, 1).reshape(width, -1)  # [C, T*b*w]
        scores = part.flatten(1).T @ band / temperature  # [r*w, T*b*w]
        is_near = is_near.flatten(2).flatten(0, 1).repeat(1, num_frames)
        scores = scores.masked_fill(~is_near, -torch.inf)
        least = scores.topk(min(neighbours, scores.shape[1]), dim=1).values[:, -1:]
        shares = scores.masked_fill(scores < least, -torch.inf).softmax(dim=1)
        parts.append(labels[:, :, first:last].transpose(0, 1).flatten(1) @ shares.T)  # [K, r*w]
    return torch.cat(parts, dim=1).reshape(-1, height, across)


def followed(
    maps: Iterable[Tensor], labels: Tensor, context: int, radius: int | None, neighbours: int, temperature: float
) -> Iterator[Tensor]:
    """Yield the labels of each frame after the first, from those of the first and of the latest ones before it.

    Args:
        maps: features of the frames, in the order of time, each [C, h, w].
        labels: labels of the first frame's places [K, h, w].
        context: how many of the latest frames are looked at, beside the first one.
        radius, neighbours, temperature: see `propagated`.

    Yields:
        Labels [K, h, w].
    """
    frames = (F.normalize(features, dim=0) for features in maps)
    first = (next(frames), labels)
    latest: deque[tuple[Tensor, Tensor]] = deque(maxlen=context)
    for features in frames:
        # the true labels of the first frame stay in use; those of later frames are predicted
        known = [first, *latest]
        keys, known_labels = (torch.stack(values) for values in zip(*known, strict=True))
        labels = propagated(features, keys, known_labels, radius, neighbours, temperature)
        latest.append((features, labels))
        yield labels


def objects_of(labels: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the object of each pixel, int64 [H, W]: labels are resized bilinearly, and each brought to [0, 1].

    Args:
        labels: labels of the background and the objects at the places of a map [K, h, w].
    """
    resized = F.interpolate(labels[None], size=size, mode="bilinear", align_corners=False)[0]
    low, high = resized.amin(dim=(1, 2), keepdim=True), resized.amax(dim=(1, 2), keepdim=True)
    # one that is the same everywhere stays as it is
    scaled = torch.where(high > low, (resized - low) / (high - low).clamp(min=1e-12), resized)
    return scaled.argmax(dim=0)
