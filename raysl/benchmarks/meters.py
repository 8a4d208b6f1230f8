"""Shares of rows and classes among the k highest scores, counted over batches and workers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from raysl import distributed as dist


@torch.no_grad()
def top_k_hits(scores: Tensor, labels: Tensor, k: int) -> Tensor:
    """Return whether a class of each image is among its k highest scores, bool [N].

    Args:
        scores: [N, K].
        labels: int64 [N], or [N, K] of 1 present, 0 absent and -1 ignore. An ignored class takes no place among the k;
            an image without a class (-1, or a row without a 1) counts as a miss.
        k: of K classes, all where there are fewer.

    >>> top_k_hits(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]), k=1)
    tensor([ True, False])
    """
    return _found(scores, labels, k)[0].any(dim=1)


class Meter(ABC):
    """Hits for several k, summed over updates and, when they are read, over workers.

    Args:
        ks: sizes of the list of classes that score highest.

    Raises:
        ValueError: if k is empty or below 1.
    """

    def __init__(self, ks: Sequence[int] = (1, 5)) -> None:
        if not ks or min(ks) < 1:
            raise ValueError(f"a meter needs every k at least 1, got {list(ks)}")
        self.ks = tuple(dict.fromkeys(ks))
        self.counts = torch.zeros(len(self.ks), 2, dtype=torch.int64)
        """int64 [len(ks), 2]: hits, and their possible number, of this worker."""

    @torch.no_grad()
    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Count a batch of scores [N, K] and labels as in `top_k_hits`, without waiting for a GPU."""
        new = [torch.stack(self._count(scores, labels, k)) for k in self.ks]
        self.counts = self.counts.to(scores.device) + torch.stack(new)

    def values(self) -> dict[int, float]:
        """Return shares in [0, 1] by k over all updates of all workers, NaN if nothing was counted; a collective
        call."""
        hits, total = dist.all_sum(self.counts).double().unbind(dim=1)
        return dict(zip(self.ks, (hits / total).tolist(), strict=True))

    def reset(self) -> None:
        """Forget all updates."""
        self.counts = torch.zeros_like(self.counts)

    def state_dict(self) -> dict[str, Any]:
        """Return the counts, for `load_state_dict`."""
        return {"ks": list(self.ks), "counts": self.counts.cpu()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the counts of another meter.

        Raises:
            ValueError: if that one has another k.
        """
        if tuple(state["ks"]) != self.ks:
            raise ValueError(f"counts for k={state['ks']} do not fit k={list(self.ks)}")
        self.counts = state["counts"].clone()

    @abstractmethod
    def _count(self, scores: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Count hits of a batch and their maximum, two int64 scalars."""


class TopK(Meter):
    """Share of images with a class among the k highest scores; images without a class are not counted.

    >>> meter = TopK((1,))
    >>> meter.update(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    >>> meter.values()
    {1: 0.5}
    """

    def _count(self, scores: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
        hits, num_present = _found(scores, labels, k)
        return hits.any(dim=1).sum(), (num_present > 0).sum()


class PrecisionAtK(Meter):
    """Share of the k highest-scored classes that the image has, over all images: hits / (k N).

    >>> meter = PrecisionAtK((2,))
    >>> meter.update(torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([[1, 0, 1]]))
    >>> meter.values()
    {2: 0.5}
    """

    def _count(self, scores: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
        hits, _ = _found(scores, labels, k)
        return hits.sum(), torch.full_like(hits.sum(), k * len(scores))


class RecallAtK(Meter):
    """Share of the images' classes that are among their k highest scores, over all images.

    >>> meter = RecallAtK((2,))
    >>> meter.update(torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([[1, 0, 1]]))
    >>> meter.values()
    {2: 0.5}
    """

    def _count(self, scores: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
        hits, num_present = _found(scores, labels, k)
        return hits.sum(), num_present.sum()


def _found(scores: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return which of the k highest-scored classes are present, bool [N, min(k, K)], and the number of classes of each
    image, int64 [N]."""
    if labels.ndim == 1:
        ranked = scores.topk(min(k, scores.shape[1]), dim=1).indices
        return ranked == labels[:, None], (labels >= 0).long()
    ranked = scores.masked_fill(labels < 0, -torch.inf).topk(min(k, scores.shape[1]), dim=1).indices
    return labels.gather(1, ranked) == 1, (labels == 1).sum(dim=1)
