"""How often a run is tried again: failures without a saved step between them are counted, pre-emptions apart.

The policy runs in Ray Train's controller. Only the driver can see that the controller itself has died; its tries of a
new one (`raysl.runs.trainer`) go on with the same count.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray._private.state import state
from ray._raylet import PlacementGroupID
from ray.core.generated.gcs_pb2 import PlacementGroupTableData
from ray.exceptions import RayTaskError
from ray.train import FailureConfig
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.train.v2._internal.execution.failure_handling import FailureDecision, FailurePolicy
from ray.train.v2._internal.execution.failure_handling.default import _is_preemption_failure
from ray.train.v2.api.exceptions import ControllerError, TrainingFailedError, WorkerGroupError
from ray.util.metrics import Counter
from ray.util.placement_group import PlacementGroup, remove_placement_group
from typing_extensions import override

from raysl.checkpoint.files import newest_whole
from raysl.errors import CodeError, ConfigError, DamagedData, StorageError
from raysl.storage.folder import Folder


@dataclass
class FailureCount:
    """Number of failures of a run since it last saved a step that it had not saved before.

    Args:
        most: number of failures after which the run is tried again; -1 for no limit.
        num: failures so far.

    >>> failures = FailureCount(most=1, step=10)
    >>> [failures.add(saved) for saved in (10, 15, 15)]
    [True, True, False]
    """

    most: int
    step: int = 0
    num: int = 0

    def add(self, saved: int) -> bool:
        """Count a failure; return whether the run is tried again."""
        if saved > self.step:
            self.step, self.num = saved, 0
        self.num += 1
        return self.most < 0 or self.num <= self.most

    def describe_retry(self) -> str:
        """Describe the try after the last failure, such as `retry 1 of 3`."""
        return f"retry {self.num}" if self.most < 0 else f"retry {self.num} of {self.most}"

    def __str__(self) -> str:
        """Describe the count, such as `3 failures without a saved step between them`."""
        return "1 failure" if self.num == 1 else f"{self.num} failures without a saved step between them"


def saved_step(uri: str) -> int:
    """Return the step of the newest whole checkpoint of a run; 0 without one, or while the storage fails."""
    try:
        return newest_whole(Folder(uri), ()).step
    except ConfigError:
        return 0


class Retries(FailurePolicy):
    """Tries a run again until `FailureCount` says that it is enough.

    A node that is taken away after a notice (spot instances) and a start that waits for resources do not count. An
    exception of code, a wrong setting and a missing or damaged file of images end the run.

    Args:
        failures: failures before this controller.
        saved_step: returns the last saved step, in updates of the run.
    """

    def __init__(self, failures: FailureCount, saved_step: Callable[[], int]) -> None:
        super().__init__(FailureConfig(max_failures=failures.most))
        self.failures = failures
        self.saved_step = saved_step

    @override
    def make_decision(self, training_failed_error: TrainingFailedError) -> FailureDecision:
        if is_waiting(training_failed_error) or is_preemption(training_failed_error):
            return FailureDecision.RETRY
        if final_cause(training_failed_error) is not None:
            return FailureDecision.RAISE
        global _decided
        goes_on = self.failures.add(self.saved_step())
        _decided = self.failures
        return FailureDecision.RETRY if goes_on else FailureDecision.RAISE


def final_cause(error: BaseException) -> BaseException | None:
    """Return what a retry would meet again: an exception of code, a wrong setting, or damaged images; None without."""
    finals = (each for each in worker_errors(error) if isinstance(each, CodeError | ConfigError | DamagedData))
    return next((each for each in finals if not isinstance(each, StorageError)), None)


def worker_errors(error: BaseException) -> list[BaseException]:
    """Return what the workers of a lost group raised, or data tasks of theirs; nothing for other errors."""
    failures = error.worker_failures.values() if isinstance(error, WorkerGroupError) else ()
    return [each.cause if isinstance(each, RayTaskError) else each for each in failures]


def is_preemption(error: TrainingFailedError) -> bool:
    """Whether a node was taken away after a notice, even before the announced time, which Ray does not see."""
    return _has_notice or _is_preemption_failure(error)


def note_notice(has_notice: bool) -> None:
    """Note whether a node of the present group of workers is about to be taken away.

    Ray pickles callbacks and policies apart, so those of a controller share this note through this module.
    """
    global _has_notice
    _has_notice = has_notice


_has_notice = False


def decided_failures() -> FailureCount | None:
    """Return the failures at the last decision of this controller that counted one."""
    return _decided


_decided: FailureCount | None = None


class Restarts(WorkerGroupCallback):
    """Counts, in Ray Train's controller, how often a run's workers start again, after a failure or for another number.

    Args:
        tags: of the counter, from `raysl.runs.metrics.tags_of`.
    """

    def __init__(self, tags: dict[str, str]) -> None:
        self.tags = tags
        self.counter: Counter | None = None

    @override
    def after_worker_group_start(self, worker_group: Any) -> None:
        """Count every start but the first."""
        if self.counter is None:
            self.counter = Counter(
                "raysl_restarts", "Times that the workers of the run started again.", tag_keys=tuple(self.tags)
            ).set_default_tags(self.tags)
        else:
            self.counter.inc()


def is_waiting(error: TrainingFailedError) -> bool:
    """Whether workers could not start within Ray's time limit because the cluster has no room for them."""
    return isinstance(error, ControllerError) and isinstance(error.controller_failure, WorkerGroupStartupTimeoutError)


def free_places(controller: str | None = None) -> None:
    """Free the resources of workers whose controller has died; Ray itself does so only where a dashboard runs.

    Args:
        controller: identifier of one that is ending right now.
    """
    job = ray.get_runtime_context().get_job_id()
    for content in state._connect_and_get_accessor().get_placement_group_table():
        group = PlacementGroupTableData.FromString(content)
        is_over = group.creator_actor_dead or group.creator_actor_id.hex() == controller
        if group.creator_job_id.hex() == job and is_over:
            remove_placement_group(PlacementGroup(PlacementGroupID(group.placement_group_id)))
