"""JSON that raysl wrote, read back: what a crash, a power loss or a stranger has changed is an error with the file."""

import itertools
import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from raysl.errors import ConfigError


class Damaged(ConfigError):
    """A file of raysl has other content than was written, or lacks some."""


RecordT = TypeVar("RecordT")
Kinds = Mapping[str, Any]
"""Types of the fields of an object by name, as annotations."""


def read_record(content: bytes | str, where: str, kinds: Kinds | None = None, optional: Kinds | None = None) -> Any:
    """Read a JSON object and check the types of its fields.

    >>> read_record('{"step": 3, "loss": 1}', "a.json", {"step": int, "loss": float})
    {'step': 3, 'loss': 1}

    Args:
        kinds: types of the fields that must be there.
        optional: types of fields that may be there. Others are not checked.

    Raises:
        Damaged: if it is no JSON object, or a field is missing or of another type.
    """
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise Damaged(f"{where} is damaged: {reason}") from error
    return check_types(tree, where, kinds, optional)


def read_as(kind: type[RecordT], content: bytes | str, where: str) -> RecordT:
    """Read a JSON object into a dataclass, see `from_record`.

    >>> from dataclasses import make_dataclass
    >>> read_as(make_dataclass("Beat", [("time", float)]), '{"time": 3.5}', "beat.json")
    Beat(time=3.5)
    """
    return from_record(kind, read_record(content, where), where)


def from_record(kind: type[RecordT], tree: Any, where: str) -> RecordT:
    """Build a dataclass from an object whose keys are its fields; those with a default may be missing.

    Raises:
        Damaged: if it is no object, or a field is missing, unknown or of another type.
    """
    kinds = kinds_of(kind)
    parts: tuple[Field[Any], ...] = fields(cast(Any, kind))
    needed = [part.name for part in parts if part.default is MISSING and part.default_factory is MISSING]
    check_types(tree, where, {name: kinds[name] for name in needed}, kinds)
    if unknown := sorted(tree.keys() - kinds.keys()):
        raise Damaged(f"{where} is damaged: it has an unknown {unknown[0]!r}")
    return kind(**tree)


def check_types(tree: Any, where: str, kinds: Kinds | None = None, optional: Kinds | None = None) -> dict[str, Any]:
    """Check that a value is an object whose fields have the given types; arguments as of `read_record`."""
    if not isinstance(tree, dict):
        raise Damaged(f"{where} is damaged: it is {_shown(tree)}, not an object")
    needed = kinds or {}
    for name, kind in [*needed.items(), *(optional or {}).items()]:
        if name in needed and name not in tree:
            raise Damaged(f"{where} is damaged: it has no {name!r}")
        if name in tree and not fits(tree[name], kind):
            expected = getattr(kind, "__name__", kind)
            raise Damaged(f"{where} is damaged: {name!r} is {_shown(tree[name])}, not {expected}")
    return tree


def kinds_of(kind: Any) -> dict[str, Any]:
    """Return the types of the fields of a dataclass, as `check_types` takes them."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def fits(value: Any, kind: Any) -> bool:
    """Whether a value that was read from JSON has a type, given as an annotation: a tuple is a list there.

    >>> fits({"a": [1, None]}, dict[str, list[int | None]]), fits(True, int)
    (True, False)
    """
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any or kind is object:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if kind is None or kind is type(None):
        return value is None
    # a whole number may stand for a float in JSON; true and false may not, though Python counts bool as int
    if kind in (int, float):
        return isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
    if is_dataclass(kind):
        return isinstance(value, dict)
    if (origin or kind) in (tuple, list):
        if not isinstance(value, list) or (len(parts) > 1 and parts[1] is not ... and len(value) != len(parts)):
            return False
        each = itertools.repeat(parts[0]) if len(parts) == 1 or Ellipsis in parts else parts
        return all(map(fits, value, each))  # any items where the annotation has no parts
    if isinstance(origin or kind, type) and issubclass(origin or kind, Mapping):
        return isinstance(value, dict) and (not parts or all(fits(item, parts[1]) for item in value.values()))
    return isinstance(value, kind)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
