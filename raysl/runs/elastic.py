"""How a group of workers changes: the number of an elastic run's workers, and nodes that are about to go."""

import os
import time
from typing import Any

import ray
from ray._private.state import state
from ray.exceptions import RayError
from ray.train import ScalingConfig
from ray.train.v2._internal.constants import WORKER_GROUP_START_TIMEOUT_S_ENV_VAR
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.train.v2._internal.execution.scaling_policy import NoopDecision, ResizeDecision, ScalingDecision
from ray.train.v2._internal.execution.scaling_policy.elastic import ElasticScalingPolicy
from typing_extensions import override

from raysl.cluster.resources import Resources, WorkerShape, fitting_workers
from raysl.config.schema import TrainConfig
from raysl.runs.retries import note_notice

LOOK_EVERY_S = 30.0  # seconds between looks for nodes that have come, while a group of workers trains
START_S = 15.0  # Ray's time limit for a group whose resources are there; it then tries another size
SAVE_S = 300.0  # longest wait for a checkpoint before a group grows
WAIT_S = 1.0


class Elastic(ElasticScalingPolicy):
    """Starts as many workers as fit the nodes that live at that moment, beside a data task.

    Ray's policy looks at nodes as they were up to 20 s ago, leaves no CPU to data tasks, asks again without a pause
    while too few workers fit, and grows a group without a checkpoint, so that steps are done again.

    Args:
        scaling_config: least and largest number of workers, and their resources.
        trials: number of concurrent trials that share the cluster; 0 for a run that has it alone.
        last: updates to be done when this start ends, after which it grows no more; None if that is not known.
    """

    def __init__(
        self, scaling_config: ScalingConfig, train: TrainConfig, shape: WorkerShape, trials: int, last: int | None
    ) -> None:
        super().__init__(scaling_config)
        self.train = train
        self.shape = shape
        self.trials = trials
        self.last = last
        self.growth: _Growth | None = None

    @override
    def make_decision_for_non_running_worker_group(self) -> ScalingDecision:
        self.growth = None
        decision = super().make_decision_for_non_running_worker_group()
        if isinstance(decision, NoopDecision):
            time.sleep(WAIT_S)  # the controller asks again at once
        return decision

    @override
    def make_decision_for_running_worker_group(
        self, worker_group_state: Any, worker_group_status: Any
    ) -> ScalingDecision:
        if self.growth is None:
            decision = super().make_decision_for_running_worker_group(worker_group_state, worker_group_status)
            if not isinstance(decision, ResizeDecision) or decision.num_workers < worker_group_state.num_workers:
                return decision
            self.growth = _Growth(decision, worker_group_state.workers[0])
        if not self.growth.is_due() or self.growth.stored == self.last:
            return NoopDecision()
        return self.growth.decision

    @override
    def after_controller_start(self, train_run_context: Any) -> None:
        os.environ.setdefault(WORKER_GROUP_START_TIMEOUT_S_ENV_VAR, f"{START_S:g}")
        super().after_controller_start(train_run_context)

    @override
    def _count_possible_workers(self, reserved_resources: dict[str, dict[str, float]]) -> int:
        cpus = ray.cluster_resources().get("CPU", 0.0)
        fit = fitting_workers(self.train, self.shape, Resources(cpus, 0, self.trials))
        placed = sum(
            min(int(node.get(name, 0.0) / amount + 1e-6) for name, amount in self.shape.resources.items())
            for node in reserved_resources.values()
        )
        return max(0, min(fit, placed, self.train.most_workers))

    @override
    def _get_reserved_resources(self) -> dict[str, dict[str, float]] | None:
        """Return the resources that are reserved for this run on the nodes that live and stay; None on an error."""
        try:
            reserved: dict[str, dict[str, float]] = ray.get(
                self._autoscaling_coordinator.get_reserved_resources.remote(self._requester_id, recompute=True),
                timeout=5,
            )
        except RayError:
            return None  # Ray tries again
        leaving = state.get_draining_nodes()
        return {node: resources for node, resources in reserved.items() if node not in leaving}


class SaveOnNotice(WorkerGroupCallback):
    """Saves a checkpoint when a node of the run is about to be taken away, as spot nodes are."""

    def __init__(self) -> None:
        self.main: Any = None
        self.is_asked = False

    @override
    def before_init_train_context(self, workers: list[Any]) -> dict[str, list[Any]]:
        self.main, self.is_asked = workers[0], False
        note_notice(False)
        return {}

    @override
    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        if not self.is_asked and worker_group_status.get_preemption_info() is not None:
            self.is_asked = True
            note_notice(True)
            self.main.execute_async(_ask_to_save)


class _Growth:
    """A decision for more workers, which waits for a checkpoint of the group that trains."""

    def __init__(self, decision: ResizeDecision, main: Any) -> None:
        self.decision = decision
        self.main = main
        self.before: int | None = None
        self.stored = 0
        self.answer = main.execute_async(_ask_to_save)
        self.deadline = time.monotonic() + SAVE_S

    def is_due(self) -> bool:
        """Whether a checkpoint has been stored since, or none will be."""
        if time.monotonic() > self.deadline:
            return True
        if not ray.wait([self.answer], timeout=0)[0]:
            return False
        try:
            self.stored = int(ray.get(self.answer))
        except RayError:
            return False  # the worker is lost, which the controller sees too
        self.before = self.stored if self.before is None else self.before
        self.answer = self.main.execute_async(_stored_step)
        return self.stored > self.before


def _ask_to_save() -> int:
    """Ask the run of this worker to save a checkpoint; return the last step that is stored."""
    from raysl.train.callbacks.stop import ask_to_save

    ask_to_save()
    return _stored_step()


def _stored_step() -> int:
    from raysl.runs.ray_reporter import stored_step

    return stored_step()
