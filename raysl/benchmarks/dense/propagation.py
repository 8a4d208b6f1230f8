"""Labels that spread over the frames of a video to the nearest features.

Jabri, Owens and Efros 2020, Space-Time Correspondence as a Contrastive Random Walk, arXiv 2006.14613; with the numbers
of `eval_video_segmentation.py` in the repository of DINO (Caron et al. 2021, arXiv 2104.14294).
"""

from collections import deque
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

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
