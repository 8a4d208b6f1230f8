"""The propagation of labels beside a loop over places."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.benchmarks.dense import videos
from raysl.benchmarks.dense.videos import followed, objects_of, propagated


def unit(*shape: int, seed: int = 0, dim: int = 0) -> Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.normalize(values, dim=dim)


def slow(query: Tensor, keys: Tensor, labels: Tensor, radius: int | None, neighbours: int, heat: float) -> Tensor:
    """Each place by itself: sort those around it, weigh the nearest, add their labels up."""
    _, height, width = query.shape
    out = torch.zeros(labels.shape[1:], dtype=query.dtype)
    for y in range(height):
        for x in range(width):
            near = [
                (float(query[:, y, x] @ keys[t, :, v, u]), labels[t, :, v, u])
                for t in range(len(keys)) for v in range(height) for u in range(width)
                if radius is None or (abs(v - y) <= radius and abs(u - x) <= radius)
            ]  # fmt: skip
            near.sort(key=lambda pair: -pair[0])
            weights = [math.exp(cosine / heat) for cosine, _ in near[:neighbours]]
            for weight, (_, label) in zip(weights, near[:neighbours], strict=False):
                out[:, y, x] += weight / sum(weights) * label
    return out


@pytest.mark.parametrize("at_once", [2**26, 1])  # in one part, and row by row
@pytest.mark.parametrize(("radius", "neighbours"), [(2, 5), (1, 3), (None, 5), (12, 400)])
def test_it_is_the_loop_over_places(
    radius: int | None, neighbours: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(videos, "AT_ONCE", at_once)
    query, keys = unit(8, 5, 7), unit(3, 8, 5, 7, seed=1, dim=1)
    labels = torch.rand(3, 4, 5, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    given: Any = (query, keys, labels, radius, neighbours, 0.1)
    assert torch.allclose(propagated(*given), slow(*given), rtol=1e-9)


def test_places_that_are_as_near_as_the_last_count_too() -> None:
    query, keys = torch.ones(1, 1, 3), torch.ones(1, 1, 1, 3)
    labels = torch.tensor([[[[1.0, 0.0, 0.5]]]])
    assert torch.allclose(propagated(query, keys, labels, None, 2, 0.1), torch.full((1, 1, 3), 0.5))


def test_labels_come_from_the_first_frame_and_the_latest_ones() -> None:
    maps = [unit(6, 3, 4, seed=seed) * (1 + seed) for seed in range(6)]  # of any length
    first = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    found = list(followed(iter(maps), first, context=2, radius=1, neighbours=3, temperature=0.1))
    known = [first]
    for number in range(1, 6):
        places = [0, *range(max(1, number - 2), number)]
        keys = torch.stack([F.normalize(maps[place], dim=0) for place in places])
        labels = torch.stack([known[place] for place in places])
        known.append(slow(F.normalize(maps[number], dim=0), keys, labels, 1, 3, 0.1))
        assert torch.allclose(found[number - 1], known[number], rtol=1e-9)
    assert len(found) == 5


def test_each_label_is_brought_to_0_to_1_before_the_largest_is_taken() -> None:
    labels = torch.tensor([[[0.9, 0.8, 0.7]], [[0.1, 0.2, 0.3]], [[0.0, 0.0, 0.0]]])
    assert objects_of(labels, (1, 3)).tolist() == [[0, 0, 1]]  # 1, 1/2, 0 and 0, 1/2, 1
    alone = torch.tensor([[[1.0, 1.0]], [[0.0, 0.0]]])
    assert objects_of(alone, (2, 4)).tolist() == [[0] * 4] * 2


def test_labels_are_resized_bilinearly_before() -> None:
    labels = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    assert objects_of(labels, (2, 8)).tolist() == [[0] * 4 + [1] * 4] * 2
