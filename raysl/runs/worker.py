"""Train on one worker: set up the process, restore the state, read this rank's batches from that step, call `fit`."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import ray
import ray.train
import ray.train.torch
import ray.util
import torch
from ray.exceptions import RayError

from raysl import distributed as dist
from raysl.checkpoint.checkpoint_folder import read_meta
from raysl.cluster.board import Board, receive_files
from raysl.cluster.names import ray_name
from raysl.config.schema import RunConfig
from raysl.data.decode.corrupt import CorruptLog
from raysl.data.stream.loader import Loader
from raysl.data.stream.pipeline import RayBatches
from raysl.errors import ConfigError, RunFailed, StorageError
from raysl.methods.shared.device import prepare_device
from raysl.plan.plan import TrainPlan
from raysl.plan.reference import describe_scaling
from raysl.process.code_errors import explaining_code
from raysl.process.cpus import Cpus
from raysl.process.memory import keep_freed_memory
from raysl.runs.callbacks import Presence, RayMetrics, SaveForNewNodes, note_place
from raysl.runs.failures import FailureNotes, Outcome
from raysl.runs.folder import PROBE_FILE, STOP_FILE, RunFolder
from raysl.runs.group_start import announce, find_folder, note_failed
from raysl.runs.rank_streams import TRAIN
from raysl.runs.ray_reporter import RayReporter, local_logs
from raysl.storage.folder import Folder
from raysl.storage.owner import Owner
from raysl.train.callbacks.callback import Callback
from raysl.train.callbacks.corrupt_images import CorruptImages
from raysl.train.callbacks.held_out import HeldOut
from raysl.train.callbacks.logs import MetricsLog, OnDisk, Startup
from raysl.train.callbacks.online_probe import OnlineProbe
from raysl.train.callbacks.reconstructions import Reconstructions
from raysl.train.callbacks.stop import Pause, StopRequest
from raysl.train.callbacks.tensorboard import TensorBoard
from raysl.train.callbacks.watch import CollapseWatch, DataWait
from raysl.train.disk import Disk
from raysl.train.file_names import DATA_STATS_FILE
from raysl.train.loop import fit
from raysl.train.prepare import Prepared
from raysl.train.process import import_compiler_meanwhile, repeat_kernels
from raysl.train.state import TrainState

NO_CPUS = (
    "no CPU of the cluster is free for data tasks: this run's workers or other work hold them all; the workers prepare "
    "the next images themselves, slowly; end other work, or lower train.workers or train.cpus_per_worker"
)


@dataclass(frozen=True)
class Job:
    """A run as the driver sends it to the workers. All names are resolved, so workers need no files of the user.

    Args:
        board: key of the `Board` with the notes of this start's processes; it is in the run's folder too.
        marks: times of this start's stages so far, in seconds since 1970, by name.
        is_alone: whether the run has a private cluster, which gets and loses no nodes.
        last: step at which this start ends; None for the last step of the run.
        cpus: numbers of CPUs that decide the threads, on machines like that of the first start; None for all CPUs.
        tags: tags of the run's numbers in Ray's metrics.
    """

    run: Prepared
    task_cpus: float
    board: str
    owner: Owner | None
    marks: dict[str, float]
    resources: dict[str, float]
    is_alone: bool
    last: int | None = None
    cpus: Cpus | None = None
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def config(self) -> RunConfig:
        """The run's settings."""
        return self.run.config

    def folder(self) -> RunFolder:
        """Return the run's folder; it counts as gone if the driver's note is not in it."""
        folder = RunFolder.of(self.config)
        folder.sign = f"{folder.path}/{PROBE_FILE}" if folder.is_local else None
        return folder


def pack(job: Job) -> dict[str, Any]:
    """Put a job into Ray's object store, and its loader, which lists all files of the dataset, as a second object.

    Workers and data tasks get references. Ray Train's controller need not import the classes of these objects.

    Raises:
        ConfigError: if a split or a recipe of views holds what cannot be sent to another process.
    """
    without_images = replace(job, run=replace(job.run, loader=cast(Loader, None), test=None))
    try:
        loader = ray.put(replace(job.run.loader, held_out=job.run.test))
    except TypeError as error:
        kinds = dict.fromkeys(kind.__qualname__ for kind in job.run.loader.split.readers())
        raise ConfigError(
            f"the images cannot be sent to workers: {error.__cause__ or error} ({', '.join(kinds)}); a split or a "
            "recipe holds paths and numbers, and makes files, locks and connections where it reads"
        ) from error
    return {"job": ray.put(without_images), "loader": loader}


def unpack(settings: dict[str, Any]) -> Job:
    """Return the job that `pack` has put into the object store."""
    receive_files()
    job: Job = ray.get(settings["job"])
    loader: Loader = ray.get(settings["loader"])
    return replace(job, run=replace(job.run, loader=loader, test=loader.held_out))


@explaining_code()
def train_worker(settings: dict[str, Any]) -> Outcome:
    """Train on this rank until the run ends. Ray Train calls it in every worker.

    Ray Train tries again after an exception. So a failure that would happen again, such as a loss that is not finite,
    is returned and not raised.
    """
    job = unpack(settings)
    board = Board(job.board)
    notes = FailureNotes(board)
    compiler = import_compiler_meanwhile(job.config.train, dist.world())
    marks = job.marks | {"workers": time.time()}
    folder = job.folder()
    device = ray.train.torch.get_device()
    note_place(notes)
    try:
        find_folder(folder, board)
        _prepare_process(job, device)
    except StorageError as error:
        return Outcome(0, str(error))
    except ConfigError as error:
        return Outcome(0, str(error), is_input_wrong=True)
    setup = replace(job.run.setup, plan=_plan(job, device))
    plan = setup.plan
    logs = local_logs(folder) if dist.is_main() else Path(folder.path)
    disk = Disk(logs, folder if folder.is_local and dist.is_main() else None)
    reporter = RayReporter(folder, disk, job.config.train.keep_checkpoints, job.owner)
    corrupt, checkpoint = CorruptLog(), reporter.restore()
    # only the step is read here: data tasks begin before the tensors are loaded
    first = 0 if checkpoint is None else int(read_meta(Folder(str(checkpoint)))["step"])
    on_starved = cache(partial(disk.note, NO_CPUS)) if dist.is_main() else None
    batches = _batches(job, settings["loader"], plan, device, corrupt, first, on_starved)
    if compiler is not None:
        compiler.join()  # the network may use modules of torch that this thread still imports
    state = TrainState.create(setup, device, job.run.classes, is_new=checkpoint is None)
    if checkpoint is not None:
        state.load(checkpoint)
    # only rank 0 uses the addresses, but every rank has to join the collective call
    nodes = dist.gather_objects(ray.util.get_node_ip_address())
    if dist.is_main():
        failed_step = None
        with disk.writing():
            failed_step = note_failed(notes, logs)
        announce(plan, state, nodes, disk, failed_step)
        if scaling := describe_scaling(setup.as_written):
            disk.note(scaling)
        reporter.put_logs()
    broken = CorruptImages(corrupt, disk, setup.max_corrupt)
    writers = OnDisk([MetricsLog(logs), TensorBoard(logs), RayMetrics(job.tags)], disk)
    watching = [
        Startup(disk, marks, reporter.put_logs),
        DataWait(disk, job.run.loader.augment_in_task),
        CollapseWatch(disk),
    ]
    measuring = [*_callbacks(job, folder, disk, batches), *([] if job.last is None else [Pause(job.last)])]
    # corrupt images are counted first; the writers come last, so that they write what the others have logged
    callbacks = [broken, *measuring, *job.run.callbacks, *watching, writers, Presence(notes)]
    for callback in callbacks:
        callback.load_state_dict(state.callbacks.get(callback.state_key, {}))
    train = job.config.train
    model = dist.data_parallel(state.method, train.bucket_mb, train.static_graph, train.compress_gradients)
    try:
        fit(state, model, plan, batches, callbacks=callbacks, reporter=reporter)
        _end_stream(batches, disk)
        reporter.finish()
        if dist.is_main():
            notes.write_group(notes.group()[0], "done")
    except RunFailed as error:
        if isinstance(error, RayError):  # a data task of this rank failed; the other ranks wait for this one
            raise
        reporter.put_logs()
        return Outcome(state.step, str(error))
    except StorageError as error:
        failure = disk.failure or f"what was trained up to step {state.step} could not be stored: {error}"
        return Outcome(state.step, failure)
    except ConfigError as error:
        if dist.world() > 1:  # the other ranks wait for this one until Ray Train ends them
            raise
        return Outcome(state.step, str(error), is_input_wrong=True)
    finally:
        batches.end()
    return Outcome(state.step, broken.failure or disk.failure, ended=state.ended)


def _end_stream(batches: RayBatches, disk: Disk) -> None:
    """End this rank's stream; rank 0 notes the costs of its images."""
    costs, stats = batches.end()
    if dist.is_main() and stats:
        with disk.writing():
            (disk.logs / DATA_STATS_FILE).write_text(stats)
        disk.note(f"images of worker 0: {costs}")


def _plan(job: Job, device: torch.device) -> TrainPlan:
    setup = job.run.setup
    plan = TrainPlan.from_config(job.config, setup.data.num_samples, dist.world(), device.type, setup.plan.lanes)
    if not job.config.train.is_uneven_allowed:
        plan.check_even()
    return plan


def _prepare_process(job: Job, device: torch.device) -> None:
    """Set threads, precision and deterministic kernels."""
    cpus = Cpus.here()
    # the numbers of the first start hold only for machines with as many CPUs
    if job.cpus is not None and job.cpus.usable == cpus.usable:
        cpus = job.cpus
    share = cpus.threads(ray.train.get_context().get_local_world_size())
    torch.set_num_threads(job.config.train.threads or (share if device.type == "cpu" else min(8, share)))
    if device.type == "cpu":
        keep_freed_memory()
    prepare_device(job.config.train, device)
    repeat_kernels(job.config.train.deterministic)


def _batches(
    job: Job,
    reference: Any,
    plan: TrainPlan,
    device: torch.device,
    corrupt: CorruptLog,
    step: int,
    on_starved: Callable[[], object] | None,
) -> RayBatches:
    """Return this rank's batches from `step` on; data tasks prepare them at once, while the network is built."""
    loader = job.run.loader
    batches = RayBatches(
        loader=loader,
        total_steps=plan.total_steps,
        rank=dist.rank(),
        world=dist.world(),
        device=device,
        reference=reference,
        shard=ray.train.get_dataset_shard(TRAIN),
        task_cpus=job.task_cpus,
        name=ray_name(job.config.name),
        corrupt=corrupt,
        on_starved=on_starved or (lambda: None),
    )
    batches.begin(step)
    return batches


def _has_notice(notes: FailureNotes) -> bool:
    """Whether the cloud is about to take away a node of this group of workers; all ranks call it together."""
    if not hasattr(ray.train, "get_preemption_info") or ray.train.get_preemption_info() is None:
        return False
    if dist.is_main():
        notes.note_notice()
    return True


def _callbacks(job: Job, folder: RunFolder, disk: Disk, batches: RayBatches) -> list[Callback]:
    run, train = job.run, job.run.config.train
    stop = StopRequest(
        lambda: STOP_FILE in folder.versions(),
        look_every_s=folder.look_every_s,
        has_failed=lambda: disk.failure is not None,
        has_notice=None if job.is_alone else partial(_has_notice, FailureNotes(Board(job.board))),
    )
    callbacks: list[Callback] = [stop]
    if train.is_elastic and not job.is_alone:
        callbacks.append(SaveForNewNodes(job.resources, train.most_workers))
    num_classes, read = run.setup.data.num_classes, batches.chosen
    if (every := train.online_knn_every) is not None and run.online_knn is not None and run.test is not None:
        callbacks.append(run.online_knn(run.loader, run.test, num_classes, every, read, train.online_rank))
    if (every := train.online_probe) is not None:
        held_out = None if run.test is None else (run.test, read)
        callbacks.append(OnlineProbe(num_classes, every, train.online_probe_lr, held_out))
    if (every := train.eval_every) is not None and run.has_held_out and run.test is not None:
        callbacks.append(HeldOut(run.loader, run.test, every))
    if (every := train.reconstruct_every) is not None and run.has_reconstructions:
        split = run.loader.split if run.test is None else run.test
        callbacks.append(Reconstructions(run.loader, split, run.test is not None, every))
    return callbacks
