"""Mixing of the images and labels of a batch: Mixup and CutMix, with neighbours of a lane as partners.

A lane is read by one process whatever the number of processes, so the pairs are the same at any number of processes.
The caller chooses whether each sample has its own random numbers (`Batch.random`) or the batch shares one draw
(`Batch.shared`).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysl.config.ranges import Positive, Share, check_ranges
from raysl.transforms.device import to_device, to_type_of
from raysl.transforms.erasing import inside_boxes
from raysl.transforms.random import Floats, Ints, SampleRandom


@dataclass(frozen=True, kw_only=True)
class Mix(ABC):
    """Mixes each image of a batch with one other image."""

    def __post_init__(self) -> None:
        check_ranges(self)

    @abstractmethod
    def draw(self, random: SampleRandom, lanes: Tensor, size: tuple[int, int]) -> dict[str, Tensor]:
        """Draw the partners and shares of `len(random)` images.

        Args:
            random: numbers of the samples, or one draw for all of them (`Batch.shared`).
            lanes: int64 [B], the lane of each row of the batch, on any device, which is not waited for.
            size: height and width of the images.

        Returns:
            On the device of the lanes:
            `partner`, int64 [B]: row of each image's partner, the next row of its lane and after the last the first; a
            row alone in its lane is its own partner and stays as it is;
            `lam`, float64 [B]: share of the image itself, in [0, 1];
            `box`, int64 [B, 4]: top, left, height and width of the box cut from the partner; empty for blends.
        """

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        """Mix float images [B, C, H, W], on any device; the input is not written to."""
        height, width = images.shape[-2:]
        partner, boxes = (to_device(params[name], images.device) for name in ("partner", "box"))
        others = images.index_select(0, partner)
        # Mixup's boxes are empty, so a box with an area means CutMix
        is_cut = (boxes[:, 2:].amin(dim=1) > 0)[:, None, None, None]
        share = to_type_of(params["lam"], images)[:, None, None, None]
        blended = images * share + others * (1.0 - share)
        pasted = torch.where(inside_boxes(boxes, (height, width), images.device), others, images)
        return torch.where(is_cut, pasted, blended)

    def mix_labels(self, labels: Tensor, params: dict[str, Tensor]) -> Tensor:
        """Mix one-hot or soft labels, float [B, K], in the shares of the images.

        >>> params = {"lam": torch.tensor([0.75, 0.5]), "partner": torch.tensor([1, 0])}
        >>> Mixup().mix_labels(torch.eye(2), params)
        tensor([[0.7500, 0.2500],
                [0.5000, 0.5000]])
        """
        share = to_type_of(params["lam"], labels)[:, None]
        return labels * share + labels.index_select(0, to_device(params["partner"], labels.device)) * (1.0 - share)


@dataclass(frozen=True, kw_only=True)
class Mixup(Mix):
    """Blend two images: lam * x + (1 - lam) * partner (Zhang et al. 2018).

    >>> random = SampleRandom(seed=0, epoch=0, index=np.arange(3), view=0)
    >>> Mixup().draw(random, lanes=torch.tensor([0, 0, 1]), size=(8, 8))["partner"]
    tensor([1, 0, 2])
    """

    alpha: Positive = 0.2
    """lam is drawn from Beta(alpha, alpha); above 0."""

    def draw(self, random: SampleRandom, lanes: Tensor, size: tuple[int, int]) -> dict[str, Tensor]:
        lam = beta(random.uniform(), self.alpha)
        return _params(lanes, lam, np.zeros((len(lam), 4), dtype=np.int64))


@dataclass(frozen=True, kw_only=True)
class CutMix(Mix):
    """Paste a box of another image (Yun et al. 2019).

    The box has the share 1 - lam of the image and its centre anywhere in it; where it reaches over the border, lam
    becomes the share that is left of the image.

    >>> random = SampleRandom(seed=0, epoch=0, index=np.arange(2), view=0)
    >>> CutMix().draw(random, lanes=torch.tensor([0, 0]), size=(8, 8))["box"].shape
    torch.Size([2, 4])
    """

    alpha: Positive = 1.0
    """lam is drawn from Beta(alpha, alpha); above 0."""

    def draw(self, random: SampleRandom, lanes: Tensor, size: tuple[int, int]) -> dict[str, Tensor]:
        sides = np.array(size)
        share = np.sqrt(1.0 - beta(random.uniform(), self.alpha))[:, None]
        half = (sides * share).astype(np.int64) // 2  # [B, 2]
        centre = np.stack([random.integers(0, size[0]), random.integers(0, size[1])], axis=1)
        start, end = (centre - half).clip(0, sides), (centre + half).clip(0, sides)
        box = np.concatenate([start, end - start], axis=1)
        return _params(lanes, 1.0 - box[:, 2] * box[:, 3] / (size[0] * size[1]), box)


@dataclass(frozen=True, kw_only=True)
class MixupOrCutMix(Mix):
    """Mixup, CutMix or neither for each image (as in DeiT, Touvron et al. 2021).

    >>> random = SampleRandom(seed=0, epoch=0, index=np.arange(2), view=0)
    >>> MixupOrCutMix(p=0.0).draw(random, lanes=torch.tensor([0, 0]), size=(8, 8))["lam"]
    tensor([1., 1.], dtype=torch.float64)
    """

    p: Share = 1.0
    """Probability that an image is mixed."""
    switch_p: Share = 0.5
    """Probability of CutMix for a mixed image."""
    mixup: Mixup = field(default_factory=lambda: Mixup(alpha=0.8))
    """Settings of Mixup."""
    cutmix: CutMix = field(default_factory=CutMix)
    """Settings of CutMix."""

    def draw(self, random: SampleRandom, lanes: Tensor, size: tuple[int, int]) -> dict[str, Tensor]:
        is_mixed = _to_device(random.bernoulli(self.p), lanes.device)
        is_cut = _to_device(random.bernoulli(self.switch_p), lanes.device) & is_mixed
        blended = self.mixup.draw(random, lanes, size)
        pasted = self.cutmix.draw(random, lanes, size)
        lam = torch.where(is_cut, pasted["lam"], torch.where(is_mixed, blended["lam"], 1.0))
        return {"partner": blended["partner"], "lam": lam, "box": pasted["box"] * is_cut[:, None]}


def lane_partners(lanes: Tensor) -> Tensor:
    """Return the next row of the same lane for each row, after the last one the first; int64 [B] for lanes [B].

    >>> lane_partners(torch.tensor([7, 7, 9, 7]))
    tensor([1, 3, 2, 0])
    """
    sorted_lanes, order = lanes.sort(stable=True)
    positions = torch.arange(len(lanes), device=lanes.device)
    is_first = torch.ones_like(positions, dtype=torch.bool)
    is_first[1:] = sorted_lanes[1:] != sorted_lanes[:-1]
    starts = torch.where(is_first, positions, 0).cummax(dim=0).values  # first position of each row's lane
    is_last = is_first.roll(-1)  # the row before a first one, and the last of all
    following = torch.where(is_last, starts, positions + 1)
    return torch.empty_like(order).scatter_(0, order, order[following])


def beta(uniform: Floats, alpha: float) -> Floats:
    """Turn uniform numbers in [0, 1) into numbers from Beta(alpha, alpha)."""
    from scipy.special import betaincinv

    return np.asarray(betaincinv(alpha, alpha, uniform), dtype=np.float64)


def _params(lanes: Tensor, lam: Floats, box: Ints) -> dict[str, Tensor]:
    if len(lanes) != len(lam):
        raise ValueError(f"{len(lanes)} lanes were given for {len(lam)} images; give the lane of each row")
    partner = lane_partners(lanes)
    is_alone = partner == torch.arange(len(lanes), device=lanes.device)
    return {
        "partner": partner,
        "lam": torch.where(is_alone, 1.0, _to_device(lam, lanes.device)),
        "box": torch.where(is_alone[:, None], 0, _to_device(box, lanes.device)),
    }


def _to_device(values: Floats | Ints | NDArray[np.bool_], device: torch.device) -> Tensor:
    return to_device(torch.from_numpy(values), device)
