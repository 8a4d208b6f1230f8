"""Controllers of runs on the connected cluster: which runs are at work, and requests for nodes of those that died.

Ray keeps the request of a controller that died with its driver for up to three minutes, in which an autoscaler holds
or starts nodes for it. The next raysl command on the cluster withdraws it.
"""

from collections.abc import Iterator
from contextlib import suppress

import ray
import ray._private.state
from ray.exceptions import RayError

from raysl.cluster.board import Board
from raysl.process.environment import submission_id

_BOARD, _SUBMISSIONS = Board("controllers"), Board("submissions")
_COORDINATOR = "AutoscalingCoordinator"
ANSWER_S = 1.0


def note_submission() -> None:
    """Note the submission id of this driver's job for other drivers, where it has one."""
    if job := submission_id():
        _SUBMISSIONS.write(ray.get_runtime_context().get_job_id(), job)


def note_controller(request: str, actor: str, run: str) -> None:
    """Note the controller of a run for other drivers."""
    _BOARD.write(request, {"actor": actor, "run": run, "job": ray.get_runtime_context().get_job_id()})


def forget_controller(request: str) -> None:
    """Remove the note of a controller that has ended and withdrawn its request itself."""
    _BOARD.remove(request)


def runs_at_work() -> list[str]:
    """Return the runs that have a controller on the cluster now, by name, each with the Ray job that stops it.

    A run whose driver was not submitted as a job has its name alone.
    """
    return sorted({run for _, run, is_dead in _notes() if not is_dead})


def withdraw_requests_of_dead() -> None:
    """Withdraw the requests for nodes of controllers that have died; where that fails Ray's own limit ends them."""
    with suppress(RayError):
        for request, _, is_dead in _notes():
            if is_dead:
                _withdraw(request)
                _BOARD.remove(request)


def _notes() -> Iterator[tuple[str, str, bool]]:
    """Yield the request of each noted controller, its run with its Ray job, and whether it has died."""
    for request in _BOARD.names(""):
        note = _BOARD.read(request)
        if note is not None:  # it has ended since
            state = ray._private.state.actors(note["actor"]).get("State", "DEAD")
            job = _SUBMISSIONS.read(note["job"])
            yield request, note["run"] + (f" of the Ray job {job}" if job else ""), state == "DEAD"


def _withdraw(request: str) -> None:
    try:
        coordinator = ray.get_actor(_COORDINATOR, namespace=_COORDINATOR)
    except ValueError:  # it has ended, and all requests with it
        return
    ray.get(coordinator.cancel_request.remote(requester_id=request), timeout=ANSWER_S)
