"""Ray Train's trainer: it starts a run's workers, tries again after failures, and leaves Ctrl-C to us."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import ray
import ray.train
from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
    get_or_create_autoscaling_coordinator,
)
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.train import FailureConfig, ScalingConfig
from ray.train import UserCallback as UserCallback
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.constants import get_env_vars_to_propagate
from ray.train.v2._internal.execution.callback import RayTrainCallback
from ray.train.v2._internal.execution.failure_handling import FailurePolicy
from ray.train.v2._internal.execution.scaling_policy import ScalingPolicy
from ray.train.v2.api.exceptions import TrainingFailedError

from raysl.cluster.at_work import at_work
from raysl.cluster.board import Board
from raysl.cluster.connection import cluster_resources, disconnect, is_private, not_inherited
from raysl.cluster.failures import reason
from raysl.cluster.names import ray_name
from raysl.cluster.resources import WorkerShape
from raysl.errors import CodeError, RunFailed, Stopped
from raysl.process.cpus import spin_variables
from raysl.process.temporary import temporary_folder
from raysl.runs.controller import OneNode, TrainController
from raysl.runs.elastic import LOOK_EVERY_S as RESIZE_EVERY_S
from raysl.runs.elastic import Elastic, SaveOnNotice
from raysl.runs.failures import Failure, FailureNotes
from raysl.runs.folder import RunFolder
from raysl.runs.outcome import Outcome
from raysl.runs.process_group import ProcessGroup
from raysl.runs.rank_streams import TRAIN, PrepareAgain, RankStreams, no_dataset
from raysl.runs.retries import FailureCount, Restarts, Retries, final_cause, free_places, saved_step
from raysl.runs.watch import Watch
from raysl.runs.worker import Job, pack, train_worker

ABORT_S = 1.5
LOOK_EVERY_S = 0.3
HANG_MARGIN_S = 60.0
"""Seconds after `train.hang_timeout` in which the controller names the worker that hangs, before torch gives up."""


Look = Callable[[], None]


def run_workers(
    job: Job,
    shape: WorkerShape,
    callbacks: Sequence[UserCallback] = (),
    step: int = 0,
    look: Look = lambda: None,
) -> Outcome:
    """Start workers, and return how their training ended.

    Args:
        callbacks: observers of Ray Train's, called in its controller.
        step: of the checkpoint from which they go on.
        look: called several times a second; what it raises ends the workers, and is raised here.

    Raises:
        CodeError: if code raised an exception in a worker or a data task.
        RunFailed: if workers or Ray Train's controller failed too often without a saved step between two failures.
    """
    failures, notes = FailureCount(job.config.train.max_failures, step), FailureNotes(Board(job.board))
    while True:
        try:
            return _run_workers(job, shape, callbacks, failures, look)
        except (TrainingFailedError, RayTaskError) as error:
            text = next((each.text for each in reversed(notes.all()) if not each.is_retried), reason(error))
            if isinstance(cause := final_cause(error), CodeError):
                raise CodeError(f"training failed: {text}; {_MEND}") from error
            if cause is not None:
                raise RunFailed(f"training failed: {text}") from error
            raise RunFailed(f"training failed: {text}; {_AGAIN}") from error
        except RayError as error:  # the controller has died, for example for lack of memory
            text = f"lost the controller of the run: {reason(error)}"
            if not failures.add(saved_step(RunFolder.of(job.config).uri)):
                raise RunFailed(f"training failed: {text}; no retry is left, {failures}; {_AGAIN}") from error
            free_places()
            number, _ = notes.group()
            notes.write_group(number, "waiting")
            notes.add(Failure(time.time(), f"{text}; {failures.describe_retry()}", str(error), group=number))


_AGAIN = "start the same command again to resume"
_MEND = f"a retry would meet it again; mend it and {_AGAIN}; the traceback is in ray.log in the folder of the run"


def _run_workers(
    job: Job, shape: WorkerShape, callbacks: Sequence[UserCallback], failures: FailureCount, look: Look
) -> Outcome:
    """Start Ray Train's controller, and return what its main worker returns."""
    train = job.config.train
    with temporary_folder("ray") as notes:  # Ray's own; nothing is resumed from it
        scaling = ScalingConfig(
            num_workers=train.workers,
            elastic_resize_monitor_interval_s=RESIZE_EVERY_S,
            use_gpu=shape.device == "cuda",
            resources_per_worker=shape.resources,
        )
        settings = pack(job)
        # Empty but on a cluster that the program of the user has started or attached to.
        spin = spin_variables(os.environ)
        loader = [settings["loader"]]
        streams = RankStreams(loader, job.config.name, job.data_steps, job.task_cpus, job.buffer_bytes, spin)
        streams.prepare()  # while the controller and the workers start
        trainer = Trainer(
            train_worker,
            train_loop_config=settings,
            datasets={TRAIN: no_dataset},
            dataset_config=streams,
            torch_config=ProcessGroup(timeout_s=int(train.hang_timeout + HANG_MARGIN_S)),
            scaling_config=scaling,
            run_config=ray.train.RunConfig(
                name=ray_name(job.config.name),
                storage_path=notes,
                worker_runtime_env={"env_vars": spin} if spin else {},
                failure_config=FailureConfig(max_failures=train.max_failures),
                callbacks=[
                    SaveOnNotice(),
                    Watch(Board(job.board), train.hang_timeout),
                    Restarts(job.tags),
                    PrepareAgain(streams),
                    *callbacks,
                ],
            ),
        )
        trainer.failure_policy = Retries(failures, partial(saved_step, RunFolder.of(job.config).uri))
        trainer.look, trainer.hang_timeout_s, trainer.run_name = look, train.hang_timeout, job.config.name
        if train.is_elastic:
            trainer.scaling_policy = Elastic(scaling, train, shape, cluster_resources().trials, job.last)
        elif is_private():
            trainer.scaling_policy = OneNode(scaling)
        try:
            outcome: Outcome = trainer.fit().return_value
        except (KeyboardInterrupt, Stopped):
            is_main = threading.current_thread() is threading.main_thread()
            if not (is_main and disconnect()):  # other threads may train on the same private cluster
                trainer.abort()
            raise
        except RayError:
            trainer.withdraw_request()
            raise
    return outcome


class Trainer(TorchTrainer):
    """A TorchTrainer that looks for requests while it waits, in place of a handler of Ctrl-C.

    Attributes:
        look: called several times a second by `fit`.
        hang_timeout_s: seconds after which a worker that does not answer counts as lost.
        run_name: the run's name as the user gave it.
        failure_policy, scaling_policy: decide in the controller in place of Ray's, if they are set.
    """

    controller: Any = None
    look: Look
    hang_timeout_s: float
    run_name: str
    failure_policy: FailurePolicy | None = None
    scaling_policy: ScalingPolicy | None = None

    def _create_default_callbacks(self) -> list[RayTrainCallback]:
        """Leave out those of Ray's that start a process and do nothing here.

        The cleaner frees the places of a controller that has died: outside a sweep the end of the driver's job does, or
        `free_places`; the job of a sweep outlives its trials.
        """
        is_trial = ray.get_runtime_context().get_actor_id() is not None
        callbacks: list[RayTrainCallback] = super()._create_default_callbacks()
        return [each for each in callbacks if is_trial or not isinstance(each, PlacementGroupCleanerCallback)]

    def _initialize_and_run_controller(self, **arguments: Any) -> Any:
        for name, policy in {"failure_policy": self.failure_policy, "scaling_policy": self.scaling_policy}.items():
            if policy is not None:
                arguments[name] = policy
        here = {ray._raylet.RAY_NODE_ID_KEY: ray.get_runtime_context().get_node_id()}
        from_user = get_env_vars_to_propagate()
        settings = {
            "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC": "0",
            "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": str(self.hang_timeout_s),
            **from_user,
        }
        options: dict[str, Any] = {"num_cpus": 0, "label_selector": here}
        if variables := not_inherited(from_user):
            options["runtime_env"] = {"env_vars": variables}
        self.controller = ray.remote(**options)(TrainController).remote(settings, **arguments)
        end = self.controller.run.remote()
        with at_work(self.run_name):
            while not ray.wait([end], timeout=LOOK_EVERY_S)[0]:
                self.look()
            ray.get(end)
        return ray.get(self.controller.get_result.remote())

    @property
    def request(self) -> str:
        """Identifier of the controller's request for nodes, as Ray makes it."""
        return f"train-{self.train_run_context.run_id}"

    def abort(self) -> None:
        """End the workers and free their resources; for an exception that has come out of `fit`."""
        if self.controller is None:
            return
        try:
            ray.get(self.controller.abort.remote(), timeout=ABORT_S)
        except RayActorError:
            return  # it has ended itself, as it should
        except GetTimeoutError:  # it waits for nodes, and answers nobody
            ray.kill(self.controller)
            self.withdraw_request()
        free_places(self.controller._actor_id.hex())

    def withdraw_request(self) -> None:
        """Withdraw the request for nodes of a controller that has died; Ray would reserve them for three minutes."""
        if isinstance(self.scaling_policy, OneNode):
            return
        with suppress(RayError):
            coordinator = get_or_create_autoscaling_coordinator()
            ray.get(coordinator.cancel_request.remote(requester_id=self.request), timeout=1)
