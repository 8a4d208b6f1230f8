"""Paths among the settings: `~` and environment variables in them are expanded when a user's settings are loaded.

Those of a checkpoint are not: they may be somebody else's, who is not to read this process's environment.
"""

import os
import re
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from raysl.errors import ConfigError

_VARIABLE = re.compile(r"\$([A-Za-z_]\w*)")


@dataclass(frozen=True)
class IsLocation:
    """Marks a text as a local path or a URI."""


Location = Annotated[str, IsLocation()]


def is_location(kind: Any) -> bool:
    """Whether a field with this annotation holds a path or URI, perhaps among other things."""
    if get_origin(kind) is Annotated:
        return IsLocation() in kind.__metadata__
    return get_origin(kind) in (Union, UnionType) and any(is_location(member) for member in get_args(kind))


def expanded(text: str) -> str:
    """A path or URI with `~` and `$NAME` replaced; what lies at the path as it is written is taken as it is.

    Raises:
        ConfigError: if a local path names a variable that is not set.
    """
    path = os.path.expanduser(text)
    if "$" not in path or os.path.lexists(path):
        return path
    unset = [name for name in _VARIABLE.findall(path) if name not in os.environ]
    if unset and "://" not in path:
        raise ConfigError(f"{text!r}: the variable ${unset[0]} is not set; export it, or write the path out")
    return _VARIABLE.sub(lambda match: os.environ.get(match[1], match[0]), path)
