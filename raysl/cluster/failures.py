"""Why something was lost on a cluster, in one line: what Ray says about it in up to a hundred.

`reason` reads errors, `describe_failures` the errors of a group of workers, `describe_message` what Ray prints.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ray.exceptions import (
    ActorDiedError,
    ActorPlacementGroupRemoved,
    NodeDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    OwnerDiedError,
    RayActorError,
    RayError,
    RayTaskError,
    RuntimeEnvSetupError,
    TaskPlacementGroupRemoved,
    WorkerCrashedError,
)

from raysl.errors import ConfigError, RunFailed
from raysl.process.screen import duration, named

MAX_LENGTH = 300
"""Characters of an exception's message that a line shows."""

_KILLED = "its process was killed, as by SIGKILL or by the kernel for lack of memory"


@dataclass(frozen=True)
class Worker:
    """Where a training worker is."""

    node: str
    pid: int
    node_id: str = ""
    actor: str = ""


class HungWorker(Exception):
    """A worker has not joined a collective operation in which others wait for it."""


class SilentWorker(Exception):
    """A worker does not answer its controller, while the others have lost their connection to it."""


def describe_failures(failures: Mapping[int, BaseException], workers: Mapping[int, Worker]) -> str:
    """Describe in one line which workers were lost, where and why.

    Workers that only lost their connection to one that ended are left out, unless there are no others.

    >>> describe_failures({1: ValueError("no such class")}, {1: Worker("10.0.0.2", 7)})
    'worker 1 on 10.0.0.2 failed: ValueError: no such class'
    """
    causes = {rank: error for rank, error in failures.items() if not is_consequence(error)} or dict(failures)
    ranks: dict[tuple[str, str], list[int]] = {}
    for rank, error in sorted(causes.items()):
        ranks.setdefault((_pattern(error), reason(error)), []).append(rank)
    return "; ".join(f"{pattern.format(_name(each, workers))}: {why}" for (pattern, why), each in ranks.items())


def is_consequence(error: BaseException) -> bool:
    """Whether a worker's error only says that it lost its connection to another one, or waited for it in vain."""
    return isinstance(error, ConnectionError) or bool(_LOST_CONNECTION.search(f"{type(error).__name__}: {error}"))


def has_waited(error: BaseException) -> bool:
    """Whether a worker's error says that it has waited for another one until its time limit."""
    return is_consequence(error) and bool(re.search(r"[Tt]imed out|timeout", str(error)))


_LOST_CONNECTION = re.compile(
    r"^RuntimeError: \[.*gloo.*(Connection|Read error|Write error|Timed out|Socket|Application timeout)"
    r"|^Dist(Backend|Network|Store)Error: |^RuntimeError: .*NCCL",
    re.DOTALL,
)


def _name(ranks: list[int], workers: Mapping[int, Worker]) -> str:
    nodes = list(dict.fromkeys(workers[rank].node for rank in ranks if rank in workers))
    where = f" on {', '.join(nodes)}" if nodes else ""
    return f"{named('worker', ranks)}{where}"


def _pattern(error: BaseException) -> str:
    if isinstance(error, RayActorError | SilentWorker) or _is(error, "WorkerHealthCheckFailedError", "PreemptionError"):
        return "lost {}"
    if isinstance(error, HungWorker) or _is(error, "WorkerHealthCheckTimeoutError"):
        return "{} hung"
    return "the data of {} failed" if isinstance(error, RayError) else "{} failed"


def is_late_start(error: BaseException) -> bool:
    """Whether workers did not start within Ray's time limit, because the cluster has no room for them."""
    return type(getattr(error, "controller_failure", None)).__name__ == "WorkerGroupStartupTimeoutError"


def _is(error: BaseException, *names: str) -> bool:
    """Whether an error is of one of these classes of Ray Train, most of which have no public name."""
    return type(error).__name__ in names and type(error).__module__.startswith("ray.train")


def reason(error: BaseException) -> str:
    """Return why something failed or was lost: one line without addresses of pages and without a traceback."""
    for name in _CAUSES:
        if isinstance(cause := getattr(error, name, None), BaseException):
            return reason(cause)
    if isinstance(error, RayTaskError):
        return reason(error.cause) if isinstance(error.cause, BaseException) else _last_line(str(error))
    text = _RETRIES.sub("", str(error))
    if _is(error, "WorkerGroupStartupFailedError"):  # which loses its cause between processes
        return f"a worker did not start{f': {reason(error.__cause__)}' if error.__cause__ else ''}"
    if isinstance(error, HungWorker | SilentWorker):
        return text
    if isinstance(error, ConfigError | RunFailed):
        return text.splitlines()[0]  # Ray may add lines
    if memory := out_of_memory(text):
        return memory
    if _is(error, "WorkerHealthCheckTimeoutError"):
        waited = re.search(r"hanging for ([\d.]+) seconds", text)
        return f"it has not answered{f' for {duration(float(waited[1]))}' if waited else ''}"
    if isinstance(error, ActorDiedError | NodeDiedError | WorkerCrashedError | OwnerDiedError):
        return _end_of_process(text)
    for kinds, words in _WORDS.items():
        if isinstance(error, kinds):
            return words
    if _is(error, "PreemptionError"):
        return "its node is taken back by the cloud"
    if _is(error, "WorkerGroupStartupTimeoutError"):
        return "no room for all workers was free in time"
    return _short(f"{type(error).__name__}: {text.strip()}" if text.strip() else type(error).__name__)


_RETRIES = re.compile(r"(\n|\\n)Failed to .*? attempts \(total backoff.*transient\.", re.DOTALL)
"""Text that Ray Data appends to the message of any exception in a function of a dataset."""

_CAUSES = ("health_check_failure", "controller_failure", "_base_exc")
"""Attributes in which errors of Ray Train hold the error that they are about."""

_WORDS: dict[tuple[type[BaseException], ...], str] = {
    (ObjectStoreFullError,): "Ray's object store is full; lower data.buffer_gb, or give the nodes a larger one",
    (OutOfDiskError,): "the disk that Ray's object store spills to is full",
    (ObjectLostError,): "a batch of images was lost with the process or the node that held it",
    (ActorPlacementGroupRemoved, TaskPlacementGroupRemoved): "its resources were given to others",
    (RuntimeEnvSetupError,): "its environment could not be set up on the node",
    (RayActorError,): "it does not answer",
}


def _end_of_process(text: str) -> str:
    """Return why a process ended, from what Ray says about it."""
    for pattern, words in _ENDS.items():
        if re.search(pattern, text):
            return words
    return _short(_last_line(text))


_ENDS = {
    r"[Nn]ode (was )?(died|dead|terminated|preempted)|node has (died|been)|owner has died because its node": (
        "its node is gone"
    ),
    r"receives a SIGTERM": "its process was ended by SIGTERM",
    r"Segmentation fault|SIGABRT": "its process crashed",
    r"connection error code|crashed (unexpectedly|with)|owner has exited|RPC error: Socket closed": _KILLED,
    r"ray\.kill": "Ray ended its process on request",
}


def out_of_memory(text: str) -> str | None:
    """Return which node ran out of memory, which process was ended for it and what to lower; None for other texts."""
    node = re.search(r"\(IP: ([^,)]+)[^)]*\) was ([\d.]+) ?GB used / ([\d.]+) ?GB", text)
    if node is None or "low on memory" not in text:
        return None
    ended = re.findall(r"Selected to kill: \(.*?task name=([^,]*),.*?memory used=([\d.]+) ?GB", text)
    largest = max(ended, key=lambda each: float(each[1]), default=None)
    what, size = ("", "") if largest is None else (_process(largest[0]), f" of {largest[1]} GB")
    process = f"Ray ended the {what}{size}; " if what else ""
    return (
        f"out of memory on {node[1]}, where {node[2]} of {node[3]} GB were in use: {process}lower {_to_lower(what)}, "
        "or take nodes with more memory"
    )


def _process(task: str) -> str:
    for part, words in _PROCESSES.items():
        if part in task:
            return words
    return "data task" if "->" in task or "Map" in task or "Read" in task else f"process {task.split('.')[0]}"


_PROCESSES = {
    "RayTrainWorker": "training worker",
    "TrainController": "controller of the run",
}


def _to_lower(process: str) -> str:
    if process == "data task":
        return "data.buffer_gb"
    if process == "training worker":
        return "train.batch_size"
    return "train.batch_size or data.buffer_gb"


def describe_message(text: str, known: Iterable[int] = ()) -> str | None:
    """Describe in one line a failure that Ray prints by itself; None for a text that tells of none.

    Args:
        known: processes whose failure is described elsewhere, as that of training workers is.
    """
    if node := re.search(r"node with node id: \w+ and address: (\S+)", text):
        return f"lost node {node[1]}: nothing answers there"
    if "failed due to oom" in text and (shortage := out_of_memory(text)):
        return f"lost a data task or another process of Ray: {shortage}; its work is done again"
    process = re.search(r"Worker IP address: (\S+).*Worker PID: (\d+)", text, re.DOTALL)
    if process is None or int(process[2]) in known:
        return None
    end = out_of_memory(text) or _end_of_process(text)
    where = f"on {process[1]} (process {process[2]})"
    return f"lost a data task or another process of Ray {where}: {end}; its work is done again"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _short(text: str) -> str:
    """Return a text as one line of limited length, without addresses of pages."""
    line = re.sub(r"\s*https?://\S+", "", " ".join(text.split()))
    return line if len(line) <= MAX_LENGTH else f"{line[:MAX_LENGTH]}..."
