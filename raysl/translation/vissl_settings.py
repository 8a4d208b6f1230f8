"""A configuration of VISSL: read without running or fetching anything, and asked key by key."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyarrow import fs

from raysl.config.config_files import read
from raysl.config.fields import find
from raysl.config.trust import check_text
from raysl.errors import ConfigError
from raysl.storage.foreign import problem
from raysl.storage.reads import read_file
from raysl.translation.vissl_defaults import DEFAULTS

MOST_BYTES = 1 << 17
LARGEST = 1e15
"""No number of a configuration is as large; infinities and NaN are not below it either."""


def read_tree(path: str) -> dict[str, Any]:
    """Read a YAML file that a stranger may have written: plain values only, no aliases, at most 128 KiB."""
    try:
        text = read_file(fs.LocalFileSystem(), str(Path(path).expanduser()), MOST_BYTES).decode("utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8; give a YAML file") from error
    check_text(text, path)
    tree = read(text, path)
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} has no settings; give a YAML file of VISSL")
    return tree


def leaves(tree: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a tree, also those in lists of groups: `TRANSFORMS[0].size`.

    >>> list(leaves({"a": [{"b": 1}], "c": [1, 2]}))
    [('a[0].b', 1), ('c', [1, 2])]
    """
    if isinstance(tree, Mapping) and tree:
        for key, value in tree.items():
            yield from leaves(value, f"{above}.{key}" if above else str(key))
    elif isinstance(tree, list) and tree and all(isinstance(item, Mapping) for item in tree):
        for number, item in enumerate(tree):
            yield from leaves(item, f"{above}[{number}]")
    else:
        yield above, tree


class VisslSettings:
    """The settings of VISSL, with its defaults below them."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        self.tree = tree

    def has(self, key: str) -> bool:
        """Whether the files have the key."""
        return self._find(key) is not None

    def any(self, key: str) -> Any:
        """Return the value of a key, or its default; None if it has neither."""
        value = self._find(key)
        return DEFAULTS.get(key) if value is None else value

    def flag(self, key: str) -> bool:
        """Return a value that is true or false."""
        return bool(self._of(key, (bool,), "true or false"))

    def number(self, key: str) -> float:
        """Return a number."""
        return float(self._of(key, (int, float), "a number"))

    def whole(self, key: str) -> int:
        """Return a whole number."""
        return int(self._of(key, (int,), "a whole number"))

    def text(self, key: str) -> str:
        """Return a text; empty if there is none."""
        return str(self._of(key, (str,), "a text") if self.any(key) is not None else "")

    def items(self, key: str) -> list[Any]:
        """Return a list; empty if there is none."""
        return list(self._of(key, (list,), "a list") if self.any(key) is not None else [])

    def group(self, key: str) -> dict[str, Any]:
        """Return a group of settings; empty if there is none."""
        return dict(self._of(key, (dict,), "a group of settings") if self.any(key) is not None else {})

    def _find(self, key: str) -> Any:
        return find(self.tree, tuple(key.split(".")))

    def _of(self, key: str, kinds: tuple[type, ...], what: str) -> Any:
        return checked(self.any(key), kinds, key, what)


def checked(value: Any, kinds: tuple[type, ...], key: str, what: str) -> Any:
    """Return a value if it has one of the types."""
    is_wrong = not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)
    if is_wrong or (isinstance(value, int | float) and not abs(value) < LARGEST):
        raise ConfigError(f"{key}: {str(value)[:80]!r} is not {what}")
    return value


def pair(value: Any, key: str) -> tuple[Any, Any]:
    """Return a list of two."""
    two = checked(value, (list,), key, "a list of pairs")
    if len(two) != 2:
        raise ConfigError(f"{key}: {str(two)[:80]} is not a pair")
    return two[0], two[1]


def numbers(value: Any, key: str, at_least: int = 0) -> list[float]:
    """Return a list of numbers."""
    many = checked(value, (list,), key, "a list of numbers")
    if len(many) < at_least:
        raise ConfigError(f"{key}: {many} has fewer than {at_least} numbers")
    return [checked(item, (int, float), key, "a list of numbers") for item in many]


def location(value: str) -> str | None:
    """Return a path or URI that is only read; None for what may do more, or holds a variable of the environment."""
    is_plain = "$" not in value and not value.startswith("<") and value.isprintable()
    return value if value and is_plain and problem(value) is None else None


def steps(shares: Sequence[float]) -> float | None:
    """Return the factor between neighbours if it is always the same, else None.

    >>> steps([1, 0.1, 0.01]), steps([1, 0.5, 0.1])
    (0.1, None)
    """
    if 0 in shares[:-1]:
        return None
    factors = {round(after / before, 6) for before, after in pairwise(shares)}
    return factors.pop() if len(factors) == 1 else None
