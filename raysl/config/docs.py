"""Documentation of settings: the text below each field with its range, and a configuration printed with them."""

import ast
import dataclasses
import functools
import inspect
import itertools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from raysl.config.component import type_hints
from raysl.config.dump import escape, plain, write_inline
from raysl.config.ranges import describe_rules
from raysl.config.values import describe_type
from raysl.redact import redact_tree
from raysl.schedule import Duration

_WIDEST = 48


@dataclass(frozen=True)
class Described:
    """A setting as its class declares it.

    Args:
        kind: type in words, `float or null`.
        range: bounds of its numbers in words, `at least 1`; empty without one.
    """

    key: str
    value: Any
    kind: str = ""
    range: str = ""
    doc: str = ""

    @property
    def line(self) -> str:
        """The text below the field, and its range, as `raysl config` prints them."""
        rule = f"{self.range[0].upper()}{self.range[1:]}." if self.range else ""
        return " ".join(filter(None, (self.doc, rule)))


def describe(config: object) -> list[Described]:
    """List every setting of a dataclass of settings with its type and range, in the order of the tree."""
    return [row for row in _rows(config, Described("", _GROUP)) if row.value is not _GROUP]


def annotate(config: object) -> str:
    """Write the tree as YAML with each field's doc line as a comment; loading it gives an equal configuration.

    Credentials are replaced by `***`.
    """
    lines = []
    for row in _rows(config, Described("", _GROUP)):
        *parents, name = row.key.split(".")
        text = f"{'  ' * len(parents)}{write_inline(name)}:" + (
            "" if row.value is _GROUP else f" {write_inline(escape(redact_tree(row.value)))}"
        )
        lines.append((text, row.line))
    width = min(_WIDEST, max(len(text) for text, _ in lines))
    return "".join(f"{text:<{width}}  # {doc}\n" if doc else f"{text}\n" for text, doc in lines)


@functools.cache
def field_docs(kind: type[object]) -> Mapping[str, str]:
    """Return the text below each field of a dataclass and its bases, on one line; empty if the source is missing."""
    # Python drops the text below a field, so it is read from the source: bases first, a subclass replaces theirs
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        for pair in itertools.pairwise(_class_body(base)):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = " ".join(text.split())
    return docs


_GROUP = object()


def _rows(value: Any, above: Described) -> Iterator[Described]:
    """Yield groups (with the value _GROUP) and settings, depth first; `above` is what is known of `value` itself."""
    is_group = dataclasses.is_dataclass(value) and not isinstance(value, Duration)
    holds_groups = isinstance(value, dict) and any(dataclasses.is_dataclass(item) for item in value.values())
    if not is_group and not holds_groups:
        yield dataclasses.replace(above, value=plain(value))
        return
    if above.key:
        yield above
    prefix = f"{above.key}." if above.key else ""
    if holds_groups:
        for name, item in value.items():
            yield from _rows(item, Described(prefix + name, _GROUP))
        return
    kind: Any = type(value)
    docs, hints = field_docs(kind), type_hints(kind)
    for field in dataclasses.fields(value):
        if field.init:
            hint = hints[field.name]
            described = (describe_type(hint), describe_rules(hint), docs.get(field.name, ""))
            yield from _rows(getattr(value, field.name), Described(prefix + field.name, _GROUP, *described))


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
