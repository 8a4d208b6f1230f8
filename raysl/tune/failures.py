"""Why a trial failed, by what Ray Tune keeps of it."""

import re
from pathlib import Path
from typing import Any

import ray.cloudpickle
from ray.exceptions import RayError, RayTaskError

from raysl.cluster.failures import reason
from raysl.errors import log
from raysl.redact import redact


def trace_of(trial: Any) -> str:
    """Return the traceback of a trial's last failure, without credentials; empty if there is none."""
    try:
        return redact(Path(trial.error_file).read_text(errors="replace")) if trial.error_file else ""
    except OSError as error:
        log.warning("the traceback of a failure is lost: %s", error)
        return ""


def reason_of(trial: Any, trace: str) -> str:
    """Return the reason of a trial's last failure in one line."""
    try:
        path = trial.pickled_error_file  # in the folder where Tune keeps it before it is in the storage
        error: Any = ray.cloudpickle.loads(Path(path).read_bytes()) if path else None
    except Exception as failure:  # noqa: BLE001 - an exception here would end the sweep; the traceback says the same
        log.debug("the error of a failure cannot be read: %s", failure)
        error = None
    cause = error.cause if isinstance(error, RayTaskError) else error
    return str(redact(reason(cause))) if isinstance(cause, RayError) else short_reason(trace)


_CLASS = re.compile(r"^raysl\.errors\.\w+: ")
"""The class of an error of raysl before its message, which says everything."""


def short_reason(trace: str) -> str:
    """Return the reason of a failure in one line: the last one of its traceback, without the class of raysl's errors.

    >>> short_reason("Traceback ...\\nraysl.errors.RunFailed: the loss is not finite at step 3")
    'the loss is not finite at step 3'
    """
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    return _CLASS.sub("", lines[-1]) if lines else "its process was lost"
