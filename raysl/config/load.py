"""From a name and `key=value` arguments to a `RunConfig`, by way of base files, overrides and interpolation."""

import dataclasses
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from raysl.components import ALIASES, only_own_components
from raysl.config.arguments import text_or_path, words
from raysl.config.build import from_dict, node_of
from raysl.config.dump import escape, to_dict, unescape
from raysl.config.fields import filled, find, put, settings_in
from raysl.config.files import base_names, expanded, files_of, packaged_folder, read
from raysl.config.former import is_stored, with_former
from raysl.config.layers import Layers, parse_overrides
from raysl.config.locations import with_places
from raysl.config.ranges import is_location
from raysl.config.schema import ComponentConfig, RunConfig
from raysl.config.sizes import followed, linked
from raysl.config.view_presets import with_preset, without_preset
from raysl.errors import ConfigError

NodeT = TypeVar("NodeT")
log = logging.getLogger("raysl")


def load_config(name_or_path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration of a packaged name (`simclr`, `data/cifar10`) or a YAML file, with settings changed.

    Args:
        name_or_path: a packaged name, or a path that ends in .yaml. Its `base:` files lie below it. The `run.yaml` of
            an older run has the values that the run had of settings that came later (`raysl.config.former`).
        overrides: `key=value` with a dotted key and a YAML value: `optim.lr=1e-3`, `train.expect={top1: [0.6, 1]}`.
            `method=byol` picks a component, `benchmarks=[knn]` keeps only those named, `benchmarks=[]` none, likewise
            `callbacks`, and `base=data/cifar10` lays another configuration between the file and the other overrides. A
            component in the place of another starts from its own defaults; what was set for that one is told of.

    Raises:
        ConfigError: a line for each thing that is wrong, with the key, the value, the rule and the next step.
    """
    name_or_path = text_or_path(name_or_path, "name_or_path", "quickstart")
    overrides = words(overrides, "overrides", "optim.lr=0.1")
    selections = [
        override for override in overrides if re.match(r"(benchmarks|callbacks)=\s*(\[|\{\s*\}\s*$)", override)
    ]
    changes = parse_overrides([override for override in overrides if override not in selections])
    files = files_of(name_or_path)
    main = files[-1].path
    for base in base_names(changes.pop("base", None), "overrides"):
        files += [file for file in files_of(base) if file.path not in {f.path for f in files}]
    layers, num_ours = Layers(), 0
    for file in files:  # a run does not inherit another's name
        values = with_former(file.values) if is_stored(file.values) else file.values
        if is_stored(values) and "views" in changes:
            values = without_preset(values)
        layers.lay({k: v for k, v in values.items() if k != "name" or file.path == main}, file.path.parent)
        if file.path.is_relative_to(packaged_folder()):  # what raysl's own files replace is no news to anybody
            num_ours = len(layers.replaced)
    layers.lay(parse_overrides(selections), Path.cwd())
    layers.lay(changes, Path.cwd())
    tree = linked({"name": main.stem, **layers.values}, layers.size_of_views)
    for line in layers.dropped(tree, num_ours):
        log.warning(line)
    return from_dict(_expanded(RunConfig, _interpolated(with_preset(tree))))


def apply_overrides(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """Settings with some of them changed by `key=value`, as on the command line.

    Raises:
        ConfigError: if a key or a value is wrong.
    """
    tree, changes, layers = escape(to_dict(config)), parse_overrides(overrides), Layers()
    layers.lay(without_preset(tree) if "views" in changes else tree, Path.cwd())
    layers.lay(followed(tree, changes), Path.cwd())
    return from_dict(_interpolated(with_preset(linked(layers.values))))


def node_from_dict(kind: type[NodeT], tree: Any, key: str) -> NodeT:
    """One node of the tree, for settings that do not stand in a run's configuration.

    Args:
        kind: the class of the node, such as `DataConfig`.
        tree: its plain settings.
        key: its place, for messages.

    Raises:
        ConfigError: as `from_dict`.
    """
    return node_of(kind, _expanded(kind, tree, (key,)) if isinstance(tree, dict) else tree, key)


def load_dumped(
    text: str, where: str = "run.yaml", trust_code: bool = False, trusted: Collection[str] = ()
) -> RunConfig:
    """The settings that `dump` wrote, without callbacks that are not raysl's: nobody needs them any more, and their
    files may be gone.

    Args:
        text: what it wrote.
        where: the file that it stands in, for messages.
        trust_code: whether the components that it names may be code that is not raysl's, which is then imported.
        trusted: names of such components that may be imported in any case.

    Raises:
        ConfigError: if the text is something else, or names code that is not trusted.
    """
    tree = stored_tree(text, where)
    if isinstance(callbacks := tree.get("callbacks"), dict):
        own = {key: node for key, node in callbacks.items() if find(node, ("name",), key) in ALIASES["callback"]}
        tree = {**tree, "callbacks": own}
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
        return stored_tree(text, where)


def stored_tree(text: str, where: str) -> dict[str, Any]:
    """The settings that an earlier start wrote, as the plain tree that they are; no code that they name is imported.

    Settings that its version did not have are there with their former values (`raysl.config.former`).

    Raises:
        ConfigError: if the text holds no settings.
    """
    tree = read(text, where)
    if not isinstance(tree, dict):
        raise ConfigError(f"{where} holds no settings; it was damaged, or is not what raysl wrote")
    return with_former(unescape(tree))


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


def _expanded(kind: type[Any], tree: dict[str, Any], place: tuple[str, ...] = ()) -> dict[str, Any]:
    """The tree with `~` and environment variables expanded in its paths."""
    done, errors = tree, []
    for keys, setting in settings_in(kind, tree, place):
        inner = keys[len(place) :]
        given = find(tree, inner)
        if given is None or not is_location(setting.kind):
            continue
        try:
            done = put(done, inner, with_places(given, expanded))
        except ConfigError as error:
            errors.append(f"{'.'.join(keys)}: {error}")
    if errors:
        raise ConfigError("\n".join(errors))
    return done


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
    return {str(key): value for key, value in resolved.items()}
