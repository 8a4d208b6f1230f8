"""Strict conversion of plain YAML values to the types of settings, with errors that say what would fit."""

import dataclasses
import math
import types
from collections.abc import Callable, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from raysl.config.dump import show
from raysl.config.ranges import OutOfRange, bare, rules_of
from raysl.errors import ConfigError, Problems
from raysl.schedule import Duration

Node = Callable[[type[Any], Any, str, Any], Any]
"""Turns a dict into a dataclass: (class, dict, dotted key, default instance or None)."""

EXACT_END = 2**53  # larger floats stand for several integers
FLOATS_END = 2**1023  # larger integers may exceed the range of floats
_NAMES = {int: "int", float: "float", bool: "bool", str: "text", type(None): "null", Duration: "duration"}
_ADVICE = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
_ADVICE[Duration] = "epochs (10ep), steps (500st) or a share of the run (5%)"


def convert(kind: Any, value: Any, key: str, default: Any, node: Node) -> Any:
    """Convert `value` to a setting of type `kind`.

    Args:
        kind: the annotation: a scalar, `Duration`, `Literal`, a union, tuple, list, dict, a dataclass, or `Any`; also
            one of these with a range (`raysl.config.ranges`).
        value: a plain value from YAML.
        key: the setting's dotted key, for messages.
        default: the setting's default, or None; an incomplete dataclass takes the rest from it.
        node: called for dataclasses.

    Raises:
        ConfigError: a line for each value that does not fit.
        OutOfRange: if the value has the right type but is not in the range of its field.
        TypeError: if the annotation is not allowed for settings.
    """
    converted = _convert_type(bare(kind), value, key, default, node)
    for rule in rules_of(kind):
        if problem := rule.problem(converted):
            raise OutOfRange(f"{key}: {show(converted)} {problem}")
    return converted


def _convert_type(kind: Any, value: Any, key: str, default: Any, node: Node) -> Any:
    origin = get_origin(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(kind, value, key, default, node)
    if origin is Literal:
        return _convert_choice(kind, value, key)
    if (origin or kind) in (tuple, list):
        return _convert_sequence(kind, value, key, node)
    if (origin or kind) is dict:
        return _convert_mapping(kind, value, key, node)
    if dataclasses.is_dataclass(kind) and kind is not Duration:
        assert isinstance(kind, type)
        return node(kind, value, key, default)
    return _convert_scalar(kind, value, key)


def is_text(kind: Any, value: Any) -> bool:
    """Whether a number or boolean, as YAML reads it, is a text for a setting of type `kind`.

    >>> is_text(str | None, 7), is_text(str | float, 7)
    (True, False)
    """
    kind = bare(kind)
    if get_origin(kind) is list or Ellipsis in get_args(kind):  # one value of a list, without brackets
        return is_text(get_args(kind)[0], value)
    members = [bare(member) for member in (get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,))]
    fitting = (int, float) if type(value) is int else (type(value),)
    return str in members and not any(member in members for member in fitting)


def describe_type(kind: Any) -> str:
    """Describe a type to users.

    >>> describe_type(float | None)
    'float or null'
    """
    kind = bare(kind)
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(describe_type(member) for member in get_args(kind))
    if get_origin(kind) is Literal:
        return " or ".join(repr(choice) if isinstance(choice, str) else show(choice) for choice in get_args(kind))
    if get_origin(kind) is tuple and Ellipsis not in get_args(kind):
        return f"list of {len(get_args(kind))}"
    if (get_origin(kind) or kind) in (tuple, list):
        return "list"
    return _NAMES.get(kind, "group of settings")


def _convert_scalar(kind: Any, value: Any, key: str) -> Any:
    if kind not in _NAMES:
        raise TypeError(f"{key}: no setting can be of type {kind}")
    # an integer too large for a float becomes infinite, which ranges of finite numbers refuse
    if kind is float and type(value) is int:
        return float(value) if abs(value) < FLOATS_END else math.inf if value > 0 else -math.inf
    if kind is Duration and isinstance(value, str):
        try:
            return Duration.parse(value)
        except ValueError as error:
            raise ConfigError(f"{key}: {error}") from error
    if type(value) is kind:
        return value
    raise ConfigError(f"{key}: {show(value)} is not of type {describe_type(kind)}{_advice(kind, value)}")


def _advice(kind: Any, value: Any) -> str:
    if kind is int and isinstance(value, float) and value.is_integer() and abs(value) < EXACT_END:
        return f"; write {int(value)}"
    if kind is str and isinstance(value, bool | int | float):  # 007 or 1e5 in a file: what was written is not known
        return "; put what you wrote in quotes"
    if get_origin(kind) is Literal:
        return f"; write {' or '.join(show(choice) for choice in get_args(kind))}"
    return f"; write {_ADVICE[kind]}" if kind in _ADVICE else ""


def _convert_choice(kind: Any, value: Any, key: str) -> Any:
    choices = get_args(kind)
    # types are compared too, since True == 1 == 1.0 in Python
    if any(type(value) is type(choice) and value == choice for choice in choices):
        return value
    listed = ", ".join(choice if isinstance(choice, str) else show(choice) for choice in choices)
    raise ConfigError(f"{key}: {show(value)} is not one of its choices; write one of {listed}")


def _convert_union(kind: Any, value: Any, key: str, default: Any, node: Node) -> Any:
    members = get_args(kind)
    if value in (None, "None") and type(None) in members:  # Python's word is nobody's path or name
        return None
    errors: list[ConfigError] = []
    for member in members:
        try:
            is_same = isinstance(bare(member), type) and isinstance(default, bare(member))
            return convert(member, value, key, default if is_same else None, node)
        except ConfigError as error:
            # errors of types that the user did not mean would only confuse
            if isinstance(error, OutOfRange) or _is_meant(bare(member), value):
                errors.append(error)
    if errors:
        raise min(errors, key=lambda error: not isinstance(error, OutOfRange))  # the first that is out of range, if any
    raise ConfigError(f"{key}: {show(value)} is not of type {describe_type(kind)}{_advice_of_union(members, value)}")


def _advice_of_union(members: Sequence[Any], value: Any) -> str:
    """Return what may be written for one of several types; nothing where that cannot be said in a few words."""
    if str in map(bare, members) and isinstance(value, bool | int | float):
        return _advice(str, value)
    ways: list[str] = []
    for member in map(bare, members):
        if member is bool:
            ways += ["true", "false"]
        elif member in _ADVICE:
            ways.append(_ADVICE[member])
        elif get_origin(member) is Literal:
            ways += [choice if isinstance(choice, str) else show(choice) for choice in get_args(member)]
        elif get_origin(member) is tuple and Ellipsis not in get_args(member):
            ways.append(f"[{', '.join('abcdefgh'[: len(get_args(member))])}]")
        elif member is type(None):
            ways.append("null")
        else:
            return ""
    return f"; write {', '.join(ways[:-1])} or {ways[-1]}"


def _is_meant(kind: Any, value: Any) -> bool:
    """Whether the user meant a container of this type, so that its errors are worth showing."""
    outer = get_origin(kind) or kind
    if isinstance(value, dict):
        return outer is dict or (dataclasses.is_dataclass(kind) and kind is not Duration)
    if isinstance(value, list | tuple):
        return outer in (tuple, list)
    return dataclasses.is_dataclass(value) and isinstance(kind, type) and isinstance(value, kind)


def _convert_sequence(kind: Any, value: Any, key: str, node: Node) -> Any:
    if Ellipsis in get_args(kind) and isinstance(value, int | float | str):
        value = [value]  # a list of one value needs no brackets
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{key}: {show(value)} is not of type {describe_type(kind)}; write [a, b, ...]")
    outer, inner = get_origin(kind) or kind, get_args(kind)
    if outer is list or Ellipsis in inner or not inner:
        kinds = [inner[0] if inner else Any] * len(value)
    elif len(value) != len(inner):
        raise ConfigError(f"{key}: {show(list(value))} has {len(value)} values; it needs {len(inner)}")
    else:
        kinds = list(inner)
    return outer(
        _convert_each([(k, v, f"{key}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True))], node)
    )


def _convert_mapping(kind: Any, value: Any, key: str, node: Node) -> Any:
    """Convert to a dict; null becomes an empty one, which removes the entries of a base file."""
    value = {} if value is None else value
    if not isinstance(value, dict):
        raise ConfigError(f"{key}: {show(value)} is not a group of settings; write {{name: value, ...}}")
    wrong = [name for name in value if not isinstance(name, str)]
    if wrong:
        raise ConfigError(f"{key}: the key {show(wrong[0])} is not a text; quote it")
    inner = get_args(kind)[1] if get_args(kind) else Any
    return dict(
        zip(value, _convert_each([(inner, item, f"{key}.{name}") for name, item in value.items()], node), strict=True)
    )


def _convert_each(items: list[tuple[Any, Any, str]], node: Node) -> list[Any]:
    converted, problems = [], Problems()
    for kind, value, key in items:
        with problems.catching():
            converted.append(convert(kind, value, key, None, node))
    problems.check()
    return converted
