"""What is wrong with the configurations of a sweep."""

from collections.abc import Iterator
from contextlib import contextmanager

from raysl.errors import ConfigError, StorageError
from raysl.process.screen import warnings_named
from raysl.tune.trial import ALONE

MOST_NAMED = 3


class ProblemsByName:
    """Collects what is wrong with configurations: a line for each mistake, which names those that have it.

    >>> problems = ProblemsByName()
    >>> for name in ("digits/byol", "digits/moco"):
    ...     with problems.catching(name):
    ...         raise ConfigError("trian.epochs: no such setting")
    >>> problems.lines
    ['digits/byol, digits/moco: trian.epochs: no such setting']
    """

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}

    @contextmanager
    def catching(self, name: str) -> Iterator[None]:
        """Collect a `ConfigError` of the block, but for those of a storage, and put the name before its warnings.

        Args:
            name: name of a configuration, or `ALONE`.
        """
        try:
            with warnings_named(name):
                yield
        except StorageError:
            raise
        except ConfigError as error:
            for line in dict.fromkeys(str(error).splitlines()):
                self._names.setdefault(line, []).append(name)

    @property
    def lines(self) -> list[str]:
        """A line for each mistake so far."""
        return [with_names(names, line) for line, names in self._names.items()]

    def check(self) -> None:
        """Raise what was collected, if anything."""
        if self._names:
            raise ConfigError("\n".join(self.lines))


def with_names(names: list[str], line: str) -> str:
    """Return a line with the names of configurations before it.

    >>> with_names(["a", "b", "c", "d", "e"], "it is wrong"), with_names([ALONE], "it is wrong")
    ('a, b, c and 2 more: it is wrong', 'it is wrong')
    """
    if names == [ALONE]:
        return line
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}: {line}"
