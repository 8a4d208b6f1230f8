"""Extraction of a dataset's features by frozen networks to disk: every sample once, in order."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

import raysl
from raysl.benchmarks.benchmark import FEATURES
from raysl.benchmarks.features.embedding import StagedNetwork, encoded, features_of, read_rows, thumbnail_recipe
from raysl.benchmarks.features.store import About, Dtype, Rows, Store, part_rows_for
from raysl.benchmarks.features.stored_features import Features, StoredSet
from raysl.benchmarks.suite.digests import code_of
from raysl.benchmarks.suite.settings import dataset_tag, load_cluster, load_data, sort_overrides
from raysl.checkpoint.backbone import Checkpoint, load_checkpoint
from raysl.cluster.settings import use_settings
from raysl.config.arguments import instance, words
from raysl.config.schema import DataConfig
from raysl.data.source import SPLITS, Split, make_source
from raysl.data.sources.part_names import parse_part_name
from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone
from raysl.process.waiting import count, enter
from raysl.redact import redact
from raysl.storage.addresses import join
from raysl.storage.folder import Folder
from raysl.train.file_names import count_broken

log = logging.getLogger("raysl")

Numpy = dict[str, np.ndarray]
_SPLITS = {"train": "train", "test": "test", "val": "test"}


def extract(
    checkpoint: str,
    source: DataConfig | None = None,
    split: str | None = None,
    out: str | None = None,
    trust_code: bool = False,
    overrides: Sequence[str] = (),
    stage: str = FEATURES,
    dtype: Dtype = "fp32",
) -> Features:
    """Extract features of a dataset by a checkpoint's backbone to a folder of Parquet files.

    Parts of the same features that an earlier call has written stay, so an interrupted call is resumed.

    >>> len(extract("runs/mine").features)
    355

    Args:
        checkpoint: local path or URI of a checkpoint, or of a run, whose newest one is taken.
        source: settings of a dataset; default: the one of the run.
        split: `train`, or `test`, which `val` and `validation` mean too; default: test, and of other images without
            test images, train.
        out: Parquet folder to write; default: `features_<split>.parquet` beside the checkpoint, and for images that are
            not the run's `features_<dataset>_<split>.parquet`, which a part of a hash makes another one for others.
        trust_code: whether components that the checkpoint names may be code that is not raysl's.
        overrides: other images by settings on top of the run's, `data=parquet`, `data.path=/b`, and settings about the
            cluster, `cluster.max_gpus=8`.
        stage: name of a stage, whose mean over all places is taken; default: the features.
        dtype: type of the numbers on disk, fp32 or fp16.

    Raises:
        ConfigError: if the split or a stage does not exist, the checkpoint or the images cannot be read, or it names
            code that is not trusted.
    """
    from raysl.cluster.connection import connect

    of_images, of_cluster, others = sort_overrides(words(overrides, "overrides", "data.path=/b"))
    if source is not None:
        instance(source, DataConfig, "source", "settings of a dataset, as raysl.load_config('quickstart').data")
    lines = []
    # other libraries call the test images val or validation
    if split is not None and (split := _SPLITS.get(parse_part_name(name := split) or "")) is None:
        lines.append(
            f"no split {name!r}; write {' or '.join(SPLITS)} (val means test). Other held-out images are named by "
            "data.test="
        )
    if dtype not in ("fp32", "fp16"):
        lines.append(f"dtype {dtype!r} is none of fp32 and fp16; write one of them")
    lines += [
        f"{word!r} is not a setting of the images, which begin with data= or data., or of the cluster"
        for word in others
    ]
    if lines:
        raise ConfigError("\n".join(lines))
    enter("reading the checkpoint")
    loaded = load_checkpoint(checkpoint, trust_code)
    use_settings(load_cluster(loaded.config, of_cluster))
    check_stages(loaded.backbone, (stage,), loaded.uri)
    enter("listing the images")
    data = source or load_data(loaded.config, of_images)
    split, images = _choose_split(data, loaded, split)
    tag = dataset_tag(data, loaded.config.data)
    name = "_".join(filter(None, ("features", tag, stage.replace(".", "-"), split)))
    path = str(out) if out else join(loaded.uri, f"{name}.parquet")
    wanted = Wanted({"trained": loaded.backbone}, {"trained": loaded.digest}, (stage,), dtype)
    enter("starting Ray")
    connect()
    enter(f"computing features of {images.num_samples:,} {split} images")
    extract_to(wanted, images, data, {("trained", stage): Folder(path)})
    return Features(path=path)


def _choose_split(data: DataConfig, loaded: Checkpoint, name: str | None) -> tuple[str, Split]:
    """Return the split of this name; without a name test, or train of other images than the run's without test."""
    is_own = data is loaded.config.data
    source = make_source(data)
    if name != "train" and (images := source.optional("test")) is not None:
        return "test", images
    if name == "train" or (name is None and not is_own):
        return "train", source.required("train")
    raise ConfigError(
        f"the dataset {data.name!r} has no test images; take its training images by --split train (in Python "
        "split='train'), or give data.test="
    )


def check_stages(backbone: nn.Module, stages: Sequence[str], where: str) -> None:
    """Refuse stages that a backbone does not have."""
    known = list(backbone.stage_widths) if isinstance(backbone, Backbone) else []
    for stage in stages:
        if stage != FEATURES and stage not in known:
            raise ConfigError(
                f"no stage {stage!r} in the backbone of {where}; it has {', '.join(known) or 'none that it tells of'}"
            )


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
        data: gives size and normalisation.
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
    from raysl.benchmarks.features.pool import over_chunks  # Ray, without which benchmarks can still be named

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
    """The work on a part of the rows, see `Work`."""

    split: Split
    data: DataConfig
    part_rows: int
    stores: Mapping[tuple[str, str], Store]
    pictured: tuple[str, str] | None = None

    def read(self, number: int) -> Numpy:
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
