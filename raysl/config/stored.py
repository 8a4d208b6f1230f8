"""Settings that were written by raysl itself, read back."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from raysl.components import ALIASES, only_own_components
from raysl.config.build import from_dict
from raysl.config.layers import Layers
from raysl.config.load import parse_overrides
from raysl.config.schema import BenchmarkConfig, ComponentConfig, DataConfig, RunConfig, is_may_change
from raysl.config.sizes import followed
from raysl.config.text import read
from raysl.config.tree import plain, to_dict
from raysl.errors import ConfigError
from raysl.redact import bare_tree


def load_dumped(
    text: str, where: str = "run.yaml", trust_code: bool = False, trusted: Collection[str] = ()
) -> RunConfig:
    """The settings that `dump` wrote.

    Args:
        text: what it wrote.
        where: the file that it stands in, for messages.
        trust_code: whether the components that it names may be code that is not raysl's, which is then imported.
        trusted: names of such components that may be imported in any case.

    Raises:
        ConfigError: if the text is something else, or names code that is not trusted.
    """
    tree = _tree(text, where)
    with nullcontext() if trust_code else only_own_components(where, trusted):
        return from_dict(tree)


def stored_settings(text: str, where: str, present: RunConfig) -> RunConfig | Mapping[str, Any]:
    """The settings that an earlier start wrote, to compare with the present ones.

    No code is imported for it but what the present settings name too. Where that does not suffice, and where the text
    is of a version with other settings, they come as the plain tree that they are.

    Raises:
        ConfigError: if the text holds no settings.
    """
    try:
        return load_dumped(text, where, trusted=set(_names(present)))
    except ConfigError:
        return _tree(text, where)


def _tree(text: str, where: str) -> dict[str, Any]:
    tree = read(text, where)
    if not isinstance(tree, dict):
        raise ConfigError(f"{where} holds no settings; it was damaged, or is not what raysl wrote")
    return tree


def _names(value: Any) -> Iterator[str]:
    """Names of the components in a configuration."""
    if isinstance(value, ComponentConfig):
        yield value.name
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _names(getattr(value, field.name))
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _names(item)


def apply_overrides(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """Settings with some of them changed by `key=value`, as on the command line.

    Raises:
        ConfigError: if a key or a value is wrong.
    """
    layers = Layers()
    layers.lay(to_dict(config), Path.cwd())
    layers.lay(followed(to_dict(config), parse_overrides(overrides)), Path.cwd())
    return from_dict(layers.pruned())


def load_benchmarks(
    config: RunConfig, names: Sequence[str] | None, overrides: Sequence[str] = ()
) -> dict[str, BenchmarkConfig]:
    """Settings of benchmarks on a run's checkpoint.

    Args:
        config: the run's settings.
        names: benchmarks to take, which are then required; default: those of the run, or, where it has none, all that
            there are, of which none is.
        overrides: `knn.k=[20,200]`.

    Raises:
        ConfigError: if a name or a setting is wrong.
    """
    own = to_dict(config)["benchmarks"]
    if names:
        wanted = {name: {**own.get(name, {}), "required": True} for name in names}
    else:
        wanted = own or {name: {"required": False} for name in ALIASES["benchmark"]}
    for override in overrides:
        key, _, text = override.partition("=")
        if "." not in key and not isinstance(read(text, override), str | dict):  # which name a benchmark, or set one
            ways = " or ".join(f"{name}.{override}" for name in wanted)
            raise ConfigError(f"{override!r}: of which benchmark? write {ways}")
    settings = from_dict({**to_dict(config), "benchmarks": wanted})
    return apply_overrides(settings, [f"benchmarks.{override}" for override in overrides]).benchmarks


def load_data(config: RunConfig, overrides: Sequence[str]) -> DataConfig:
    """Settings of the images that a run's checkpoint is put to: its own, with some of them changed.

    Another source (`data=parquet`) keeps nothing of the run's but what its backbone expects of an image: size and
    normalisation.

    Raises:
        ConfigError: if a setting is wrong.
    """
    layers = Layers()
    tree, changes = to_dict(config), parse_overrides(overrides)
    if "name" in changes.get("data", {}):
        tree["data"] = {key: tree["data"][key] for key in ("image_size", "eval_resize", "mean", "std")}
    layers.lay(tree, Path.cwd())
    layers.lay(changes, Path.cwd())
    return from_dict(layers.pruned()).data


def dataset_tag(data: DataConfig, own: DataConfig) -> str:
    """A name for a folder or a file, of images that are not the run's own; empty for those."""
    tree = bare_tree(_lasting(data))
    if tree == bare_tree(_lasting(own)):
        return ""
    digest = hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9_]+', '-', data.name)}-{digest[:6]}"


def _lasting(data: DataConfig) -> dict[str, Any]:
    """The settings that say which images they are."""
    tree: dict[str, Any] = plain(data)
    return {
        field.name: tree[field.name]
        for field in dataclasses.fields(data)
        if field.init and not is_may_change(field.metadata)
    }
