"""YAML as raysl reads and writes it: PyYAML, with what surprises people mended.

`1e-3` is a number, a date or `12:30` is text, keys are text, and one that stands twice in a file is an error.
"""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from raysl.errors import ConfigError

_FLOAT = re.compile(
    r"""^(?:[-+]?(?:\d[\d_]*)?\.\d[\d_]*(?:[eE][-+]?\d+)?
        |[-+]?\d[\d_]*\.(?:[eE][-+]?\d+)?
        |[-+]?\d[\d_]*[eE][-+]?\d+
        |[-+]?\.(?:inf|Inf|INF)
        |\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
_INT = re.compile(r"^[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|0|[1-9][\d_]*)$")
_MENDED = {"tag:yaml.org,2002:float", "tag:yaml.org,2002:int", "tag:yaml.org,2002:timestamp"}


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag != "tag:yaml.org,2002:merge":
                key = self.construct_object(key_node, deep=True)
                if not isinstance(key, str) or key in seen:
                    problem = (
                        f"{key!r} stands twice" if isinstance(key, str) else f"the key {key!r} is no text; quote it"
                    )
                    raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        is_broken = any(mark in data for mark in "\x85\u2028\u2029")  # breaks of a line that only quotes keep
        return self.represent_scalar("tag:yaml.org,2002:str", data, style='"' if is_broken else None)

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node)).replace("_", "")
    octal = re.fullmatch(r"([-+]?)0o?([0-7]+)", text)
    return int(octal[1] + octal[2], 8) if octal else int(text, 0)


for _kind in (_Loader, _Dumper):
    _kind.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in _MENDED]
        for first, resolvers in _kind.yaml_implicit_resolvers.items()
    }
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
    _kind.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
_Dumper.add_representer(str, _Dumper.represent_str)
_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


def read(text: str, origin: str) -> Any:
    """The value that a YAML text holds.

    Raises:
        ConfigError: if it is not YAML; the message has `origin`, the line and the cause.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark is not None and "\n" in text else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{origin}{where}: not YAML: {problem}") from error


def read_file(path: Path) -> Any:
    """The value that a YAML file holds.

    Raises:
        ConfigError: if it cannot be read, is not UTF-8, or is not YAML.
    """
    return read(text_of(path), str(path))


def text_of(path: Path) -> str:
    """A text file.

    Raises:
        ConfigError: if it cannot be read, or is not UTF-8.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"{path} line {line}: not UTF-8 (byte {content[error.start]:#04x}); save it as UTF-8"
        ) from error


def write(tree: Any) -> str:
    """A plain tree as YAML, in its own order, that `read` turns into the same tree."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def write_inline(value: Any) -> str:
    """A plain value as YAML on one line."""
    style = '"' if isinstance(value, str) and not value.isprintable() else None
    text = yaml.dump(
        value,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=2**31,
        default_flow_style=True,
        default_style=style,
    )
    return text.removesuffix("...\n").strip("\n")
