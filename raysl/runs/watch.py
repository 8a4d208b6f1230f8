"""What Ray Train's controller does when workers are lost: it notes what was lost and why, and ends the run if need be.

The controller loads this module, so it imports neither torch nor what trains.
"""

import os
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.train import UserCallback
from ray.util.metrics import Counter
from typing_extensions import override

from raysl.checkpoint.checkpoint_folder import newest_whole
from raysl.cluster.failures import HungWorker, SilentWorker, Worker, describe_failures, has_waited, is_consequence
from raysl.cluster.private import control_fast
from raysl.errors import CodeError, ConfigError, DamagedData, RunFailed, StorageError
from raysl.process.screen import duration
from raysl.runs.failures import End, Failure, FailureCount, FailureNotes, unpack_actor
from raysl.storage.folder import Folder

ANSWER_S = 3.0
"""Seconds in which a worker, or its node, answers."""
MAX_DUMP = 50_000
"""Characters that are kept about a failure: tracebacks and Ray's own words."""


@dataclass(eq=False, repr=False)
class FailureWatch(UserCallback):
    """Notes on the board of a run what was lost, and ends the run where a retry is of no use.

    Args:
        uri: folder of the run.
        most: failures without a saved step between them after which the run is tried again; -1 for no limit.
        step: step of the checkpoint from which this start goes on.
        hang_s: seconds after which a collective operation fails for which a worker has not come.
        tags: tags of the metric of restarts, from `raysl.runs.callbacks.tags_of`.
        inherited: variables that each process of the cluster has, where it is a private one.
    """

    notes: FailureNotes
    uri: str
    most: int
    step: int
    hang_s: float
    tags: dict[str, str]
    inherited: dict[str, str] | None = None
    driver: int = field(default_factory=os.getpid)
    restarts: Counter | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Arrive in the controller, whose handle Ray Train gives to nobody: the driver ends it by that."""
        self.__dict__.update(state)
        actor = None if os.getpid() == self.driver else ray.get_runtime_context().current_actor
        if hasattr(actor, "abort"):  # callbacks arrive in the workers as well
            if self.inherited is not None:
                control_fast(self.inherited)
            self.notes.note_handle("controller", actor)

    @override
    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Note a failure, once for each group of workers.

        Raises:
            RunFailed: if the run is not tried again; Ray Train then ends it.
        """
        notes, errors = self.notes, dict[int, BaseException](worker_exceptions)
        (group, _), failures = notes.group(), notes.all()
        if any(each.group == group for each in failures):
            return  # it has been noted; its workers still end
        workers, step = notes.workers(group), notes.step()
        # where all of these only lost another worker, the cause is among those that raised nothing
        if all(is_consequence(each) for each in errors.values()):
            errors |= self._silent({rank: each for rank, each in workers.items() if rank not in errors}, errors, step)
        text, follows, saved = describe_failures(errors, workers), "", None
        end: End | None = None
        if final := final_cause(errors.values()):
            end = "code" if isinstance(final, CodeError) else "input"
        elif notes.has_notice(group) or any(map(is_preempted, errors.values())):
            follows = "; this does not count as a failure"
        else:
            saved = saved_step(self.uri)
            count = FailureCount.of(failures, self.most, self.step)
            is_retried = count.add(saved)
            follows, end = f"; {count.describe(is_retried)}", None if is_retried else "count"
        notes.add(Failure(time.time(), text + follows, dump(errors), step, group, end, saved))
        notes.write_group(group, "waiting")
        if end is not None:
            raise RunFailed(text + follows)
        self._count_restart()

    def _silent(
        self, silent: Mapping[int, Worker], errors: Mapping[int, BaseException], step: int
    ) -> dict[int, BaseException]:
        """Return what is known of workers that have raised nothing, while others have lost or awaited them."""
        # an actor that lives answers this call, also while its training thread hangs
        asked = {unpack_actor(worker.actor).__ray_ready__.remote(): rank for rank, worker in silent.items()}
        done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S) if asked else ([], [])
        found: dict[int, BaseException] = {}
        for answer, rank in asked.items():
            try:
                if answer not in done:
                    is_gone = is_node_gone(silent[rank].node_id)
                    found[rank] = SilentWorker("its node is gone" if is_gone else "it does not answer")
                elif ray.get(answer) and any(map(has_waited, errors.values())):
                    waited = duration(self.hang_s)
                    found[rank] = HungWorker(f"the other workers have waited for it for {waited} at step {step}")
            except RayActorError as error:
                found[rank] = error
        return found

    def _count_restart(self) -> None:
        if self.restarts is None:
            text = "Times that the workers of the run started again after a failure."
            self.restarts = Counter("raysl_restarts", text, tag_keys=tuple(self.tags)).set_default_tags(self.tags)
        self.restarts.inc()


def saved_step(uri: str) -> int:
    """Return the step of the newest whole checkpoint of a run; 0 without one, or while the storage fails."""
    try:
        return newest_whole(Folder(uri), ()).step
    except ConfigError:
        return 0


def own_errors(errors: Iterable[BaseException]) -> list[BaseException]:
    """Return the errors of workers, in place of those of a data task what was raised in it."""
    return [each.cause if isinstance(each, RayTaskError) else each for each in errors]


def final_cause(errors: Iterable[BaseException]) -> BaseException | None:
    """Return what a retry would meet again: an exception of code, a wrong setting, or damaged images; None without."""
    finals = (each for each in own_errors(errors) if isinstance(each, CodeError | ConfigError | DamagedData))
    return next((each for each in finals if not isinstance(each, StorageError)), None)


def is_preempted(error: BaseException) -> bool:
    """Whether a worker ended because its node was taken away at the announced time."""
    return bool(getattr(getattr(error, "health_check_failure", error), "preempted", False))


def dump(errors: Mapping[int, BaseException]) -> str:
    """Return the tracebacks of code, whose middle Ray cuts out, and then Ray's own words about a failure."""
    traces = dict.fromkeys(each.trace for each in own_errors(errors.values()) if isinstance(each, CodeError))
    return "\n".join([*traces, *(f"worker {rank}: {error}" for rank, error in errors.items())])[:MAX_DUMP]


def is_node_gone(node_id: str) -> bool:
    """Whether nothing answers at a node; Ray itself notices that after a while only."""
    node = next((node for node in ray.nodes() if node["NodeID"] == node_id and node["Alive"]), None)
    if node is None:
        return True
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), ANSWER_S).close()
    except OSError:
        return True
    return False
