"""The settings that exist: fields of the schema and of the components in a tree, and synonyms for suggestions."""

import dataclasses
import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin

from raysl.components import resolve
from raysl.config.component import type_hints
from raysl.config.dump import Keys, plain
from raysl.config.ranges import bare
from raysl.config.schema import (
    BackboneConfig,
    BenchmarkConfig,
    CallbackConfig,
    ComponentConfig,
    DataConfig,
    MethodConfig,
    OptimConfig,
)
from raysl.errors import ConfigError
from raysl.schedule import Duration

SLOTS: dict[type[ComponentConfig], str] = {
    MethodConfig: "method",
    BackboneConfig: "backbone",
    DataConfig: "source",
    OptimConfig: "optimizer",
    BenchmarkConfig: "benchmark",
    CallbackConfig: "callback",
}
NAMED_BY_KEY = (BenchmarkConfig, CallbackConfig)
"""Nodes that occur several times, each with a key, which is also the default of its name."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """One field of a node.

    Args:
        kind: annotation with its rules.
        default: default value, or `MISSING`.
        group: dataclass of a group of settings, see `find_group`.
        entry: dataclass of each value, where a field holds a dict of groups.
    """

    name: str
    kind: Any
    default: Any
    group: type[Any] | None
    entry: type[Any] | None


def list_settings(kind: Any, default: Any = None) -> Mapping[str, Setting]:
    """Return the settings of a dataclass by name; the instance `default`, if given, provides their defaults."""
    settings = _settings_of(kind)
    if default is None:
        return settings
    return {name: replace(setting, default=getattr(default, name)) for name, setting in settings.items()}


@cache
def _settings_of(kind: Any) -> dict[str, Setting]:
    hints, settings = type_hints(kind), {}
    for field in dataclasses.fields(kind):
        if field.init:
            value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            hint = hints[field.name]
            entry = find_group(get_args(bare(hint))[1]) if get_origin(bare(hint)) is dict else None
            settings[field.name] = Setting(field.name, hint, value, find_group(hint), entry)
    return settings


def component_class(base: type[ComponentConfig], name: str) -> type[ComponentConfig]:
    """Return the `Config` of the component that a name selects for nodes of the class `base`."""
    slot = SLOTS[base]
    owner = resolve(slot, name)
    config = getattr(owner, "Config", None)
    if not (isinstance(config, type) and issubclass(config, base) and dataclasses.is_dataclass(config)):
        raise ConfigError(
            f"{slot} {name!r}: {owner.__name__} has no settings; nest a frozen dataclass Config({base.__name__}) in it"
        )
    return config


def find_group(kind: Any) -> type[Any] | None:
    """Return the dataclass in an annotation, also in `X | None`; None if it is not a group of settings."""
    kind = bare(kind)
    if get_origin(kind) in (Union, UnionType):
        return next((group for member in get_args(kind) if (group := find_group(member)) is not None), None)
    return kind if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind is not Duration else None


def settings_in(kind: type[Any], tree: Any, keys: Keys = (), default: Any = None) -> Iterator[tuple[Keys, Setting]]:
    """Yield every setting that a plain tree has or could have, with its keys, depth first.

    Args:
        kind: the dataclass of the tree; for a component, the class that the node's name selects is used.
        tree: plain settings, valid or not.
        keys: keys of the tree itself.
    """
    tree = tree if isinstance(tree, dict) else {}
    kind = _chosen(kind, tree, keys)
    is_default = isinstance(default, kind)
    for setting in list_settings(type(default) if is_default else kind, default if is_default else None).values():
        inner, value, group = (*keys, setting.name), tree.get(setting.name), setting.group
        if group is not None and (isinstance(value, dict) or setting.default is not None):
            yield from settings_in(group, value, inner, setting.default if isinstance(setting.default, group) else None)
            continue
        yield inner, setting
        if setting.entry is not None and isinstance(value, dict):
            for name, node in value.items():
                yield from settings_in(setting.entry, node, (*inner, str(name)))


def fill_defaults(kind: type[Any], tree: dict[str, Any]) -> dict[str, Any]:
    """Write every default into the tree."""
    for keys, setting in settings_in(kind, tree):
        above = find(tree, keys[:-1], {})
        if setting.default is not dataclasses.MISSING and isinstance(above, dict) and setting.name not in above:
            tree = put(tree, keys, plain(setting.default))
    return tree


def find(tree: Any, keys: Keys, default: Any = None) -> Any:
    """Return the value of a plain tree at some keys.

    >>> find({"optim": {"lr": 0.3}}, ("optim", "lr"))
    0.3
    """
    for key in keys:
        if not isinstance(tree, dict) or key not in tree:
            return default
        tree = tree[key]
    return tree


def put(tree: dict[str, Any], keys: Keys, value: Any) -> dict[str, Any]:
    """Return a copy of the tree with a value set; unchanged if another value than a group is on the way."""
    key, *rest = keys
    below = tree.get(key, {})
    if rest and not isinstance(below, dict):
        return tree
    return {**tree, key: put(below, tuple(rest), value) if rest else value}


def _chosen(kind: type[Any], tree: dict[str, Any], keys: Keys) -> type[Any]:
    """Return the class of a node: for a component the one that its name selects, if it is known."""
    if kind not in SLOTS:
        return kind
    name = tree.get("name", keys[-1] if kind in NAMED_BY_KEY and keys else None)
    try:
        return component_class(kind, name) if isinstance(name, str) and "${" not in name else kind
    except ConfigError:
        return kind


_WORDS: dict[str, str] = {
    "backbone.name": "model arch architecture network encoder",
    "batch_size": "batch batchsize bs global_batch_size per_device_batch_size",
    "blur_p": "blur gaussian_blur",
    "checkpoint_every": "save_every save_freq save_interval checkpoint_interval checkpoint_freq ckpt_every",
    "clip_grad": "clip grad_clip gradient_clip clip_norm clip_grad_norm max_grad_norm gradient_clip_val max_norm",
    "classes": "class_names labels",
    "data.name": "dataset source",
    "depth": "layers num_layers",
    "device": "accelerator cuda gpu",
    "epochs": "epoch num_epochs max_epochs n_epochs",
    "final_lr": "min_lr end_lr lr_min eta_min lr_end",
    "flip": "flip_p hflip horizontal_flip",
    "grayscale_p": "grayscale gray grey",
    "image_size": "img_size imgsize input_size resolution crop_size image_dim res",
    "jitter_strength": "jitter color_jitter colour_jitter color_strength strength",
    "k": "neighbours neighbors n_neighbours n_neighbors num_neighbours num_neighbors knn_k",
    "keep_checkpoints": "keep max_checkpoints save_top_k num_checkpoints",
    "limit": "max_samples num_samples subset_size num_images max_images",
    "log_every": "log_interval log_freq print_freq log_every_n_steps",
    "lr": "learning_rate learningrate base_lr lr_base max_lr peak_lr alpha eta",
    "max_failures": "max_restarts retries max_retries restarts",
    "method.name": "loss algorithm ssl",
    "momentum": "beta mu",
    "optim.name": "optimizer optimiser opt",
    "output_dim": "embedding_dim proj_dim projection_dim out_dim dim z_dim",
    "path": "dir folder data_dir data_path root location",
    "precision": "amp mixed_precision fp16 bf16 fp32 half dtype",
    "buffer_gb": "prefetch prefetch_factor prefetch_batches",
    "schedule": "scheduler lr_schedule lr_scheduler sched",
    "seed": "random_seed random_state rng",
    "std": "stds sigma normalize_std",
    "mean": "means normalize_mean",
    "channels": "input_type color_space colour_space color_mode",
    "storage": "output out output_dir out_dir save_dir log_dir run_dir exp_dir results",
    "sync_bn": "syncbn sync_batchnorm sync_batch_norm",
    "temperature": "temp tau t",
    "threads": "num_threads n_threads cpus",
    "warmup": "warmup_epochs warmup_steps warm_up warmup_ratio",
    "weight_decay": "wd decay l2 weightdecay regularization",
    "width": "channels base_width wide dim embed_dim",
    "workers": "num_workers n_workers gpus num_gpus n_gpus ngpus devices num_devices world_size nproc nproc_per_node",
}
SYNONYMS: dict[str, list[str]] = {}
"""Settings by the words that other libraries use for them."""
for _setting, _others in _WORDS.items():
    for _word in _others.split():
        SYNONYMS.setdefault(_word, []).append(_setting)


def suggest(key: str, known: Sequence[str]) -> list[str]:
    """Suggest up to three settings that the user may have meant, by the same name or meaning, or a similar name.

    >>> suggest("optim.learning_rate", ["optim.lr", "train.epochs"])
    ['optim.lr']
    """
    group, _, name = key.rpartition(".")
    last = {setting: setting.rpartition(".")[2] for setting in known}
    same = [setting for setting in known if last[setting] == name]
    if same:
        return difflib.get_close_matches(key, same, n=1, cutoff=0.8) or same[:3]
    wanted = SYNONYMS.get(name.lower().replace("-", "_"), ())
    if meant := [setting for setting in known if last[setting] in wanted or setting in wanted]:
        beside = [setting for setting in meant if setting.rpartition(".")[0] == group]
        return (beside or meant)[:3]
    if whole := difflib.get_close_matches(key, known, n=1, cutoff=0.8):
        return whole
    names = difflib.get_close_matches(name, set(last.values()), n=1, cutoff=0.7)
    return [setting for setting in known if last[setting] in names][:3]
