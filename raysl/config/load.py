"""Loading a `RunConfig` from a name and `key=value` arguments: base files, overrides and interpolation."""

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from raysl.components import ALIASES, only_own_components
from raysl.config.arguments import text_or_path, words
from raysl.config.build import build_node, from_dict
from raysl.config.component import map_locations
from raysl.config.config_files import NoSuchConfig, base_names, expand, load_files, packaged_folder, read, run_name
from raysl.config.dump import escape, to_dict, unescape
from raysl.config.fields import fill_defaults, find, put, settings_in
from raysl.config.initial_weights import WEIGHTS, refuse_published, with_run_of_weights, with_their_backbone
from raysl.config.layers import COMPONENTS, Layers, keep_texts, merge, parse_overrides, to_node
from raysl.config.linked import ADAPT, adaptable_keys, follow_channels, follow_sizes, link_channels, link_sizes
from raysl.config.ranges import is_location
from raysl.config.schema import RunConfig
from raysl.config.trust import check_overrides, check_text, without_trust
from raysl.config.view_presets import apply_preset, remove_preset
from raysl.errors import ConfigError, Problems, StorageError, log
from raysl.process.screen import only_errors
from raysl.redact import each_text, texts_in
from raysl.user_files import renamed

NodeT = TypeVar("NodeT")
ConfigT = TypeVar("ConfigT")


def load_config(
    name_or_path: str | Path,
    overrides: Sequence[str] = (),
    convert: Callable[[str, str], str] | None = None,
) -> RunConfig:
    """Load a packaged configuration (`simclr`, `data/cifar10`) or a YAML file, with settings changed.

    Args:
        name_or_path: a packaged name, or a path that ends in .yaml. Its `base:` files are lower layers.
        overrides: `key=value` with a dotted key and a YAML value: `optim.lr=1e-3`, `train.expect={top1: [0.6, 1]}`.
            `method=byol` selects a component, `benchmarks=[knn]` keeps only these, `benchmarks=[]` none, likewise
            `callbacks`, and `base=data/cifar10` adds another configuration between the file and the other overrides. A
            component that replaces another starts from its defaults; a warning lists what changes by that.
        convert: function from `method.weights` and `storage` to a run of raysl with these weights; default: they stay
            as they are written.

    Raises:
        ConfigError: a line for each error, with the key, the value, the rule and the next step.

    >>> load_config("quickstart", ["optim.lr=0.5"]).optim.lr
    0.5
    """
    name_or_path = text_or_path(name_or_path, "name_or_path", "quickstart")
    overrides = words(overrides, "overrides", "optim.lr=0.1")
    try:
        return load_with(partial(_load, name_or_path, convert=convert), overrides)
    except NoSuchConfig as error:
        problems = Problems()
        problems.errors.append(error)
        if error.near is not None:  # what else is wrong with the one that was probably meant; weights stay as they are
            with problems.catching(), only_errors():
                load_with(partial(_load, error.near), overrides)
        problems.check()
        raise


def load_with(load: Callable[[Sequence[str]], ConfigT], overrides: Sequence[str]) -> ConfigT:
    """Return what `load` makes of overrides; if that fails, find what else is wrong by leaving out what was blamed."""
    try:
        return load(overrides)
    except StorageError:
        raise
    except ConfigError as error:
        first = error
    lines, kept = str(first).splitlines(), overrides
    while 0 < len(rest := [word for word in kept if not _is_blamed(word, lines)]) < len(kept):
        kept = rest
        keys = {word.partition("=")[0] for word in overrides if word not in kept} - {""}
        try:
            with only_errors():
                load(kept)
            break
        except ConfigError as error:
            # lines that may only be there because an override was left out tell of no further error
            more = [line for line in str(error).splitlines() if line not in lines]
            lines += [line for line in more if not any(_follows(line, key) for key in keys)]
    if lines == str(first).splitlines():
        raise first
    raise ConfigError("\n".join(lines)) from first


def _is_blamed(word: str, lines: Sequence[str]) -> bool:
    """Whether a message begins with an override's key or a key below it, or quotes the override."""
    key, _, value = word.partition("=")
    begins = {line.partition(": ")[0] for line in lines}
    if key in COMPONENTS and "{" not in value:  # a name is right where a setting of that component is wrong
        is_named = not begins.isdisjoint((key, f"{key}.name"))
    else:  # settings of an unknown component are wrong with its name
        is_named = f"{key.partition('.')[0]}.name" in begins or any(f"{b}.".startswith(f"{key}.") for b in begins)
    return is_named or word in begins or any(repr(word) in line for line in lines)


def _follows(line: str, key: str) -> bool:
    """Whether a message may be there only because the setting of this key was left out."""
    if key in COMPONENTS:
        return line.startswith(f"{key}.") and ("no such setting" in line or "missing" in line)
    return re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", line) is not None


def _load(name_or_path: str, overrides: Sequence[str], convert: Callable[[str, str], str] | None = None) -> RunConfig:
    selections = [
        override for override in overrides if re.match(r"(benchmarks|callbacks)=\s*(\[|\{\s*\}\s*$)", override)
    ]
    changes = parse_overrides([override for override in overrides if override not in selections])
    files = load_files(name_or_path)
    main = files[-1].path
    for base in base_names(changes.pop("base", None), "overrides"):
        files += [file for file in load_files(base) if file.path not in {f.path for f in files}]
    layers, num_ours, written = Layers(), 0, list[tuple[dict[str, Any], bool]]()
    for file in files:  # a run does not inherit another's name
        values = file.values
        # a stored run holds every value of its preset, which would win over those of the new one
        if "views" in changes and _is_stored(values):
            values = remove_preset(values)
        is_ours = file.path.is_relative_to(packaged_folder())
        layers.lay({k: v for k, v in values.items() if k != "name" or file.path == main}, file.path.parent, is_ours)
        written.append((values, is_ours))
        if is_ours:  # replacements in raysl's files need no warning
            num_ours = len(layers.replaced)
    # lists of components choose among those of the files, so they come before other overrides
    layers.lay(parse_overrides(selections), Path.cwd())
    layers.lay(changes, Path.cwd())
    written.append((changes, False))
    tree = keep_texts({"name": run_name(main), **layers.values}, overrides)
    if convert is not None:
        storage = str(tree.get("storage", "./runs"))
        if "${" in storage:
            storage = str(_interpolate(tree)["storage"])
        tree = with_run_of_weights(tree, storage, convert)
    if not any(file.path == main and _is_stored(file.values) for file in files):
        typed: dict[str, Any] = {}
        for values in (values for values, is_ours in written if not is_ours):
            typed = merge(typed, to_node(values.get("backbone")) or {})
        tree = with_their_backbone(tree, typed)
    tree = link_sizes({**tree, ADAPT: adaptable_keys(tree, written)}, layers.size_of_views)
    config = from_dict(_expand_locations(RunConfig, _interpolate(link_channels(apply_preset(tree)))))
    for line in layers.dropped(tree, to_dict(config), num_ours):
        log.warning(line)
    return config


def apply_overrides(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """Change settings by `key=value`, as on the command line, except that `method.weights` takes runs of raysl alone.

    Another `method.weights` brings the backbone of that run, as when a configuration is loaded.

    Raises:
        ConfigError: a line for each error, with the key, the value, the rule and the next step.
    """
    tree, changes, layers = escape(to_dict(config)), parse_overrides(overrides), Layers()
    layers.lay(remove_preset(tree) if "views" in changes else tree, Path.cwd())
    layers.lay(follow_channels(tree, follow_sizes(tree, changes)), Path.cwd())
    changed = keep_texts(layers.values, overrides)
    if find(changed, WEIGHTS) != find(tree, WEIGHTS):
        changed = with_their_backbone(changed, to_node(changes.get("backbone")) or {})
    changed[ADAPT] = adaptable_keys(changed, [(tree, False), (changes, False)])
    result = from_dict(_interpolate(link_channels(apply_preset(link_sizes(changed)))))
    if result.method.weights != config.method.weights:
        refuse_published(result.method.weights)
    return result


def node_from_dict(kind: type[NodeT], tree: Any, key: str) -> NodeT:
    """Build one node of the tree, for settings outside a run's configuration."""
    return build_node(kind, _expand_locations(kind, tree, (key,)) if isinstance(tree, dict) else tree, key)


def load_dumped(text: str, where: str = "run.yaml", trust_code: bool = False) -> RunConfig:
    """Load the settings that `dump` wrote, without users' callbacks: a finished run does not need their files.

    Args:
        trust_code: whether components that are not part of raysl may be imported, and settings followed that do more
            than read (`raysl.config.trust`).

    Raises:
        ConfigError: if the text is something else, or names code that is not trusted.
    """
    tree = stored_tree(text, where)
    if not trust_code:
        check_overrides(tree, where)
    config = _from_stored(tree, where, trust_code)
    return config if trust_code else without_trust(config, where)


def _from_stored(
    tree: dict[str, Any], where: str, trust_code: bool = False, trusted: Collection[str] = ()
) -> RunConfig:
    """Build the settings of a stored tree without users' callbacks."""
    if isinstance(callbacks := tree.get("callbacks"), dict):
        packaged = {key: node for key, node in callbacks.items() if find(node, ("name",), key) in ALIASES["callback"]}
        tree = {**tree, "callbacks": packaged}
    with nullcontext() if trust_code else only_own_components(where, trusted):
        return from_dict(tree)


def stored_settings(
    text: str, where: str, present: RunConfig, moved: Mapping[str, str] = {}
) -> RunConfig | Mapping[str, Any]:
    """Load the settings that an earlier start wrote, to compare them with the present ones.

    Only code that the present settings name too is imported. If that is not enough, or a setting does not exist, the
    plain tree is returned.

    Args:
        moved: present names of users' files by their names in the text.
    """
    tree: dict[str, Any] = each_text(stored_tree(text, where), partial(renamed, names=moved))
    try:
        return _from_stored(tree, where, trusted=set(texts_in(present)))
    except ConfigError:
        return tree


def stored_tree(text: str, where: str) -> dict[str, Any]:
    """Read the settings that an earlier start wrote as a plain tree, without importing code that they name.

    Raises:
        ConfigError: if the text has no settings, or YAML that `raysl.config.trust` refuses.
    """
    check_text(text, where)
    tree = read(text, where)
    if not isinstance(tree, dict):
        raise ConfigError(f"{where} has no settings; it is damaged, or raysl did not write it")
    stored: dict[str, Any] = unescape(tree)
    return stored


def _is_stored(tree: Mapping[str, Any]) -> bool:
    """Whether a file has all settings of a run, as a stored `run.yaml` does, and not only those of a recipe."""
    return set(tree) >= {field.name for field in dataclasses.fields(RunConfig)}


def _expand_locations(kind: type[Any], tree: dict[str, Any], above: tuple[str, ...] = ()) -> dict[str, Any]:
    """Expand `~` and environment variables in the paths of a tree."""
    expanded, errors = tree, []
    for keys, setting in settings_in(kind, tree, above):
        inner = keys[len(above) :]
        value = find(tree, inner)
        if value is None or not is_location(setting.kind):
            continue
        try:
            expanded = put(expanded, inner, map_locations(value, expand))
        except ConfigError as error:
            errors.append(f"{'.'.join(keys)}: {error}")
    if errors:
        raise ConfigError("\n".join(errors))
    return expanded


def _interpolate(tree: dict[str, Any]) -> dict[str, Any]:
    """Replace each `${key}` in the tree by that setting, or by its default if it is not set."""
    if "${" not in repr(tree):
        return tree
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(fill_defaults(RunConfig, tree)), resolve=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "interpolation"
        cause = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"{key}: {cause}; ${{...}} takes a dotted key of the tree, an environment variable is $NAME, "
            "and \\${ is a plain ${"
        ) from error
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}
