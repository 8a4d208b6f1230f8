"""What each training worker does: device, method, restore, this rank's stream from the right step, fit."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray.cloudpickle
import ray.train
import ray.train.torch
import torch
from ray.train.collective import broadcast_from_rank_zero
from torch.optim import Optimizer

from raysl import dist
from raysl.checkpoint import TrainState
from raysl.config.schema import RunConfig
from raysl.data.batch import DataInfo
from raysl.data.corrupt import CorruptLog
from raysl.data.load import Loader
from raysl.data.pipeline import RayBatches
from raysl.data.source import Split
from raysl.memory import keep_freed_memory
from raysl.methods.method import Method
from raysl.nn.backbones.backbone import Backbone
from raysl.train.callbacks.callback import Callback
from raysl.train.callbacks.corrupt_images import CorruptImages
from raysl.train.callbacks.data_wait import DataWait
from raysl.train.callbacks.metrics_log import MetricsLog
from raysl.train.callbacks.online_knn import OnlineKNN
from raysl.train.callbacks.startup import Startup
from raysl.train.callbacks.stop import StopRequest
from raysl.train.callbacks.tensorboard import TensorBoard
from raysl.train.loop import NonFiniteLoss, fit
from raysl.train.plan import TrainPlan
from raysl.train.ray_reporter import RayReporter, local_logs
from raysl.train.run_folder import FAILED_FILE, STOP_FILE, RunFolder, note_event


@dataclass(frozen=True)
class Job:
    """What the driver sends to the workers: everything is resolved, so user files need not exist there.

    Args:
        config: the run's settings.
        data: the dataset.
        method_class, backbone_class, optimizer_class: behind the names in the settings.
        loader: makes the batches.
        test: held-out images for the online kNN, or None.
        lanes: fixed parts of a global batch.
        task_cpus: CPUs of a data task.
        marks: moments of the start so far, seconds since the epoch, by name.
    """

    config: RunConfig
    data: DataInfo
    method_class: type[Method]
    backbone_class: type[Backbone]
    optimizer_class: type[Optimizer]
    loader: Loader
    test: Split | None
    lanes: int
    task_cpus: float
    marks: dict[str, float]


def train_worker(settings: dict[str, Any]) -> None:
    """Train on this rank until the run ends. Ray Train calls it in every worker.

    A run whose loss stops being finite ends here by a note in its folder, not by an exception, which would be tried
    again.
    """
    job: Job = ray.cloudpickle.loads(settings["job"])
    marks = job.marks | {"workers": time.time()}
    device = ray.train.torch.get_device()
    plan = _plan(job, device)
    _prepare_process(job, device)
    state = TrainState.create(job.config, job.data, device, job.method_class, job.backbone_class, job.optimizer_class)
    folder = RunFolder.of(job.config)
    logs = local_logs(folder) if dist.is_main() else None
    reporter = RayReporter(folder, logs)
    restored = reporter.restore()
    if restored is not None:
        state.load(restored)
    if dist.is_main():
        _announce(plan, state, logs or Path(folder.path))
    corrupt = CorruptLog()
    broken = CorruptImages(corrupt, logs or Path(folder.path), int(job.config.data.max_corrupt * job.data.num_samples))
    callbacks = [broken, *_callbacks(job, plan, folder, logs or Path(folder.path), marks)]
    for callback in callbacks:
        callback.load_state_dict(state.callbacks.get(type(callback).__name__, {}))
    batches = RayBatches(
        loader=job.loader,
        total_steps=plan.total_steps,
        rank=dist.rank(),
        world=dist.world(),
        device=device,
        share=broadcast_from_rank_zero,
        task_cpus=job.task_cpus,
        prefetch=job.config.data.prefetch,
        buffer_bytes=None if job.config.data.buffer_gb is None else int(job.config.data.buffer_gb * 1e9),
        corrupt=corrupt,
    )
    model = dist.data_parallel(state.method)
    try:
        fit(state, model, plan, batches, callbacks=callbacks, reporter=reporter)
        failure = broken.failure
    except NonFiniteLoss as error:
        failure = str(error)
    if failure is not None and dist.is_main():
        folder.write(FAILED_FILE, failure.encode())


def _plan(job: Job, device: torch.device) -> TrainPlan:
    plan = TrainPlan.from_config(job.config, job.data.num_samples, dist.world(), device.type, job.lanes)
    if not job.config.train.uneven:
        plan.check_even()
    return plan


def _prepare_process(job: Job, device: torch.device) -> None:
    """Threads, and kernels that repeat."""
    context = ray.train.get_context()
    share = max(1, int(os.cpu_count() or 1) // context.get_local_world_size())
    threads = job.config.train.threads or (share if device.type == "cpu" else min(8, share))
    torch.set_num_threads(threads)
    if device.type == "cpu":
        keep_freed_memory()
    if job.config.train.deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False
    elif device.type == "cuda":
        torch.backends.cudnn.benchmark = True


def _announce(plan: TrainPlan, state: TrainState, logs: Path) -> None:
    """Note the start in events.jsonl, which the driver shows."""
    rows = str(plan.rows[0]) if len(set(plan.rows)) == 1 else f"{min(plan.rows)} to {max(plan.rows)}"
    where = f"{plan.world} worker(s) on {state.device.type}, {rows} images each, {torch.get_num_threads()} thread(s)"
    what = f"resumed at step {state.step}" if state.step else "started"
    note_event(logs, f"{what} on {where}")


def _callbacks(job: Job, plan: TrainPlan, folder: RunFolder, logs: Path, marks: dict[str, float]) -> list[Callback]:
    every = plan.log_every.steps(plan.total_steps, plan.epoch_len)
    callbacks: list[Callback] = [
        Startup(logs, marks),
        StopRequest(lambda: folder.exists(STOP_FILE), min(every, 10)),
    ]
    knn_every = job.config.train.online_knn_every
    if knn_every is not None and job.test is not None:
        callbacks.append(OnlineKNN(job.loader, job.test, job.data.num_classes, knn_every))
    return [*callbacks, DataWait(logs, job.loader.augment_in_task), MetricsLog(logs), TensorBoard(logs)]
