"""What Ray Train's controller sees of a run's workers, and notes for the driver, which cannot see them.

The controller loads this module, so it imports neither torch nor what trains.
"""

import os
import socket
import time
from collections.abc import Mapping
from typing import Any, cast

import ray
from ray.exceptions import RayActorError, RayError
from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback
from ray.train.v2._internal.execution.controller.state import (
    ErroredState,
    FinishedState,
    PreemptingState,
    ReschedulingState,
    RestartingState,
    RunningState,
    ShuttingDownState,
    TrainControllerState,
)
from ray.train.v2._internal.execution.failure_handling import FailureDecision
from ray.train.v2.api.exceptions import (
    ControllerError,
    PreemptionError,
    TrainingFailedError,
    WorkerGroupError,
)
from typing_extensions import override

from raysl.cluster.board import Board
from raysl.cluster.failures import (
    HungWorker,
    SilentWorker,
    Worker,
    describe_failures,
    is_consequence,
    reason,
)
from raysl.errors import CodeError
from raysl.process.screen import duration
from raysl.runs.failures import Failure, FailureNotes, Position
from raysl.runs.retries import decided_failures, final_cause, is_preemption, is_waiting, worker_errors

ANSWER_S = 3.0
"""Seconds in which a worker says where it is."""
MAX_DUMP = 50_000
"""Characters that are kept about a failure: tracebacks and Ray's own words."""


class Watch(ControllerCallback, WorkerGroupCallback):
    """Notes on the board of a run whether a group of workers is there and what was lost, and ends a group that hangs.

    Args:
        hang_timeout_s: seconds for which a worker may keep the others waiting.
    """

    def __init__(self, board: Board, hang_timeout_s: float) -> None:
        self.notes = FailureNotes(board)
        self.hangs = HangWatch(hang_timeout_s)
        self.group, _ = self.notes.group()
        self.is_retried = True
        self.actors: list[Any] = []
        self.workers: dict[int, Worker] = {}

    @override
    def before_init_train_context(self, workers: list[Any]) -> dict[str, list[Any]]:
        """Note that there is another group, before it begins to train."""
        self.group += 1
        self.actors = workers
        self.workers = {rank: Worker(each.metadata.node_ip, each.metadata.pid) for rank, each in enumerate(workers)}
        self.hangs.restart()
        self.notes.add_pids([os.getpid(), *(worker.pid for worker in self.workers.values())])
        self.notes.write_group(self.group, "working")
        return {}

    @override
    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        """Look for a worker for which the others wait.

        Raises:
            WorkerGroupError: if there is one; Ray Train then starts the group again.
        """
        if not worker_group_status.errors and (late := self.hangs.look(self.actors)):
            hung = {rank: HungWorker(text) for rank, text in late.items()}
            raise WorkerGroupError(describe_failures(hung, self.workers), hung)

    @override
    def before_controller_execute_failure_decision(self, failure_decision: FailureDecision) -> None:
        self.is_retried = failure_decision == FailureDecision.RETRY

    @override
    def after_controller_state_update(
        self, previous_state: TrainControllerState, current_state: TrainControllerState
    ) -> None:
        if isinstance(current_state, RunningState | PreemptingState):
            return
        end = current_state.next_state if isinstance(current_state, ShuttingDownState) else current_state
        if isinstance(end, RestartingState | ReschedulingState | ErroredState) and not isinstance(
            current_state, ErroredState
        ):
            self._note_failure(end.training_failed_error)
        self.notes.write_group(self.group, "done" if isinstance(end, FinishedState) else "waiting")

    def _note_failure(self, error: TrainingFailedError) -> None:
        if is_waiting(error):
            return  # it waits for nodes
        positions = ask(self.actors) if isinstance(error, WorkerGroupError) else {}
        steps = [position["step"] for position in [*positions.values(), *self.hangs.positions.values()]]
        text = "; ".join(filter(None, [self._describe(error, positions), self._describe_retry(error)]))
        self.notes.add(Failure(time.time(), text, _dump(error), max(steps, default=0), self.group, self.is_retried))

    def _describe(self, error: TrainingFailedError, positions: Mapping[int, Position]) -> str:
        if isinstance(error, PreemptionError):
            ranks = error.preemption_info.preempted_ranks
            return describe_failures(dict.fromkeys(ranks, error), self.workers)
        if isinstance(error, ControllerError):
            return f"no group of workers could be started: {reason(error)}"
        assert isinstance(error, WorkerGroupError)
        failures: dict[int, BaseException] = dict(error.worker_failures)
        if all(is_consequence(each) for each in failures.values()):
            silent = [rank for rank in self.workers if rank not in failures and rank not in positions]
            failures |= {rank: self._end_of(rank) for rank in silent}
        return describe_failures(failures, self.workers)

    def _end_of(self, rank: int) -> BaseException:
        """Return the error of a worker that does not answer, as far as it is known by now."""
        answer = self.actors[rank].actor.get_metadata.remote()
        if ray.wait([answer], timeout=0.1)[0]:
            try:
                ray.get(answer)
            except RayActorError as error:
                return cast(BaseException, error)
        is_gone = _is_node_gone(self.actors[rank].metadata.node_id)
        return SilentWorker("its node is gone" if is_gone else "it does not answer")

    def _describe_retry(self, error: TrainingFailedError) -> str:
        failures = decided_failures()
        if final_cause(error) is not None:
            return ""
        if not self.is_retried:
            return f"no retry is left, {failures}"
        if failures is None or is_preemption(error):
            return "this does not count as a failure"
        return failures.describe_retry()


def _dump(error: TrainingFailedError) -> str:
    """Return the tracebacks of code, whose middle Ray cuts out, and then Ray's own words about a failure."""
    traces = dict.fromkeys(each.trace for each in worker_errors(error) if isinstance(each, CodeError))
    return "\n".join([*traces, str(error)])[:MAX_DUMP]


def _is_node_gone(node_id: str) -> bool:
    """Whether nothing answers at a node; Ray itself notices that after a while only."""
    node = next((node for node in ray.nodes() if node["NodeID"] == node_id and node["Alive"]), None)
    if node is None:
        return True
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), ANSWER_S).close()
    except OSError:
        return True
    return False


class HangWatch:
    """Finds workers for which others have waited for too long.

    Every rank counts its collective operations, so those with the lowest count have not joined one in which the others
    wait.

    Args:
        timeout_s: seconds for which a worker may keep the others waiting.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.every_s = min(10.0, timeout_s / 4)
        self.restart()

    def restart(self) -> None:
        """Begin with another group of workers."""
        self.asked: dict[Any, int] = {}
        self.asked_at = time.monotonic()
        self.positions: dict[int, Position] = {}
        self.since = time.monotonic()

    def look(self, actors: list[Any]) -> dict[int, str]:
        """Return why, by rank, for workers that have kept the others waiting for too long.

        It never waits for an answer.

        Args:
            actors: the workers of the group, by rank.
        """
        now = time.monotonic()
        if not self.asked:
            if now - self.asked_at >= self.every_s:
                self.asked, self.asked_at = _ask(actors), now
            return {}
        done, waiting = ray.wait(list(self.asked), num_returns=len(self.asked), timeout=0)
        if waiting:
            return {}  # Ray Train ends a group with a worker that does not answer
        positions = _answers(self.asked, done)
        self.asked = {}
        if positions != self.positions:
            self.positions, self.since = positions, now
            return {}
        return self._late(now - self.since)

    def _late(self, waited_s: float) -> dict[int, str]:
        counts = {rank: position["collectives"] for rank, position in self.positions.items()}
        if waited_s < self.timeout_s or len(set(counts.values())) < 2:
            return {}
        step = min(position["step"] for position in self.positions.values())
        text = f"the other workers have waited for it for {duration(waited_s)} at step {step}"
        return {rank: text for rank, count in counts.items() if count == min(counts.values())}


def ask(actors: list[Any]) -> dict[int, Position]:
    """Ask workers where they are; without those that do not answer in time."""
    asked = _ask(actors)
    done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S)
    return _answers(asked, done)


def _ask(actors: list[Any]) -> dict[Any, int]:
    return {each.execute_async(_position): rank for rank, each in enumerate(actors)}


def _answers(asked: Mapping[Any, int], done: list[Any]) -> dict[int, Position]:
    positions = {}
    for answer in done:
        try:
            positions[asked[answer]] = ray.get(answer)
        except RayError:
            continue  # it has ended; the controller's next poll says so
    return positions


def _position() -> Position:
    """Return where this worker is; runs in it."""
    from raysl.runs.presence import position

    return position()
