"""Work on chunks of images, spread over the cluster by Ray Data; the driver gets only what the work returns.

On CPUs a task decodes a chunk and passes it through the networks, which a process fetches once. With GPUs tasks on CPUs
decode, and feed a pool of actors that hold the networks: a GPU task would be a fresh process each time.
"""

import logging
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import ray
import ray.data
import torch
from ray.data import DataContext
from ray.exceptions import RayTaskError
from torch import nn

from raysl.cluster.connection import cluster_resources, connect
from raysl.cluster.losses import reason
from raysl.cluster.resources import TASK_CPUS
from raysl.cluster.waiting_for_nodes import wait_for_nodes
from raysl.data.decode.images import NoValidImage
from raysl.errors import ConfigError, RunFailed
from raysl.process.code_errors import explaining_code

Numpy = dict[str, np.ndarray]


class Work(Protocol):
    """The work on a chunk, in two steps; it is sent to other processes."""

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
    own = {"GPU": min(1.0, resources.own_gpus)} if with_pool and resources.gpus >= 1 else {"CPU": each}
    wait_for_nodes([own, {"CPU": TASK_CPUS}] if "GPU" in own else [own], "feature extraction")
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.raise_original_map_exception = True  # Ray's own has lost what raysl says about the images
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # it also raises what it would log as an error
    reference, token = ray.put(networks.eval()), uuid.uuid4().hex
    chunks = ray.data.from_numpy_refs([ray.put(np.array([number])) for number in numbers])
    if with_pool:
        chunks = chunks.map_batches(_Read(work), batch_size=None, num_cpus=TASK_CPUS)
        size = max(1, int(resources.own_gpus))
        chunks = chunks.map_batches(
            _Pool,
            fn_constructor_args=(work, reference),
            batch_size=None,
            concurrency=(1, size),
            **({"num_gpus": min(1.0, resources.own_gpus)} if resources.gpus >= 1 else {"num_cpus": each}),
        )
    else:
        chunks = chunks.map_batches(_Both(work, reference, token), batch_size=None, num_cpus=each)
    try:
        yield from chunks.iter_batches(batch_size=None, batch_format="numpy")
    except RayTaskError as error:
        if isinstance(error.cause, NoValidImage):
            raise ConfigError(f"{reason(error)}; replace these files, or give other images") from error
        if isinstance(error.cause, RunFailed):
            raise RunFailed(reason(error)) from error
        raise


class _Read:
    def __init__(self, work: Work) -> None:
        self.work = work

    @explaining_code(of_users=True)
    def __call__(self, block: Numpy) -> Numpy:
        torch.set_num_threads(1)
        return _joined([self.work.read(int(number)) for number in block["data"].ravel()])


class _Pool:
    def __init__(self, work: Work, reference: Any) -> None:
        self.work = work
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.networks = ray.get(reference).to(self.device)

    @explaining_code(of_users=True)
    def __call__(self, chunk: Numpy) -> Numpy:
        return self.work.embed(chunk, self.networks, self.device)


class _Both:
    def __init__(self, work: Work, reference: Any, token: str) -> None:
        self.work, self.reference, self.token = work, reference, token

    @explaining_code(of_users=True)
    def __call__(self, block: Numpy) -> Numpy:
        torch.set_num_threads(1)
        networks = _networks_here(self.token, self.reference)
        chunks = (self.work.read(int(number)) for number in block["data"].ravel())
        return _joined([self.work.embed(chunk, networks, torch.device("cpu")) for chunk in chunks])


def _joined(parts: list[Numpy]) -> Numpy:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


_HERE: dict[str, nn.ModuleDict] = {}


def _networks_here(token: str, reference: Any) -> nn.ModuleDict:
    """Return the networks of some work, which each process fetches once."""
    if token not in _HERE:
        _HERE.clear()
        _HERE[token] = ray.get(reference)
    return _HERE[token]
