"""Batches that a thread makes on a stream of its own have their numbers when training uses them, and keep them."""

import gc
from collections.abc import Generator

import pytest
import torch
from torch import Tensor

from raysl.data.batch import Batch
from raysl.data.stream.prefetch import prefetch
from raysl.transforms.device import to_device
from tests.data.stream.lazy_gpu import CUDA, LazyGpu, lazy_gpu

NUM = 9
EARLY = ("batches", "training")


def host_batch(number: int) -> Batch:
    """Images and boxes, labels and masks of what is on them."""
    rows = torch.full((2,), number)
    targets = {
        name: torch.full((2, size), 10 * number + size) for size, name in enumerate(("boxes", "labels", "masks"), 1)
    }
    views = {"global": torch.full((2, 1, 3), float(number)), "local": torch.full((2, 4, 3), float(-number))}
    return Batch(views, rows, rows + 1, rows + 2, extras={f"targets.{name}": part for name, part in targets.items()})


def tensors(batch: Batch) -> list[Tensor]:
    found: list[Tensor] = []
    batch.map(lambda values: found.append(values) or values)  # type: ignore[func-returns-value]
    return found


def source() -> Generator[tuple[Batch, int], None, None]:
    for number in range(NUM):
        yield host_batch(number).map(lambda values: to_device(values, CUDA)), number


@pytest.mark.parametrize("early", EARLY)
def test_every_tensor_of_a_batch_has_its_numbers_when_training_uses_it(early: str) -> None:
    with lazy_gpu(early) as gpu:
        seen = [[gpu.read(values) for values in tensors(batch)] for batch, _ in prefetch(source(), CUDA)]
        assert gpu.training.work or early == "training"
        gpu.finish()
    found = [[values[0].tolist() for values in batch] for batch in seen]
    assert found == [[values.tolist() for values in tensors(host_batch(number))] for number in range(NUM)]
    assert len(found[0]) == 8
    assert gpu.waits == []
    assert gpu.copied_on == {gpu.batches}


@pytest.mark.parametrize("early", EARLY)
def test_a_source_may_use_what_training_still_computes(early: str) -> None:
    with lazy_gpu(early) as gpu:
        weights = torch.zeros(2)
        gpu.training.add(lambda: weights.fill_(5) is weights)
        used: list[list[Tensor]] = []

        def reading() -> Generator[tuple[Batch, int], None, None]:
            for made in source():
                used.append(gpu.read(weights))
                yield made

        list(prefetch(reading(), CUDA))
        gpu.finish()
    assert [values[0].tolist() for values in used] == [[5, 5]] * NUM


def test_memory_is_used_again_when_training_is_done_with_it() -> None:
    with lazy_gpu("training") as gpu:
        places = set()
        for batch, _ in prefetch(source(), CUDA):
            places.add(batch.index.data_ptr())
            del batch
            gc.collect(1)
        gpu.finish()
    assert len(places) < NUM, "the double would not see memory that is used again too early"


def test_a_copy_from_pageable_memory_and_one_that_blocks_are_seen() -> None:
    gpu = LazyGpu("batches")
    gpu.copy(torch.zeros(1), is_late=True)
    gpu.copy(gpu.pin(torch.zeros(1)), is_late=False)
    assert gpu.waits == ["pageable memory", "a copy"]
