"""Ray Train's controller of a run, as raysl starts it.

Everything that it loads is loaded at each start: neither this module nor what it imports may need torch.
"""

import os
from collections.abc import Mapping
from typing import Any

from ray.train.v2._internal.execution.controller import TrainController as RaysTrainController
from ray.train.v2._internal.execution.scaling_policy import NoopDecision, ResizeDecision
from ray.train.v2._internal.execution.scaling_policy.fixed import FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group import WorkerGroup
from typing_extensions import override


class Workers(WorkerGroup):
    """Ray's group of workers, which inherit the environment of their controller.

    Ray hands the same variables to each worker again, which it then starts in a slower way.
    """

    @staticmethod
    @override
    def _get_worker_runtime_env(custom_runtime_env: Mapping[str, Any]) -> dict[str, Any]:
        return dict(custom_runtime_env)


class TrainController(RaysTrainController):
    """Ray's controller. It keeps that name, by which users and messages know its process.

    Args:
        settings: of Ray Train, which reads them from the environment of this process.
    """

    worker_group_cls = Workers

    def __init__(self, settings: Mapping[str, str], **arguments: Any) -> None:
        os.environ.update(settings)
        super().__init__(**arguments)


class OneNode(FixedScalingPolicy):
    """Starts a fixed number of workers on a cluster that never grows, so that nobody is asked for nodes.

    Ray keeps such requests in a process of their own.
    """

    @override
    def after_controller_start(self, train_run_context: Any) -> None:
        pass

    @override
    def make_decision_for_non_running_worker_group(self) -> ResizeDecision:
        config = self.scaling_config
        return ResizeDecision(
            num_workers=config.num_workers, resources_per_worker=config._resources_per_worker_not_none
        )

    @override
    def make_decision_for_running_worker_group(self, worker_group_state: Any, worker_group_status: Any) -> NoopDecision:
        return NoopDecision()
