"""Photographs to transform."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors on a busy machine wait long for a second thread."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def photos() -> list[Tensor]:
    """Two uint8 photographs [3, 427, 640]."""
    return [torch.from_numpy(image.copy()).permute(2, 0, 1) for image in load_sample_images().images]


@pytest.fixture(scope="session")
def cuts(photos: list[Tensor]) -> Callable[..., list[Tensor]]:
    """cuts(num, height, width): uint8 pieces [3, height, width] of the photographs, always the same."""

    def cut(num: int, height: int, width: int) -> list[Tensor]:
        random = np.random.default_rng(height * 1000 + width)
        pieces = []
        for number in range(num):
            photo = photos[number % len(photos)]
            top, left = random.integers(0, 427 - height + 1), random.integers(0, 640 - width + 1)
            pieces.append(photo[:, top : top + height, left : left + width])
        return pieces

    return cut


@pytest.fixture
def images(cuts: Callable[..., list[Tensor]]) -> Tensor:
    """float32 [9, 3, 36, 44] in [0, 1]: seven pieces of photographs, a grey one and a black one."""
    pieces = torch.stack(cuts(9, 36, 44)).float() / 255.0
    pieces[7] = pieces[7].mean(0, keepdim=True)
    pieces[8] = 0.0
    return pieces
