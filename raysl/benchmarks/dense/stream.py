"""Batches of images with masks or boxes: made by threads, in an order that is a function of seed and epoch."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from raysl import distributed as dist
from raysl.data.batch import Batch
from raysl.data.order import Order
from raysl.plan.plan import TrainPlan
from raysl.transforms.random import SampleRandom

Sample = TypeVar("Sample")

AHEAD = 2
"""Batches that are in the making behind the one that is trained on."""


class DenseBatches(Generic[Sample]):
    """This rank's batches, by step: a `BatchStream` of a training on samples of any kind.

    Args:
        plan: of the training.
        num_samples, fingerprint: of the dataset.
        make: a sample from its place in the dataset and the random numbers of (seed, epoch, place), one row.
        collate: from samples, and their places int64 [B], to a batch on the CPU.
        device: where batches go.
    """

    def __init__(
        self,
        plan: TrainPlan,
        num_samples: int,
        fingerprint: str,
        make: Callable[[int, SampleRandom], Sample],
        collate: Callable[[Sequence[Sample], Tensor], Batch],
        device: torch.device,
    ) -> None:
        self.plan = plan
        self.order = Order(
            seed=plan.seed,
            fingerprint=fingerprint,
            unit_sizes=np.array([num_samples]),
            batch_size=plan.batch_size,
            lanes=plan.lanes,
            window=plan.window,
            is_exact=True,
        )
        self.make = make
        self.collate = collate
        self.device = device

    def from_step(self, step: int) -> Iterator[Batch]:
        """See `BatchStream.from_step`."""
        with ThreadPoolExecutor(max(2, (os.cpu_count() or 1) // dist.world())) as pool:
            waiting: deque[list[Future[Sample]]] = deque()
            for number in range(step, self.plan.total_steps):
                while len(waiting) <= AHEAD and number + len(waiting) < self.plan.total_steps:
                    waiting.append(self._started(pool, number + len(waiting)))
                yield self._batch([future.result() for future in waiting.popleft()], number)

    def plain(self) -> Iterator[Batch]:
        """See `BatchStream.plain`; these methods ask for none."""
        raise NotImplementedError("a training on masks or boxes looks at no plain images")

    def _started(self, pool: ThreadPoolExecutor, step: int) -> list[Future[Sample]]:
        epoch = step // self.order.epoch_len
        places = self.order.batch(step, dist.rank(), dist.world())
        randoms = [SampleRandom(self.plan.seed, epoch, places[row : row + 1], 0) for row in range(len(places))]
        return [pool.submit(self.make, *row) for row in zip(places.tolist(), randoms, strict=True)]

    def _batch(self, samples: list[Sample], step: int) -> Batch:
        places = self.order.batch(step, dist.rank(), dist.world())
        lanes = torch.from_numpy(self.order.lanes_of(step, dist.rank(), dist.world()))
        batch = replace(self.collate(samples, torch.from_numpy(places)), lane=lanes)
        moved = batch.map(lambda values: values.to(self.device))
        return replace(moved, seed=self.plan.seed, epoch=step // self.order.epoch_len, step=step, host_index=places)
