"""The benchmarks and images of a command: a run's settings with changes."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from raysl.components import ALIASES, resolve
from raysl.config.build import build_node, from_dict
from raysl.config.config_files import read
from raysl.config.dump import plain, to_dict
from raysl.config.layers import Layers, parse_overrides
from raysl.config.load import apply_overrides
from raysl.config.places import is_place, source_at
from raysl.config.schema import BenchmarkConfig, ClusterConfig, DataConfig, RunConfig, is_may_change
from raysl.errors import ConfigError, Problems
from raysl.redact import bare_tree

if TYPE_CHECKING:
    from raysl.benchmarks.benchmark import Needs
    from raysl.benchmarks.suite.suites import Suite

OF_THE_NETWORK = ("image_size", "eval_resize", "eval_interpolation", "mean", "std", "channels", "value_range")
"""Settings of images that a backbone expects to stay."""
DEFAULTS = ("knn", "low_shot")
"""Benchmarks of a run that names none."""
_TABLE_WIDTH = 100
_LABELS = {"one": "a label on every image", "any": "labels, one or several an image", "none": "no labels"}


def sort_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Return the settings of the images, those of the cluster, and all others.

    >>> sort_overrides(["knn.k=[5]", "data=digits", "cluster.max_gpus=8"])
    (['data=digits'], ['cluster.max_gpus=8'], ['knn.k=[5]'])
    """
    of_images = [word for word in overrides if word.startswith(("data=", "data."))]
    of_cluster = [word for word in overrides if word.startswith("cluster.")]
    return of_images, of_cluster, [word for word in overrides if word not in (*of_images, *of_cluster)]


def load_benchmarks(
    config: RunConfig, names: Sequence[str] | None, overrides: Sequence[str] = (), suites: "Sequence[Suite]" = ()
) -> dict[str, BenchmarkConfig]:
    """Return the settings of benchmarks on a run's checkpoint.

    Args:
        names: benchmarks to take, which are then required; one of a file, `mine.py:Mine`, goes by its class there.
            Default: those of the run, or, where it has none, `DEFAULTS`, of which none is.
        overrides: `knn.k=[20,200]`.
        suites: suites whose parts are taken beside `names`, none of them required.
    """
    for suite in suites:
        overrides = [word for override in overrides for word in suite.expand(override)]
    if names:
        files = {name.rpartition(":")[2]: name for name in names if ":" in name}
        overrides = [*(f"{key}={json.dumps({'name': name})}" for key, name in files.items()), *overrides]
        chosen = _named(config, [name for name in names if ":" not in name], required=True)
    elif suites:
        chosen = {}
    else:
        chosen = dict(config.benchmarks) or _named(config, DEFAULTS, required=False)
    config = replace(config, benchmarks=chosen)
    parts = {key: {**settings, "required": False} for suite in suites for key, settings in suite.settings.items()}
    if parts:
        tree = to_dict(config)
        config = from_dict({**tree, "benchmarks": tree["benchmarks"] | parts})
    for override in overrides:
        key, _, text = override.partition("=")
        if "." not in key and not isinstance(read(text, override), str | dict):  # these name a benchmark, or set one
            ways = " or ".join(f"{name}.{override}" for name in config.benchmarks)
            raise ConfigError(f"{override!r}: of which benchmark? write {ways}")
    if overrides:
        config = apply_overrides(config, [f"benchmarks.{override}" for override in overrides])
    return {key: replace(one, required=one.required and key not in parts) for key, one in config.benchmarks.items()}


def _named(config: RunConfig, names: Sequence[str], required: bool) -> dict[str, BenchmarkConfig]:
    """Return the settings that a run has for benchmarks, or the default ones."""
    problems, chosen = Problems(), dict[str, BenchmarkConfig]()
    for name in names:
        with problems.catching():
            settings = config.benchmarks.get(name) or build_node(BenchmarkConfig, {}, f"benchmarks.{name}")
            chosen[name] = replace(settings, required=required)
    problems.check()
    return chosen


def load_data(config: RunConfig, overrides: Sequence[str]) -> DataConfig:
    """Return the settings of the images that a checkpoint is measured on: the run's, with changes.

    Another source (`data=parquet`) keeps only the run's settings that its backbone expects of an image: size, channels
    and normalisation.
    """
    if not overrides:
        return config.data
    layers = Layers()
    tree, changes = to_dict(config), parse_overrides(overrides)
    if "name" in changes.get("data", {}):
        tree["data"] = {key: tree["data"][key] for key in OF_THE_NETWORK}
    layers.lay(tree, Path.cwd())
    layers.lay(changes, Path.cwd())
    return from_dict(layers.values).data


def load_cluster(config: RunConfig, overrides: Sequence[str]) -> ClusterConfig:
    """Return the settings about the cluster that a checkpoint is measured on: the run's, with changes."""
    return apply_overrides(config, overrides).cluster if overrides else config.cluster


def other_data(run_data: DataConfig, settings: str | Mapping[str, Any]) -> DataConfig:
    """Return the settings of other images, with what a run's backbone expects of an image.

    Args:
        settings: a dataset of the catalog or a source by its name, a path or URI of images, or settings.
    """
    if isinstance(settings, str) and settings not in ALIASES["source"] and is_place(settings):
        settings = source_at(settings)
    elif isinstance(settings, str):
        settings = {"name": settings} if settings in ALIASES["source"] else {"name": "catalog", "dataset": settings}
    tree = plain(run_data)
    return build_node(DataConfig, {**{key: tree[key] for key in OF_THE_NETWORK}, **settings}, "data")


def dataset_tag(data: DataConfig, run_data: DataConfig) -> str:
    """Return a tag for files on images that are not the run's own; empty for the run's."""
    tree = bare_tree(_lasting(data))
    if tree == bare_tree(_lasting(run_data)):
        return ""
    digest = hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9_]+', '-', data.name)}-{digest[:6]}"


def _lasting(data: DataConfig) -> dict[str, Any]:
    """Return the settings that choose images."""
    tree: dict[str, Any] = plain(data)
    return {one.name: tree[one.name] for one in fields(data) if one.init and not is_may_change(one.metadata)}


def benchmark_table() -> str:
    """Return a paragraph for each benchmark with its protocol, needs and cost, as `raysl benchmark --list` shows it."""
    names = sorted(ALIASES["benchmark"])
    column = max(map(len, names)) + 2
    parts = []
    for name in names:
        kind = resolve("benchmark", name)
        lines = [kind.protocol, f"Needs {_describe_needs(kind.needs(kind.Config(name=name)))}.", f"Cost: {kind.cost}."]
        body = "\n".join(fill(line, _TABLE_WIDTH - column) for line in lines)
        indented = body.replace("\n", "\n" + " " * column)
        parts.append(f"{name:<{column}}{indented}")
    return "\n\n".join(parts)


def _describe_needs(needs: "Needs") -> str:
    if needs.own_images:
        return "images of its own, which its settings name"
    return f"{_LABELS[needs.labels]}{' and held-out images' if needs.test else ''}"
