"""Ray Train's trainer: it starts a run's workers, tries again after failures, and leaves Ctrl-C to us."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import ray
import ray.train
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.train import FailureConfig, ScalingConfig
from ray.train import UserCallback as UserCallback
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.execution.failure_handling import FailurePolicy
from ray.train.v2._internal.execution.scaling_policy import ScalingPolicy
from ray.train.v2.api.exceptions import TrainingFailedError

from raysl.cluster.connection import cluster_resources, disconnect
from raysl.cluster.resources import WorkerShape
from raysl.errors import RunFailed
from raysl.process.temporary import temporary_folder
from raysl.runs.elastic import LOOK_EVERY_S, Elastic, SaveOnNotice
from raysl.runs.folder import RunFolder
from raysl.runs.retries import Failures, Retries, free_places, saved_step
from raysl.runs.worker import Job, Outcome, train_worker

log = logging.getLogger("raysl")

ABORT_S = 10.0


def run_workers(job: Job, shape: WorkerShape, callbacks: Sequence[UserCallback] = (), step: int = 0) -> Outcome:
    """Start workers, and return how their training ended.

    Args:
        job: what the workers do.
        shape: device and resources of a worker.
        callbacks: observers of Ray Train's, called in its controller.
        step: of the checkpoint from which they go on.

    Raises:
        RunFailed: if workers or Ray Train's controller failed too often without a saved step between two failures.
    """
    failures = Failures(job.config.train.max_failures, step)
    while True:
        try:
            return _run_workers(job, shape, callbacks, failures)
        except (TrainingFailedError, RayTaskError) as error:
            raise RunFailed(f"training failed: {_root_cause(error)}; start the same command again to resume") from error
        except RayError as error:  # the controller has died, for example for lack of memory
            step = saved_step(RunFolder.of(job.config).uri)
            if not failures.add(step):
                raise RunFailed(
                    f"training failed: Ray Train's controller was lost, {failures}; start the same command again to "
                    "resume"
                ) from error
            free_places()
            log.warning("Ray Train's controller was lost; going on from step %d", step)


def _run_workers(job: Job, shape: WorkerShape, callbacks: Sequence[UserCallback], failures: Failures) -> Outcome:
    """Start Ray Train's controller, and return what its main worker returns."""
    train = job.config.train
    with temporary_folder("ray") as notes:  # Ray's own; nothing is resumed from it
        scaling = ScalingConfig(
            num_workers=train.workers,
            elastic_resize_monitor_interval_s=LOOK_EVERY_S,
            use_gpu=shape.device == "cuda",
            resources_per_worker=shape.resources,
        )
        trainer = Trainer(
            train_worker,
            train_loop_config={"job": ray.cloudpickle.dumps(job)},  # Ray Train's controller need not import it
            scaling_config=scaling,
            run_config=ray.train.RunConfig(
                name=job.config.name.encode("ascii", "replace").decode().replace("?", "_"),  # Ray takes no others
                storage_path=notes,
                failure_config=FailureConfig(max_failures=train.max_failures),
                callbacks=[SaveOnNotice(), *callbacks],
            ),
        )
        trainer.failure_policy = Retries(failures, partial(saved_step, RunFolder.of(job.config).uri))
        if train.is_elastic:
            trainer.scaling_policy = Elastic(scaling, train, shape, cluster_resources().trials, job.last)
        try:
            outcome: Outcome = trainer.fit().return_value
        except KeyboardInterrupt:
            if not disconnect():
                trainer.abort()
            raise
    return outcome


def _root_cause(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[-1] if text else type(error).__name__


class Trainer(TorchTrainer):
    """A TorchTrainer without its handler of Ctrl-C, which would end the run without a checkpoint.

    Attributes:
        failure_policy, scaling_policy: decide in the controller in place of Ray's, if they are set.
    """

    controller: Any = None
    failure_policy: FailurePolicy | None = None
    scaling_policy: ScalingPolicy | None = None

    def _initialize_and_run_controller(self, **arguments: Any) -> Any:
        for name, policy in {"failure_policy": self.failure_policy, "scaling_policy": self.scaling_policy}.items():
            if policy is not None:
                arguments[name] = policy
        return super()._initialize_and_run_controller(**arguments)

    def _register_sigint_handler(self, controller: Any) -> None:
        """Remember the controller for `abort`. Ray calls this in the main thread only."""
        self.controller = controller

    def abort(self) -> None:
        """End the workers and free their resources; for an exception that has come out of `fit`."""
        if self.controller is None:
            return
        try:
            ray.get(self.controller.abort.remote(), timeout=ABORT_S)
        except RayActorError:
            return  # it has ended itself, as it should
        except GetTimeoutError:
            ray.kill(self.controller)
