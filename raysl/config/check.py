"""Ranges of the settings that every run has. What depends on a method or on the images is checked by those."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from raysl.config.schema import DataConfig, OptimConfig, RunConfig, TrainConfig
from raysl.config.values import show
from raysl.schedule import Duration

_AT_LEAST: dict[type[Any], dict[str, int]] = {
    RunConfig: {"seed": 0},
    TrainConfig: {"epochs": 1, "batch_size": 1, "workers": 1, "threads": 1, "keep_checkpoints": 1, "max_failures": -1},
    DataConfig: {"image_size": 1, "limit": 1, "skip": 0, "lanes": 1, "window": 1, "exact_below": 0, "prefetch": 1},
    OptimConfig: {"lr": 0, "lr_batch_size": 1, "weight_decay": 0},
}
_ABOVE_ZERO: dict[type[Any], tuple[str, ...]] = {
    TrainConfig: ("cpus_per_worker", "clip_grad", "log_every", "checkpoint_every", "online_knn_every"),
}


def problems(config: RunConfig) -> list[str]:
    """A line for each value out of its range; empty where all is well."""
    nodes: list[tuple[str, Any]] = [
        ("", config),
        ("train.", config.train),
        *_sources("data.", config.data),
        ("optim.", config.optim),
    ]
    lines = [line for prefix, node in nodes for line in _ranges(prefix, node)]
    lines += [line for prefix, node in _sources("data.", config.data) for line in _choice(prefix, node)]
    return [*lines, *_run(config), *_data(config), *_train(config), *_optim(config.optim)]


def _sources(prefix: str, data: DataConfig) -> Iterator[tuple[str, DataConfig]]:
    """The settings of a source, and of those inside it."""
    yield prefix, data
    for field in dataclasses.fields(data):
        inner = getattr(data, field.name)
        for key, source in inner.items() if isinstance(inner, dict) else ():
            if isinstance(source, DataConfig):
                yield from _sources(f"{prefix}{field.name}.{key}.", source)


def _ranges(prefix: str, node: Any) -> Iterator[str]:
    for kind, least in _AT_LEAST.items():
        for name, low in least.items() if isinstance(node, kind) else ():
            value = getattr(node, name)
            if value is not None and not low <= value < math.inf:
                yield f"{prefix}{name}: {show(value)} is out of range; give a finite number of at least {low}"
    for kind, names in _ABOVE_ZERO.items():
        for name in names if isinstance(node, kind) else ():
            value = getattr(node, name)
            amount = value.value if isinstance(value, Duration) else value
            if amount is not None and not 0 < amount < math.inf:
                yield f"{prefix}{name}: {value} is out of range; give more than 0, or leave it out"


def _run(config: RunConfig) -> Iterator[str]:
    if not config.name.strip() or config.name in (".", "..") or any(mark in config.name for mark in "/\\"):
        yield f"name: {config.name!r} is no name of a folder; leave out slashes, and put folders into storage"
    if not config.storage.strip():
        yield "storage: '' is no folder; give one, such as ./runs, or a URI"
    for key in config.benchmarks:
        if "." in key:
            yield f"benchmarks: {key!r} has a dot, which separates keys; call it {key.replace('.', '_')!r}"


def _choice(prefix: str, data: DataConfig) -> Iterator[str]:
    if data.balanced and data.limit is None:
        yield f"{prefix}balanced: it shares out {prefix}limit images over the classes; give {prefix}limit= too"
    if data.subset_by is not None and data.subset is None:
        yield f"{prefix}subset_by: it says what {prefix}subset lists; give {prefix}subset= too"


def _data(config: RunConfig) -> Iterator[str]:
    data, batch_size = config.data, config.train.batch_size
    if data.eval_resize is not None and data.eval_resize < data.image_size:
        yield f"data.eval_resize: {data.eval_resize} leaves no room to crop data.image_size {data.image_size}; raise it"
    if not all(0 < std < math.inf for std in data.std):
        yield f"data.std: {show(list(data.std))} is out of range; every channel's must be above 0"
    if not all(math.isfinite(mean) for mean in data.mean):
        yield f"data.mean: {show(list(data.mean))} is out of range; every channel's must be finite"
    if not 0 <= data.max_corrupt <= 1:
        yield f"data.max_corrupt: {show(data.max_corrupt)} is out of range; it is a share of the images, in [0, 1]"
    if data.lanes is not None and data.lanes > batch_size >= 1:
        yield f"data.lanes: {data.lanes} lanes do not fit train.batch_size {batch_size}; set {batch_size} or fewer"


def _train(config: RunConfig) -> Iterator[str]:
    for metric, (low, high) in config.train.expect.items():
        if not low <= high:
            yield f"train.expect.{metric}: [{show(low)}, {show(high)}] holds no number; write [low, high]"


def _optim(optim: OptimConfig) -> Iterator[str]:
    if not 0 <= optim.final_lr <= 1:
        yield f"optim.final_lr: {show(optim.final_lr)} is out of range; it is a share of the peak, in [0, 1]"
    if optim.warmup.unit == "%" and optim.warmup.value > 100:
        yield f"optim.warmup: {optim.warmup} is longer than the run; give at most 100%"
