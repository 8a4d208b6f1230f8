"""Errors of code: exceptions that come again at every try, told with the file and the line that raised them.

Exceptions of storage, network, memory and devices stay as they are, for the next try may do better.
"""

import os
import re
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raysl.errors import CodeError, ConfigError, RunFailed
from raysl.user_files import PREFIX

MAX_LENGTH = 300
"""Characters of an exception's message that are told."""

_OF_CODE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    RuntimeError,
    StopIteration,
    SyntaxError,
    TypeError,
    ValueError,
)
_OF_PATHS = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
_OF_MACHINES = re.compile(
    r"CUDA (error|driver|out of memory)|device-side assert|NCCL|cuDNN|CUDNN_|CUBLAS_|HIP error|out of memory"
    r"|can't allocate memory|not enough memory|gloo|[Cc]onnection (reset|closed|refused)|[Tt]imed out",
)
"""Texts of a `RuntimeError` of torch about memory, a device or the connection to another worker."""
_CLASSES_OF_MACHINES = {"OutOfMemoryError", "AcceleratorError", "DistError"}
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_RAYSL = f"{Path(__file__).parents[1]}{os.sep}"


@contextmanager
def explaining_code(of_users: bool = False) -> Iterator[None]:
    """Raise a `CodeError` for exceptions of code inside; a decorator too.

    >>> with explaining_code():
    ...     {}["key"]
    Traceback (most recent call last):
    raysl.errors.CodeError: <doctest ...>, line 2, in <module>: KeyError: 'key'

    Args:
        of_users: whether exceptions of raysl and of libraries alone stay as they are.
    """
    try:
        yield
    except Exception as error:
        if (not of_users or is_of_user(error)) and (failure := code_error(error)) is not None:
            raise failure from error
        raise


def code_error(error: Exception) -> CodeError | None:
    """Return an exception as an error of code; None for one that the next try may not meet."""
    error = getattr(error, "client_exc", error)  # of Ray, for what it cannot unpickle
    is_own = isinstance(error, ConfigError | RunFailed)
    # one cause in storage, memory or a device is enough: the next try may not meet it
    if is_own or not all(_is_of_code(each) for each in _chain(error)):
        return None
    text = " ".join(str(error).split())
    text = text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}..."
    what = f"{type(error).__name__}{f': {text}' if text else ''}"
    failure = CodeError(": ".join(filter(None, (_place(error), what))))
    failure.trace = "".join(traceback.format_exception(error))
    return failure


def is_of_user(error: Exception) -> bool:
    """Whether code of a user's file was running when the exception was raised."""
    return isinstance(error, SyntaxError) or any(name.startswith(PREFIX) for name, _ in _frames(error))


def _is_of_code(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    if any(kind.__module__.startswith("ray.") for kind in type(error).__mro__):
        return False
    # a file that raysl misses may come back; one that a user's code misses counts as its mistake
    if isinstance(error, _OF_PATHS):
        return is_of_user(error)
    if "partially initialized module" in str(error):  # two threads import at a time
        return False
    if isinstance(error, RuntimeError) and (names & _CLASSES_OF_MACHINES or _OF_MACHINES.search(str(error))):
        return False
    is_theirs = type(error).__module__.startswith((PREFIX, "__main__"))
    return isinstance(error, _OF_CODE) or type(error) is Exception or is_theirs


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _frames(error: BaseException) -> list[tuple[str, traceback.FrameSummary]]:
    """Return the module and the place of each call that led to an exception, the innermost last."""
    walked = list(traceback.walk_tb(error.__traceback__))
    summaries = traceback.StackSummary.extract(iter(walked), lookup_lines=False)
    return [
        (str(frame.f_globals.get("__name__")), summary) for (frame, _), summary in zip(walked, summaries, strict=True)
    ]


def _place(error: BaseException) -> str:
    """Return file, line and function of an exception: the innermost ones of a user, else of raysl, else of all.

    Empty for one that another process has raised.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}, line {error.lineno}"
    summaries = [summary for _, summary in _frames(error)]
    libraries = (*_LIBRARIES, "<frozen")
    users = [summary for summary in summaries if not summary.filename.startswith((*libraries, _RAYSL))]
    ours = [summary for summary in summaries if summary.filename.startswith(_RAYSL)]
    if not summaries:
        return ""
    last = (users or ours or summaries)[-1]
    return f"{Path(last.filename).name}, line {last.lineno}, in {last.name}"
