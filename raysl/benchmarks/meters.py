"""Shares of rows and of classes among the k that score highest, counted over batches and over workers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from raysl import distributed as dist


@torch.no_grad()
def top_k_hits(scores: Tensor, labels: Tensor, k: int) -> Tensor:
    """Whether a class that an image has is among the k that score highest, bool [N].

    Args:
        scores: [N, K].
        labels: int64 [N], or [N, K] of 1 present, 0 absent and -1 ignore. An ignored class takes no place among the k;
            an image without a class (-1, or a row without a 1) is no hit.
        k: of K classes, all where there are fewer.
    """
    return _found(scores, labels, k)[0].any(dim=1)


class Meter(ABC):
    """Counts of hits for several k, which add up over updates and, when they are read, over the workers.

    Args:
        ks: sizes of the list of classes that score highest.

    Raises:
        ValueError: if there is no k, or one below 1.
    """

    def __init__(self, ks: Sequence[int] = (1, 5)) -> None:
        if not ks or min(ks) < 1:
            raise ValueError(f"a meter needs every k at least 1, got {list(ks)}")
        self.ks = tuple(dict.fromkeys(ks))
        self.counts = torch.zeros(len(self.ks), 2, dtype=torch.int64)
        """int64 [len(ks), 2]: hits, and what they are a share of, of this worker."""

    @torch.no_grad()
    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Count a batch: scores [N, K] and labels as `top_k_hits` takes them; nothing waits for a GPU."""
        new = [torch.stack(self._count(scores, labels, k)) for k in self.ks]
        self.counts = self.counts.to(scores.device) + torch.stack(new)

    def values(self) -> dict[int, float]:
        """Shares in [0, 1] over all updates of all workers by k, NaN where nothing was counted; a collective call."""
        hits, total = dist.all_sum(self.counts).double().unbind(dim=1)
        return dict(zip(self.ks, (hits / total).tolist(), strict=True))

    def reset(self) -> None:
        """Forget all updates."""
        self.counts = torch.zeros_like(self.counts)

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` goes on from."""
        return {"ks": list(self.ks), "counts": self.counts.cpu()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the counts of another meter.

        Raises:
            ValueError: if that one has another k.
        """
        if tuple(state["ks"]) != self.ks:
            raise ValueError(f"counts for k={state['ks']} are no counts for k={list(self.ks)}")
        self.counts = state["counts"].clone()

    @abstractmethod
    def _count(self, scores: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Hits of a batch, and what they are a share of, two int64 scalars."""


class TopK(Meter):
    """Share of the images with a class among the k that score highest; images without one are not counted."""

    def _count(self, scores: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
        found, num_present = _found(scores, labels, k)
        return found.any(dim=1).sum(), (num_present > 0).sum()


class PrecisionAtK(Meter):
    """Share of the k classes that score highest which the image has, over all images: hits / (k N)."""

    def _count(self, scores: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
        found, _ = _found(scores, labels, k)
        return found.sum(), torch.full_like(found.sum(), k * len(scores))


class RecallAtK(Meter):
    """Share of the classes that images have which are among the k that score highest there, over all images."""

    def _count(self, scores: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
        found, num_present = _found(scores, labels, k)
        return found.sum(), num_present.sum()


def _found(scores: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Which of the k best classes are present, bool [N, min(k, K)], and how many classes each image has, int64 [N]."""
    if labels.ndim == 1:
        places = scores.topk(min(k, scores.shape[1]), dim=1).indices
        return places == labels[:, None], (labels >= 0).long()
    places = scores.masked_fill(labels < 0, -torch.inf).topk(min(k, scores.shape[1]), dim=1).indices
    return labels.gather(1, places) == 1, (labels == 1).sum(dim=1)
