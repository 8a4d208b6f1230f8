"""From a name and `key=value` arguments to a `RunConfig`, by way of base files, overrides and interpolation."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from raysl.config.arguments import text_or_path, words
from raysl.config.build import from_dict
from raysl.config.docs import describe
from raysl.config.fields import expanded_locations, filled
from raysl.config.files import base_names, files_of
from raysl.config.layers import COMPONENTS, NODES, Layers
from raysl.config.replaced import replacements
from raysl.config.schema import RunConfig
from raysl.config.sizes import linked
from raysl.config.text import read
from raysl.config.tree import differences, dump, to_dict
from raysl.errors import ConfigError

log = logging.getLogger("raysl")

__all__ = ["describe", "differences", "dump", "from_dict", "load_config", "to_dict"]


def load_config(name_or_path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration of a packaged name (`simclr`, `data/cifar10`) or a YAML file, with settings changed.

    Args:
        name_or_path: a packaged name, or a path that ends in .yaml. Its `base:` files lie below it.
        overrides: `key=value` with a dotted key and a YAML value: `optim.lr=1e-3`, `train.expect={top1: [0.6, 1]}`.
            `method=byol` picks a component, `benchmarks=[knn]` keeps only those named, `benchmarks=[]` none, and
            `base=data/cifar10` lays another configuration between the file and the other overrides. What a component
            that is replaced leaves behind is told of.

    Raises:
        ConfigError: a line for each thing that is wrong, with the key, the value, the rule and the next step.
    """
    name_or_path = text_or_path(name_or_path, "name_or_path", "quickstart")
    overrides = words(overrides, "overrides", "optim.lr=0.1")
    selections = [override for override in overrides if re.match(r"benchmarks=\s*(\[|\{\s*\}\s*$)", override)]
    changes = parse_overrides([override for override in overrides if override not in selections])
    files = files_of(name_or_path)
    main = files[-1].path
    for base in base_names(changes.pop("base", None), "overrides"):
        files += [file for file in files_of(base) if file.path not in {f.path for f in files}]
    layers = Layers()
    for file in files:  # a run does not inherit another's name
        values = (
            file.values if file.path == main else {key: value for key, value in file.values.items() if key != "name"}
        )
        layers.lay(values, file.path.parent)
    layers.lay(parse_overrides(selections), Path.cwd())
    layers.lay(changes, Path.cwd())
    for text in replacements(layers):
        log.warning(text)
    tree = linked({"name": main.stem, **layers.pruned()})
    return from_dict(expanded_locations(RunConfig, _interpolated(tree)))


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    errors: list[str] = []
    for override in overrides:
        try:
            _set(tree, override)
        except ConfigError as error:
            errors.append(str(error))
    if errors:
        raise ConfigError("\n".join(errors))
    return tree


def _set(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.split(".")
    if not equals or not all(re.fullmatch(r"[^\s.]+", part) for part in parts):
        raise ConfigError(f"{override!r} is no setting; write key=value, such as optim.lr=0.1")
    value = read(text, override)
    if parts[0] in NODES and len(parts) == 1 and not isinstance(value, dict):
        if parts[0] not in COMPONENTS:
            raise ConfigError(f"{override}: {key} is a group of settings; set one of them, such as {key}.epochs=10")
        parts.append("name")
    elif parts == ["benchmarks"] and value is None:
        raise ConfigError(f"{override}: null changes nothing here; write benchmarks=[] to measure nothing")
    elif isinstance(value, str) and parts[:-1] in (["benchmarks"], ["data", "sources"]):
        parts.append("name")
    node = tree
    for part in parts[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise ConfigError(f"{override}: another override gives a part of {key} a value; take one of the two out")
    below = node.get(parts[-1])
    node[parts[-1]] = {**below, **value} if isinstance(below, dict) and isinstance(value, dict) else value


def _interpolated(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree with `${key}` replaced; keys that nobody set have their defaults there."""
    if "${" not in repr(tree):
        return tree
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(filled(RunConfig, tree)), resolve=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "interpolation"
        cause = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"{key}: {cause}; ${{...}} takes a dotted key of the tree, an environment variable is $NAME, "
            "and \\${ is a plain ${"
        ) from error
    assert isinstance(resolved, dict)
    return _only(resolved, tree)


def _only(resolved: dict[Any, Any], tree: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _only(resolved[key], value)
        if isinstance(value, dict) and isinstance(resolved[key], dict)
        else resolved[key]
        for key, value in tree.items()
    }
