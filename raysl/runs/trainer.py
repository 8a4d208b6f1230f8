"""Ray Train's trainer with the settings of a run: it starts the workers, and again after failures."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.train import ControllerError, FailureConfig, Result, RunConfig, ScalingConfig, TrainingFailedError
from ray.train import UserCallback as UserCallback
from ray.train.torch import TorchConfig, TorchTrainer

from raysl.cluster.board import Board, at_work
from raysl.cluster.connection import disconnect, inherited_settings, is_private, not_inherited
from raysl.cluster.failures import is_late_start, reason
from raysl.cluster.names import ray_name
from raysl.cluster.private import train_fast
from raysl.cluster.resources import WorkerShape
from raysl.config.schema import TrainConfig
from raysl.errors import CodeError, RunFailed, Stopped
from raysl.process.cpus import thread_variables
from raysl.process.temporary import temporary_folder
from raysl.runs.callbacks import LOOK_EVERY_S as RESIZE_EVERY_S
from raysl.runs.failures import Failure, FailureCount, FailureNotes, Outcome
from raysl.runs.rank_streams import TRAIN, NewGroup, PrepareAgain, RankStreams
from raysl.runs.watch import FailureWatch, saved_step
from raysl.runs.worker import Job, pack, train_worker

ABORT_S = 1.5
CONTROLLER_S = 15.0
"""Seconds for which a run that is stopped waits until Ray Train's controller has started and can be ended."""
LOOK_EVERY_S = 0.3
HANG_MARGIN_S = 10.0
"""Seconds after `train.hang_timeout` in which Ray Train names a worker that does not answer, before torch gives up."""
START_S = 15.0
"""Seconds after which Ray Train tries another number of workers where those of an elastic run have no place."""


def run_workers(
    job: Job,
    shape: WorkerShape,
    callbacks: Sequence[UserCallback] = (),
    step: int = 0,
    poll: Callable[[], None] = lambda: None,
) -> Outcome:
    """Start workers, and return how their training ended.

    Ray Train starts workers again after they have failed. It ends where it could not start them, or where its own
    controller is lost; then it is started again here.

    Args:
        step: step of the checkpoint from which they go on.
        poll: function that is called several times a second; an error in it ends the workers and is raised here.

    Raises:
        CodeError: if code raised an exception in a worker or a data task.
        RunFailed: if workers or Ray Train's controller failed too often without a saved step between two failures.
    """
    notes, settings = FailureNotes(Board(job.board)), pack(job)
    # Empty but on a cluster that the program of the user has started or attached to.
    variables = thread_variables(os.environ)
    # a data task's work, as the dashboard shows it
    steps = "DecodeCropAugment" if job.run.loader.augment_in_task else "DecodeCrop"
    buffer_gb = job.config.data.buffer_gb
    buffer_bytes = None if buffer_gb is None else int(buffer_gb * 1e9)
    name = ray_name(job.config.name)
    streams = RankStreams([settings["loader"]], name, steps, job.task_cpus, buffer_bytes, variables)
    with temporary_folder("ray") as folder:  # Ray's own; nothing is resumed from it
        trainer = _trainer(job, shape, step, settings, streams, callbacks, folder)
        while True:
            noted = len(notes.names())
            streams.prepare()  # while the controller and the workers start
            try:
                return _run_workers(trainer, job.config.name, notes, poll)
            except (TrainingFailedError, RayError) as error:
                if (placed := notes.handle("placement_group")) is not None:
                    ray.util.remove_placement_group(placed)  # Ray Train's own way needs a dashboard
                group, _ = notes.group()
                has_told = group > 0 and any(each.group == group for each in notes.all()[noted:])
                if not has_told and not is_late_start(error):  # else it waits for nodes
                    _note_failure(notes, job, step, error)
                if (last := next((each for each in reversed(notes.all()) if each.end), None)) is not None:
                    raise _as_error(last) from error
            # the same trainer again: a new one would ask for workers beside those that a lost controller has asked for
            shutil.rmtree(f"{folder}/{name}", ignore_errors=True)


def _note_failure(notes: FailureNotes, job: Job, step: int, error: Exception) -> None:
    """Note what ended Ray Train."""
    is_start = isinstance(error, ControllerError)
    what = "no group of workers could be started" if is_start else "lost the controller of the run"
    count, saved = FailureCount.of(notes.all(), job.config.train.max_failures, step), saved_step(job.folder().uri)
    is_retried, (group, _) = count.add(saved), notes.group()
    text = f"{what}: {reason(error)}; {count.describe(is_retried)}"
    notes.add(Failure(time.time(), text, str(error), notes.step(), group, None if is_retried else "count", saved))
    notes.write_group(group, "waiting")


_AGAIN = "start the same command again to resume"
_MEND = f"a retry would meet it again; mend it and {_AGAIN}; the traceback is in ray.log in the folder of the run"


def _as_error(failure: Failure) -> Exception:
    if failure.end == "code":
        return CodeError(f"training failed: {failure.text}; {_MEND}")
    return RunFailed(f"training failed: {failure.text}{f'; {_AGAIN}' if failure.end == 'count' else ''}")


def train_variables(train: TrainConfig) -> dict[str, str]:
    """Return the settings of Ray Train that are variables of the environment."""
    start = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
    variables = {"RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": f"{train.hang_timeout:g}"}
    return variables | ({start: os.environ.get(start, f"{START_S:g}")} if train.is_elastic else {})


def _trainer(
    job: Job, shape: WorkerShape, step: int, settings: dict[str, Any], streams: RankStreams, callbacks: Any, folder: str
) -> TorchTrainer:
    train, hang_s, inherited = job.config.train, job.config.train.hang_timeout + HANG_MARGIN_S, None
    if is_private():
        train_fast(is_private, not_inherited)
        inherited = inherited_settings()
    watch = FailureWatch(
        FailureNotes(Board(job.board)), job.folder().uri, train.max_failures, step, hang_s, job.tags, inherited
    )
    return TorchTrainer(
        train_worker,
        train_loop_config=settings,
        datasets={TRAIN: NewGroup(job.board)},
        dataset_config=streams,
        torch_config=TorchConfig(timeout_s=int(hang_s)),
        scaling_config=ScalingConfig(
            num_workers=train.workers,
            elastic_resize_monitor_interval_s=RESIZE_EVERY_S,
            use_gpu=shape.device == "cuda",
            resources_per_worker=shape.resources,
        ),
        run_config=RunConfig(
            name=ray_name(job.config.name),
            storage_path=folder,
            worker_runtime_env={"env_vars": streams.variables} if streams.variables else {},
            # `FailureWatch` ends a run that has failed too often; this process tells of starts that fail.
            failure_config=FailureConfig(max_failures=-1, controller_failure_limit=0),
            callbacks=[watch, PrepareAgain(streams), *callbacks],
        ),
    )


def _run_workers(trainer: TorchTrainer, run: str, notes: FailureNotes, poll: Callable[[], None]) -> Outcome:
    """Start Ray Train's controller, and return what its main worker returns."""
    # other threads may train on the same private cluster
    is_last = is_private() and threading.current_thread() is threading.main_thread()
    end: Future[Result] = Future()
    try:
        with at_work(run):
            outcome: Outcome = _fit(trainer, end, poll, notes, 0.0 if is_last else ABORT_S).return_value
    except (KeyboardInterrupt, Stopped):
        # Ray ends a process, without a word, in which a thread waits while it is disconnected
        if is_last and end.done():
            disconnect()
        raise
    return outcome


def _fit(
    trainer: TorchTrainer, end: Future[Result], poll: Callable[[], None], notes: FailureNotes, patience_s: float
) -> Result:
    """Train in another thread, since Ray Train handles Ctrl-C in the main one, and look for requests meanwhile."""

    def fit() -> None:
        try:
            end.set_result(trainer.fit())
        except Exception as error:  # noqa: BLE001 - whatever it is, `result` raises it
            end.set_exception(error)

    threading.Thread(target=fit, name="raysl-fit", daemon=True).start()
    try:
        while not wait([end], LOOK_EVERY_S).done:
            poll()
    except (KeyboardInterrupt, Stopped):
        _abort(notes, end, patience_s)
        wait([end], ABORT_S)
        raise
    return end.result()


def _abort(notes: FailureNotes, end: Future[Result], patience_s: float) -> None:
    """End the workers and free their resources; Ray Train has `patience_s` seconds to do so itself."""
    begun = time.monotonic()
    # a stop may come before the controller has started and noted its handle
    while (controller := notes.handle("controller")) is None:
        if wait([end], LOOK_EVERY_S).done or time.monotonic() - begun > CONTROLLER_S:
            return
    try:
        ray.get(controller.abort.remote(), timeout=patience_s)
    except RayActorError:
        return  # it has ended itself, as it should
    except GetTimeoutError:  # it waits for nodes, and answers nobody
        ray.kill(controller)
