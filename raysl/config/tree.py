"""A configuration as plain values: for YAML, for checkpoints, and to compare two of them."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from raysl.config.schema import RunConfig, is_may_change
from raysl.config.text import write, write_inline
from raysl.redact import bare_tree, redact_tree
from raysl.schedule import Duration


def plain(value: Any) -> Any:
    """Settings as dicts, lists and scalars; durations as text."""
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
    """The whole tree, defaults included, in values that YAML and JSON have; `from_dict` turns it back."""
    tree = plain(config)
    assert isinstance(tree, dict)
    return tree


def escape(value: Any) -> Any:
    """A plain tree in which a literal `${` is written so that loading it as a file does not interpolate it."""
    if isinstance(value, str) and "${" in value:
        return _escape_text(value)
    if isinstance(value, dict):
        return {key: escape(item) for key, item in value.items()}
    return [escape(item) for item in value] if isinstance(value, list) else value


def dump(config: RunConfig) -> str:
    """The whole tree as a YAML text that loads back to an equal configuration, but for credentials, which are `***`."""
    return write(escape(redact_tree(to_dict(config))))


def differences(old: RunConfig | Mapping[str, Any], new: RunConfig | Mapping[str, Any]) -> list[str]:
    """Lines such as `optim.lr: 0.3 -> 0.6`, for settings that must not differ when a run is started again.

    Credentials make no difference, nor does it whether there are any.

    A dict is what `to_dict` made, perhaps by another version. At least one side must be a `RunConfig`, which says what
    may change.

    Raises:
        TypeError: if both sides are dicts.
    """
    configs = [side for side in (old, new) if isinstance(side, RunConfig)]
    if not configs:
        raise TypeError("one of the two must be a RunConfig: a dict does not say which settings may change")
    free = {path for config in configs for path in _may_change(config)}
    before, after = (dict(_leaves(plain(side))) for side in (old, new))
    lines = []
    for path in [*before, *(path for path in after if path not in before)]:
        is_free = any(path[:length] in free for length in range(1, len(path) + 1))
        if not is_free and bare_tree(before.get(path, _UNSET)) != bare_tree(after.get(path, _UNSET)):
            lines.append(f"{'.'.join(path)}: {_show(before, path)} -> {_show(after, path)}")
    return lines


_UNSET = object()
Path = tuple[str, ...]


def _escape_text(text: str) -> str:
    """Backslashes before `${` are doubled and one more makes it literal, the rule of OmegaConf's grammar."""
    parts = text.split("${")
    for i, part in enumerate(parts[:-1]):
        num = len(part) - len(part.rstrip("\\"))
        parts[i] = part + "\\" * (num + 1)
    return "${".join(parts)


def _leaves(tree: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _may_change(config: Any, path: Path = ()) -> Iterator[Path]:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if is_may_change(field.metadata):
            yield (*path, field.name)
        elif dataclasses.is_dataclass(value) and not isinstance(value, Duration):
            yield from _may_change(value, (*path, field.name))


def _show(leaves: dict[Path, Any], path: Path) -> str:
    return write_inline(redact_tree(leaves[path])) if path in leaves else "unset"
