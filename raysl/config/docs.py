"""Documentation of settings: the text below each field with its range, and a configuration printed with them."""

import ast
import dataclasses
import functools
import inspect
import itertools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from raysl.config.component import type_hints
from raysl.config.dump import escape, plain, write_inline
from raysl.config.ranges import describe_rules
from raysl.config.schema import RunConfig
from raysl.redact import redact_tree
from raysl.schedule import Duration

_WIDEST = 48


def describe(config: RunConfig) -> list[tuple[str, Any, str]]:
    """List every setting as (dotted key, plain value, doc line), in the order of the tree."""
    return [(key, value, doc) for key, value, doc in _rows(config, "", "") if value is not _GROUP]


def annotate(config: RunConfig) -> str:
    """Write the tree as YAML with each field's doc line as a comment; loading it gives an equal configuration.

    Credentials are replaced by `***`.
    """
    lines = []
    for key, value, doc in _rows(config, "", ""):
        *parents, name = key.split(".")
        text = f"{'  ' * len(parents)}{write_inline(name)}:" + (
            "" if value is _GROUP else f" {write_inline(escape(redact_tree(value)))}"
        )
        lines.append((text, doc))
    width = min(_WIDEST, max(len(text) for text, _ in lines))
    return "".join(f"{text:<{width}}  # {doc}\n" if doc else f"{text}\n" for text, doc in lines)


@functools.cache
def field_docs(kind: type[object]) -> Mapping[str, str]:
    """Return the text below each field of a dataclass and its bases, on one line; empty if the source is missing."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        body = _class_body(base)
        for statement, below in itertools.pairwise(body):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            ):
                docs[statement.target.id] = " ".join(below.value.value.split())
    return docs


_GROUP = object()


def _rows(value: Any, key: str, doc: str) -> Iterator[tuple[str, Any, str]]:
    """Yield groups (with the value _GROUP) and settings, depth first."""
    is_group = dataclasses.is_dataclass(value) and not isinstance(value, Duration)
    holds_groups = isinstance(value, dict) and any(dataclasses.is_dataclass(item) for item in value.values())
    if not is_group and not holds_groups:
        yield key, plain(value), doc
        return
    if key:
        yield key, _GROUP, doc
    prefix = f"{key}." if key else ""
    if holds_groups:
        for name, item in value.items():
            yield from _rows(item, prefix + name, "")
        return
    kind: Any = type(value)
    docs, hints = field_docs(kind), type_hints(kind)
    for field in dataclasses.fields(value):
        if field.init:
            rule = describe_rules(hints[field.name])
            lines = (docs.get(field.name, ""), f"{rule[0].upper()}{rule[1:]}." if rule else "")
            yield from _rows(getattr(value, field.name), prefix + field.name, " ".join(filter(None, lines)))


def _class_body(kind: type[object]) -> list[ast.stmt]:
    body: list[ast.stmt] = _module_body(kind.__module__)
    for part in kind.__qualname__.split("."):
        if part != "<locals>":
            body = next((s.body for s in body if isinstance(s, ast.ClassDef | ast.FunctionDef) and s.name == part), [])
    return body


@functools.cache
def _module_body(name: str) -> list[ast.stmt]:
    try:
        return ast.parse(inspect.getsource(sys.modules[name])).body
    except (OSError, TypeError, KeyError):
        return []
