"""The errors of raysl with their exit codes, and its log. Neither shows credentials (`raysl.redact`)."""

import difflib
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from raysl.redact import redact

log = logging.getLogger("raysl")


class ConfigError(ValueError):
    """The user's input is wrong: the message names the value, the rule and the next step. Exit code 2."""

    def __init__(self, message: str = "") -> None:
        super().__init__(redact(message))


class RunInUse(ConfigError):
    """Another process is at work in the run's folder."""


class StorageError(ConfigError):
    """A remote storage, or the network to it, fails; a later try may succeed."""


class RunFailed(RuntimeError):
    """The run failed although the input was right: the message says where, and what is left. Exit code 1."""

    def __init__(self, message: str = "") -> None:
        super().__init__(redact(message))


class DamagedData(RunFailed):
    """A file of the dataset is missing, damaged or was replaced: a retry would fail in the same way."""


class CodeError(RunFailed):
    """Code raised an exception, and a retry would meet it again: the message has its file and line.

    Attributes:
        trace: text of the exception's traceback, which is lost where an exception travels between processes.
    """

    trace: str = ""


class Stopped(RunFailed, SystemExit):
    """Ctrl-C or a signal stopped the run; its training so far is saved.

    A script that does not catch it ends without a traceback.

    Attributes:
        code: exit code of the command, 128 plus the number of the signal: 130 for Ctrl-C, 143 for SIGTERM.
    """

    code: int

    def __init__(self, message: str = "", code: int = 130) -> None:
        super().__init__(message)
        self.code = code


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return a question with the nearest known names, and a blank behind it; empty where none is near.

    >>> did_you_mean("knn/top1", ["knn/k20/top1", "knn/k200/top1", "loss"])
    "did you mean 'knn/k20/top1' or 'knn/k200/top1'? "
    """
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.75) or difflib.get_close_matches(name, known, n=1)
    return f"did you mean {' or '.join(map(repr, near))}? " if near else ""


MOST_NAMED = 3
"""Configurations that a line names."""


class Problems:
    """Collects what is wrong with the input, so that one message has all of it.

    >>> problems = Problems()
    >>> for name in ("digits/byol", "digits/moco"):
    ...     with problems.catching(name):
    ...         raise ConfigError("optim.lr: -1 is out of range")
    >>> problems.lines
    ['digits/byol, digits/moco: optim.lr: -1 is out of range']
    """

    def __init__(self) -> None:
        self.errors: list[ConfigError] = []
        self._names: dict[str, list[str]] = {}

    @contextmanager
    def catching(self, name: str = "") -> Iterator[None]:
        """Collect a `ConfigError` of the block, but for those of a storage, which may be over soon.

        Args:
            name: name of the configuration that is wrong, which its lines show; empty for none.
        """
        try:
            yield
        except StorageError:
            raise
        except ConfigError as error:
            self.errors.append(error)
            for line in dict.fromkeys(str(error).splitlines() if name else ()):
                self._names.setdefault(line, []).append(name)

    @property
    def lines(self) -> list[str]:
        """All lines so far, each once."""
        lines = dict.fromkeys(line for error in self.errors for line in str(error).splitlines())
        return [with_names(self._names.get(line, []), line) for line in lines]

    def check(self) -> None:
        """Raise what was collected, if anything: one error as it is, several as one with all lines."""
        if len(self.errors) == 1 and not self._names:
            raise self.errors[0]
        if self.errors:
            raise ConfigError("\n".join(self.lines)) from self.errors[0]


def with_names(names: Sequence[str], line: str) -> str:
    """Return a line with the names of configurations before it.

    >>> with_names(["a", "b", "c", "d", "e"], "it is wrong"), with_names([], "it is wrong")
    ('a, b, c and 2 more: it is wrong', 'it is wrong')
    """
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}: {line}" if names else line
