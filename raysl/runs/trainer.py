"""Ray Train's trainer: it starts a run's workers, and leaves Ctrl-C to us."""

from collections.abc import Sequence
from typing import Any

import ray
import ray.train
from ray.exceptions import GetTimeoutError, RayActorError
from ray.train import FailureConfig, ScalingConfig
from ray.train import UserCallback as UserCallback
from ray.train.torch import TorchTrainer
from ray.train.v2.api.exceptions import TrainingFailedError

from raysl.cluster.connection import disconnect
from raysl.cluster.resources import WorkerShape
from raysl.errors import RunFailed
from raysl.process.temporary import temporary_folder
from raysl.runs.worker import Job, Outcome, train_worker

ABORT_S = 10.0


def run_workers(job: Job, shape: WorkerShape, callbacks: Sequence[UserCallback] = ()) -> Outcome:
    """Start workers, and return how their training ended.

    Args:
        job: what the workers do.
        shape: device and resources of a worker.
        callbacks: observers of Ray Train's, called in its controller.

    Raises:
        RunFailed: if workers were lost too often, or one raised an exception at each try.
    """
    with temporary_folder("ray") as notes:  # Ray's own; nothing is resumed from it
        trainer = Trainer(
            train_worker,
            train_loop_config={"job": ray.cloudpickle.dumps(job)},  # Ray Train's controller need not import it
            scaling_config=ScalingConfig(
                num_workers=job.config.train.workers,
                use_gpu=shape.device == "cuda",
                resources_per_worker=shape.resources,
            ),
            run_config=ray.train.RunConfig(
                name=job.config.name.encode("ascii", "replace").decode().replace("?", "_"),  # Ray takes no others
                storage_path=notes,
                failure_config=FailureConfig(max_failures=job.config.train.max_failures),
                callbacks=list(callbacks),
            ),
        )
        try:
            outcome: Outcome = trainer.fit().return_value
        except KeyboardInterrupt:
            if not disconnect():
                trainer.abort()
            raise
        except TrainingFailedError as error:
            raise RunFailed(f"training failed: {_root_cause(error)}; start the same command again to resume") from error
    return outcome


def _root_cause(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[-1] if text else type(error).__name__


class Trainer(TorchTrainer):
    """A TorchTrainer without its handler of Ctrl-C, which would end the run without a checkpoint."""

    controller: Any = None

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
