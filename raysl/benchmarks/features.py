"""Features of a dataset by frozen backbones, extracted by Ray Data tasks: every sample once, in order."""

import logging
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.data
import torch
from ray.data import DataContext
from torch import Tensor, nn

from raysl.addresses import cut, join
from raysl.arguments import instance, words
from raysl.benchmarks.benchmark import FeatureSet
from raysl.benchmarks.settings import dataset_tag, load_data
from raysl.checkpoint import load_checkpoint
from raysl.cluster import Resources, connect
from raysl.components import resolve
from raysl.config.schema import DataConfig
from raysl.data.decode.images import cut_images
from raysl.data.source import SPLITS, Split
from raysl.errors import ConfigError
from raysl.storage import Folder
from raysl.transforms.channels import network_input
from raysl.transforms.view_recipe import evaluation_recipe

log = logging.getLogger("raysl")

CHUNK_ROWS = 512

Numpy = dict[str, np.ndarray]


@dataclass(frozen=True)
class Features:
    """Features of a split, in dataset order.

    Args:
        features: float32 [N, D].
        labels: int64 [N], -1 where unlabelled; [N, K] of a multi-label dataset.
        index: int64 [N], the samples' places in the dataset.
        path: the Parquet file that holds the same.
    """

    features: Tensor
    labels: Tensor
    index: Tensor
    path: str


def extract(
    checkpoint: str,
    source: DataConfig | None = None,
    split: str = "test",
    out: str | None = None,
    trust_code: bool = False,
    overrides: Sequence[str] = (),
) -> Features:
    """Features of a dataset by a checkpoint's backbone.

    Args:
        checkpoint: local path or URI of a checkpoint, or of a run, whose newest one is taken.
        source: settings of a dataset; default: the one of the run.
        split: `train` or `test`.
        out: Parquet file to write; default: `features_<split>.parquet` beside the checkpoint, and for images that are
            not the run's `features_<dataset>_<split>.parquet`, which a part of a hash makes another one for others.
        trust_code: whether components that the checkpoint names may be code that is not raysl's.
        overrides: other images by settings on top of the run's: `data=parquet`, `data.path=/b`.

    Raises:
        ConfigError: if there is no such split, the checkpoint or the images cannot be read, or it names code that is
            not trusted.
    """
    overrides = words(overrides, "overrides", "data.path=/b")
    if source is not None:
        instance(source, DataConfig, "source", "settings of a dataset, as raysl.load_config('quickstart').data")
    if split not in SPLITS:
        raise ConfigError(
            f"no split {split!r}; there are: {', '.join(SPLITS)}. Other held-out images are named by data.test="
        )
    if others := [word for word in overrides if not re.match(r"data[.=]", word)]:
        raise ConfigError(f"{others[0]!r} is no setting of the images; those begin with data= or data.")
    loaded = load_checkpoint(checkpoint, trust_code)
    data = source or (load_data(loaded.config, overrides) if overrides else loaded.config.data)
    images = resolve("source", data.name)(data).required(split)
    found = extract_sets({"features": loaded.backbone}, images, data)["features"]
    index = torch.arange(images.num_samples)
    tag = dataset_tag(data, loaded.config.data)
    path = str(out) if out else join(loaded.uri, f"features_{f'{tag}_' if tag else ''}{split}.parquet")
    _write(path, found, index)
    return Features(found.features, found.labels, index, path)


def extract_sets(models: dict[str, nn.Module], split: Split, data: DataConfig) -> dict[str, FeatureSet]:
    """Features of every sample of a split by several networks, in one pass over the images.

    Args:
        models: networks from normalised images [B, 3, H, W] to [B, D], by name.
        split: the images.
        data: gives size and normalisation.
    """
    connect()
    is_gpu = Resources.of_cluster().gpus >= 1
    context = DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    task = _Extraction(uuid.uuid4().hex, ray.put({name: model.eval() for name, model in models.items()}), split, data)
    num_chunks = -(-split.num_samples // CHUNK_ROWS)
    chunks = ray.data.range(num_chunks, override_num_blocks=num_chunks).map_batches(
        task, batch_size=None, **({"num_gpus": 1} if is_gpu else {"num_cpus": 1})
    )
    parts = list(chunks.iter_batches(batch_size=None, batch_format="numpy"))
    index = np.concatenate([part["index"] for part in parts])
    order = np.argsort(index)
    assert np.array_equal(index[order], np.arange(split.num_samples))

    def column(name: str) -> Tensor:
        return torch.from_numpy(np.concatenate([part[name] for part in parts])[order])

    _tell_of_corrupt([name for part in parts for name in part["corrupt"].tolist() if name])
    labels = column("label")
    return {name: FeatureSet(column(f"features:{name}"), labels) for name in models}


def _tell_of_corrupt(images: list[str]) -> None:
    if images:
        rule = "%d images are broken, their neighbours were measured instead; the first: %s"
        log.warning(rule, len(images), images[0])


@dataclass(frozen=True)
class _Extraction:
    """What a data task does: a chunk's number to the features of its rows."""

    token: str
    models: Any  # reference to the networks in Ray's object store
    split: Split
    data: DataConfig

    def __call__(self, block: Numpy) -> Numpy:
        torch.set_num_threads(1)
        parts = [self._chunk(number) for number in block["id"].tolist()]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    @torch.inference_mode()
    def _chunk(self, number: int) -> Numpy:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        index = np.arange(number * CHUNK_ROWS, min((number + 1) * CHUNK_ROWS, self.split.num_samples))
        recipe = evaluation_recipe(self.data.image_size, self.data.eval_resize)
        read = cut_images(self.split, index, lambda sources, rows: recipe(sources[0].images, rows, seed=0, epoch=0))
        pixels = read.views["image"][:, 0].to(device)
        normal = network_input(pixels, self.data.mean, self.data.std, self.data.channels)
        features = {
            f"features:{name}": model(normal).float().cpu().numpy()
            for name, model in _models_here(self.token, self.models, device).items()
        }
        corrupt = np.array([*read.corrupt, *[""] * (len(index) - len(read.corrupt))])
        return {"index": index, "label": read.labels, "corrupt": corrupt, **features}


_HERE: dict[str, dict[str, nn.Module]] = {}


def _models_here(token: str, reference: Any, device: torch.device) -> dict[str, nn.Module]:
    """The networks of an extraction, fetched once by each process."""
    if token not in _HERE:
        _HERE.clear()
        _HERE[token] = {name: model.to(device) for name, model in ray.get(reference).items()}
    return _HERE[token]


def _write(path: str, found: FeatureSet, index: Tensor) -> None:
    rows = pa.FixedSizeListArray.from_arrays(pa.array(found.features.flatten().numpy()), found.features.shape[1])
    column = labels = found.labels.numpy()
    if labels.ndim == 2:
        column = pa.FixedSizeListArray.from_arrays(pa.array(labels.ravel()), labels.shape[1])
    table = pa.table({"index": index.numpy(), "label": column, "features": rows})
    parent, name = cut(path)
    folder = Folder(parent or ".")
    folder.make()
    with folder.system.open_output_stream(f"{folder.path}/{name}") as stream:
        pq.write_table(table, stream)
