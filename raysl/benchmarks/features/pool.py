"""Work on chunks of images, spread over the cluster by Ray Data; the driver gets only what the work returns.

On CPUs a task decodes a chunk and passes it through the networks, which a process fetches once. With GPUs tasks on CPUs
decode, and feed a pool of actors that hold the networks: a GPU task would be a fresh process each time.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import ray
import torch
from ray.data import ActorPoolStrategy
from torch import nn

from raysl.cluster.connection import cluster_resources, connect
from raysl.cluster.numbered_parts import NUMBER, Numpy, blocks, numbered
from raysl.cluster.resources import TASK_CPUS
from raysl.cluster.tasks import fetch_once
from raysl.cluster.waiting_for_nodes import wait_for_nodes
from raysl.data.decode.images import NoValidImage
from raysl.errors import ConfigError
from raysl.process.code_errors import explaining_code

PADDING = "padding"
"""Column of rows that a chunk is filled up with."""


class Work(Protocol):
    """The work on a chunk, in two steps; it is sent to other processes."""

    @property
    def part_rows(self) -> int:
        """Largest number of images of a chunk."""

    def read(self, number: int) -> Numpy:
        """Read the images of a chunk; arrays of equal length."""

    def embed(self, chunk: Numpy, networks: nn.ModuleDict, device: torch.device) -> Numpy:
        """Pass a chunk through the networks: arrays of equal length, which the driver gets."""


def over_chunks(
    work: Work, networks: nn.ModuleDict, numbers: Sequence[int], with_pool: bool | None = None
) -> Iterator[Numpy]:
    """Yield the result of the work on each chunk, in any order.

    Args:
        networks: on the CPU; they are put into evaluation mode.
        with_pool: whether actors hold the networks; default: where the cluster has GPUs.

    Raises:
        ConfigError: if no image of a chunk is valid.
        RunFailed: if a file of images is missing or damaged, or its storage fails again and again.
    """
    if not numbers:
        return
    connect()
    resources = cluster_resources()
    each = min(1.0, resources.benchmark_cpus)
    with_pool = resources.gpus >= 1 if with_pool is None else with_pool
    network = {"GPU": min(1.0, resources.own_gpus)} if with_pool and resources.gpus >= 1 else {"CPU": each}
    wait_for_nodes([network, {"CPU": TASK_CPUS}] if "GPU" in network else [network], "feature extraction")
    # the weights go into the object store once; tasks and actors get a reference to them
    reference = ray.put(networks.eval())
    chunks = numbered(numbers)
    if with_pool:
        chunks = chunks.map_batches(_Read(work), batch_size=None, num_cpus=TASK_CPUS)
        size = max(1, int(resources.own_gpus))
        chunks = chunks.map_batches(
            _Pool,
            fn_constructor_args=(work, reference),
            batch_size=work.part_rows,  # for GPUs Ray Data asks for a number
            compute=ActorPoolStrategy(min_size=1, max_size=size),
            **({"num_gpus": network["GPU"]} if "GPU" in network else {"num_cpus": each}),
        )
    else:
        chunks = chunks.map_batches(_Both(work, reference), batch_size=None, num_cpus=each)
    try:
        yield from blocks(chunks)
    except NoValidImage as error:
        raise ConfigError(f"{error}; replace these files, or give other images") from error


class _Read:
    """Reads chunks, and fills each up to the same number of rows, so that it reaches the pool as one batch."""

    def __init__(self, work: Work) -> None:
        self.work = work

    @explaining_code(of_users=True)
    def __call__(self, block: Numpy) -> Numpy:
        torch.set_num_threads(1)
        return _joined([_filled_up(self.work.read(int(number)), self.work.part_rows) for number in block[NUMBER]])


class _Pool:
    def __init__(self, work: Work, reference: Any) -> None:
        self.work = work
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.networks = ray.get(reference).to(self.device)

    @explaining_code(of_users=True)
    def __call__(self, batch: Numpy) -> Numpy:
        is_image = ~batch[PADDING]
        chunk = {name: column[is_image] for name, column in batch.items() if name != PADDING}
        return self.work.embed(chunk, self.networks, self.device)


class _Both:
    def __init__(self, work: Work, reference: Any) -> None:
        self.work, self.reference = work, reference

    @explaining_code(of_users=True)
    def __call__(self, block: Numpy) -> Numpy:
        torch.set_num_threads(1)
        networks = fetch_once(self.reference)
        chunks = (self.work.read(int(number)) for number in block[NUMBER])
        return _joined([self.work.embed(chunk, networks, torch.device("cpu")) for chunk in chunks])


def _filled_up(chunk: Numpy, num_rows: int) -> Numpy:
    """Repeat the last row of a chunk until there are `num_rows`."""
    count = len(next(iter(chunk.values())))
    rows = np.arange(num_rows)
    return {name: column[rows.clip(max=count - 1)] for name, column in chunk.items()} | {PADDING: rows >= count}


def _joined(parts: list[Numpy]) -> Numpy:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
