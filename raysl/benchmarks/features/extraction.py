"""Extraction of a dataset's features by frozen networks to disk: every sample once, in order.

Ray Data spreads the parts over the cluster; the driver gets only the names of broken images. On CPUs a task decodes a
part and passes it through the networks, which a process fetches once. With GPUs tasks on CPUs decode, and feed a pool
of actors that hold the networks: a GPU task would be a fresh process each time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from ray.data import ActorPoolStrategy
from torch import nn

import raysl
from raysl.benchmarks.benchmark import FEATURES
from raysl.benchmarks.features.embedding import StagedNetwork, encoded, features_of, read_rows, thumbnail_recipe
from raysl.benchmarks.features.store import About, Dtype, Rows, Store, part_rows_for
from raysl.benchmarks.features.stored_features import StoredSet
from raysl.benchmarks.suite.digests import code_of
from raysl.cluster.connection import cluster_resources, connect
from raysl.cluster.numbered_parts import NUMBER, Numpy, blocks, numbered
from raysl.cluster.resources import TASK_CPUS
from raysl.cluster.tasks import fetch_once
from raysl.cluster.waiting_for_nodes import wait_for_nodes
from raysl.config.schema import DataConfig
from raysl.data.decode.images import NoValidImage
from raysl.data.source import Split
from raysl.errors import ConfigError, log
from raysl.nn.backbones.backbone import Backbone
from raysl.process.code_errors import explaining_code
from raysl.process.waiting import count
from raysl.redact import redact
from raysl.storage.folder import Folder
from raysl.train.file_names import count_broken


@dataclass(frozen=True)
class Wanted:
    """The features to extract.

    Args:
        networks: modules from normalised images [B, C, H, W] to [B, D] by name, on the CPU.
        weights: identifies the weights of each, such as a SHA-256.
        stages: `FEATURES` and names of stages; networks other than a `Backbone` have the former only.
        pictured: network and stage beside whose features thumbnails of the images are kept; None for no thumbnails.
    """

    networks: Mapping[str, nn.Module]
    weights: Mapping[str, str]
    stages: tuple[str, ...] = (FEATURES,)
    dtype: Dtype = "fp32"
    pictured: tuple[str, str] | None = None

    def stages_of(self, name: str) -> tuple[str, ...]:
        """Return the stages that a network has."""
        is_backbone = isinstance(self.networks[name], Backbone)
        return self.stages if is_backbone else tuple(stage for stage in self.stages if stage == FEATURES)


def feature_sets(
    wanted: Wanted, split: Split, data: DataConfig, folder: Folder, token: str = ""
) -> dict[str, StoredSet]:
    """Extract features of every sample of a split by several networks in one pass over the images.

    Args:
        folder: where they are kept, each network's stage in a folder of its own.
        token: name of the files that the processes of a node share, see `StoredSet`.

    Returns:
        Those of each network, by its name.
    """
    folders = {
        (name, stage): folder.child(f"{name}.{stage}" if stage != FEATURES else name)
        for name in wanted.networks
        for stage in wanted.stages_of(name)
    }
    stores = extract_to(wanted, split, data, folders)
    return {
        name: StoredSet({stage: store for (network, stage), store in stores.items() if network == name}, token)
        for name in wanted.networks
        if wanted.stages_of(name)
    }


def extract_to(
    wanted: Wanted, split: Split, data: DataConfig, folders: Mapping[tuple[str, str], Folder]
) -> dict[tuple[str, str], Store]:
    """Extract features to a folder for each network and stage; parts of the same features that are there stay."""

    rows = part_rows_for(split.num_samples)
    stores: dict[tuple[str, str], Store] = {}
    for (name, stage), folder in folders.items():
        code = code_of(type(wanted.networks[name]), *split.readers())
        basis = _basis(wanted.weights[name], stage, split, data, code)
        stores[name, stage] = Store.begin(folder, About(basis, split.num_samples, rows, wanted.dtype, split.classes))
    missing = {key: numbers for key, store in stores.items() if (numbers := store.missing())}
    numbers = sorted({number for numbers_of_store in missing.values() for number in numbers_of_store})
    stages: dict[str, list[str]] = {}
    for name, stage in missing:
        stages.setdefault(name, []).append(stage)
    networks = nn.ModuleDict({name: StagedNetwork(wanted.networks[name], stages[name]) for name in stages})
    needed = {key: stores[key] for key in missing}
    corrupt: list[str] = []
    before = num_read = split.num_samples - sum(min(rows, split.num_samples - number * rows) for number in numbers)
    for block in over_chunks(_Extraction(split, data, rows, needed, wanted.pictured), networks, numbers):
        num_read += len(block["corrupt"])
        count(num_read, split.num_samples, before)
        corrupt += [name for name in block["corrupt"].tolist() if name]
    if corrupt:
        log.warning("%s, neighbours were measured instead; the first: %s", count_broken(len(corrupt)), corrupt[0])
    return stores


def _basis(weights: str, stage: str, split: Split, data: DataConfig, code: str) -> dict[str, Any]:
    """Return everything that the features depend on, and the release of raysl."""
    return {
        "raysl": raysl.__version__,
        "weights": weights,
        "stage": stage,
        "images": split.fingerprint,
        **{name: part for name, part in split.state().items() if name != "fingerprint"},
        "code": code,
        "background": None if split.background is None else list(split.background),
        **{name: getattr(data, name) for name in ("image_size", "eval_resize", "eval_interpolation", "channels")},
        "mean": list(data.mean),
        "std": list(data.std),
        **({} if data.value_range is None else {"value_range": list(data.value_range)}),
    }


@dataclass(frozen=True)
class _Extraction:
    """The work on a part of the rows, in two steps; it is sent to other processes."""

    split: Split
    data: DataConfig
    part_rows: int
    stores: Mapping[tuple[str, str], Store]
    pictured: tuple[str, str] | None = None

    def read(self, number: int) -> Numpy:
        """Read the images of a part; arrays of equal length."""
        end = min((number + 1) * self.part_rows, self.split.num_samples)
        index = np.arange(number * self.part_rows, end)
        has_thumbnails = self.pictured in self.stores
        read = read_rows(self.split, index, self.data, thumbnail_recipe(self.data) if has_thumbnails else None)
        return {
            **{name: view.numpy() for name, view in read.views.items()},
            "index": index,
            "name": np.array([redact(name) for name in read.names]),
            "label": read.labels,
            "corrupt": np.array([*read.corrupt, *[""] * (len(index) - len(read.corrupt))]),
        }

    def embed(self, chunk: Numpy, networks: nn.ModuleDict, device: torch.device) -> Numpy:
        """Store the features of a part; the driver gets the names of its broken images."""
        images = torch.from_numpy(np.array(chunk["image"]))  # Ray's arrays are read-only
        staged = {name: network for name, network in networks.items() if isinstance(network, StagedNetwork)}
        number = int(chunk["index"][0]) // self.part_rows
        # thumbnails go first, since a part that exists counts as complete
        if self.pictured is not None and "thumbnail" in chunk:
            self.stores[self.pictured].keep_thumbnails(number, encoded(chunk["thumbnail"].transpose(0, 2, 3, 1)))
        for key, features in features_of(staged, images, self.data, device).items():
            rows = Rows(chunk["index"], chunk["name"].tolist(), chunk["label"], features.numpy())
            self.stores[key].keep(number, rows)
        return {"corrupt": chunk["corrupt"]}


PADDING = "padding"
"""Column of rows that a chunk is filled up with."""


def over_chunks(
    work: _Extraction, networks: nn.ModuleDict, numbers: Sequence[int], with_pool: bool | None = None
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

    def __init__(self, work: _Extraction) -> None:
        self.work = work

    @explaining_code(of_users=True)
    def __call__(self, block: Numpy) -> Numpy:
        torch.set_num_threads(1)
        return _joined([_filled_up(self.work.read(int(number)), self.work.part_rows) for number in block[NUMBER]])


class _Pool:
    def __init__(self, work: _Extraction, reference: Any) -> None:
        self.work = work
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.networks = ray.get(reference).to(self.device)

    @explaining_code(of_users=True)
    def __call__(self, batch: Numpy) -> Numpy:
        is_image = ~batch[PADDING]
        chunk = {name: column[is_image] for name, column in batch.items() if name != PADDING}
        return self.work.embed(chunk, self.networks, self.device)


class _Both:
    def __init__(self, work: _Extraction, reference: Any) -> None:
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
