"""Configurations as plain values and YAML, for checkpoints and messages, and their comparison."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from raysl.config.schema import RunConfig, is_may_change
from raysl.redact import bare_tree, each_text, redact_tree
from raysl.schedule import Duration

Keys = tuple[str, ...]
"""The keys that lead to a setting in a tree."""
_UNSET = object()


def plain(value: Any) -> Any:
    """Return settings as dicts, lists and scalars; durations as text."""
    if isinstance(value, Duration):
        return str(value)
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Return the whole tree with defaults, in types of YAML and JSON; `from_dict` is the inverse."""
    tree = plain(config)
    assert isinstance(tree, dict)
    return tree


def escape(tree: Any) -> Any:
    """Escape each literal `${` in a plain tree, so that loading it as a file does not interpolate it.

    By the grammar of OmegaConf, backslashes before it are doubled and one more is added.

    >>> unescape(escape({"name": "${HOME}"}))
    {'name': '${HOME}'}
    """
    return each_text(tree, lambda text: re.sub(r"(\\*)\$\{", r"\1\1\\${", text))


def unescape(tree: Any) -> Any:
    """Undo `escape`."""
    return each_text(tree, lambda text: re.sub(r"(\\+)\$\{", lambda m: m[1][: len(m[1]) // 2] + "${", text))


def dump(config: RunConfig) -> str:
    """Write the whole tree as YAML; loading it gives an equal configuration, but credentials are `***`."""
    return write(escape(redact_tree(to_dict(config))))


def dump_all(configs: Mapping[str, RunConfig], key: str) -> str:
    """Write several configurations by name below one key, as `dump` does."""
    return write({key: {name: escape(redact_tree(to_dict(config))) for name, config in configs.items()}})


def differences(old: RunConfig | Mapping[str, Any], new: RunConfig | Mapping[str, Any]) -> list[str]:
    """Return lines such as `optim.lr: 0.3 -> 0.6` for settings that must not change when a run is started again.

    Credentials are ignored. A dict comes from `to_dict`, perhaps of another version. At least one side must be a
    `RunConfig`, which knows what may change.
    """
    configs = [side for side in (old, new) if isinstance(side, RunConfig)]
    if not configs:
        raise TypeError("one of the two must be a RunConfig: a dict does not say which settings may change")
    free = {path for config in configs for path in _may_change(config)}
    before, after = (dict(leaves(plain(side))) for side in (old, new))
    lines = []
    for path in [*before, *(path for path in after if path not in before)]:
        is_free = any(path[:length] in free for length in range(1, len(path) + 1))
        if not is_free and bare_tree(before.get(path, _UNSET)) != bare_tree(after.get(path, _UNSET)):
            lines.append(f"{'.'.join(path)}: {_show(before, path)} -> {_show(after, path)}")
    return lines


def leaves(tree: Mapping[str, Any], above: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Yield the keys and values of a tree, depth first; an empty group is a value.

    >>> list(leaves({"optim": {"lr": 0.3}, "seed": 0}))
    [(('optim', 'lr'), 0.3), (('seed',), 0)]
    """
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*above, key))
        else:
            yield (*above, key), value


def write(tree: Any) -> str:
    """Write a plain tree as YAML, in its order; `config_files.read` is the inverse if any `${` is escaped."""
    return str(yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100))


def write_inline(value: Any) -> str:
    """Write a plain value as YAML on one line.

    >>> write_inline({"size": [32, 64]})
    '{size: [32, 64]}'
    """
    style = '"' if isinstance(value, str) and not value.isprintable() else None
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 2**31}
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, default_style=style, **options)
    # PyYAML ends a single value with the mark of a document's end
    return str(text).removesuffix("...\n").strip("\n")


def show(value: Any) -> str:
    """Return a value as messages quote it: text in quotes, everything else as YAML, or as Python where it has none."""
    if isinstance(value, str):
        return repr(value)
    try:
        return write_inline(plain(value))
    except yaml.representer.RepresenterError:
        return repr(value)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        is_broken = any(mark in data for mark in "\x85\u2028\u2029")  # line breaks that survive only in quotes
        return self.represent_scalar("tag:yaml.org,2002:str", data, style='"' if is_broken else None)


_Dumper.add_representer(str, _Dumper.represent_str)
_Dumper.add_implicit_resolver(  # OmegaConf reads these as numbers, PyYAML does not: texts like them need quotes
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d[\d_]*\.?[\d_]*[eE][-+]?\d+$"), list("-+0123456789")
)


def _may_change(config: Any, path: Keys = ()) -> Iterator[Keys]:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if is_may_change(field.metadata):
            yield (*path, field.name)
        elif dataclasses.is_dataclass(value) and not isinstance(value, Duration):
            yield from _may_change(value, (*path, field.name))


def _show(settings: dict[Keys, Any], path: Keys) -> str:
    return write_inline(redact_tree(settings[path])) if path in settings else "unset"
