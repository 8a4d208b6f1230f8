"""Train a run from its settings to its last checkpoint, on the driver."""

import signal
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from raysl.checkpoint.checkpoint_folder import Kept, NewestCheckpoint, newest_whole
from raysl.cluster.board import Board
from raysl.cluster.connection import check_forked, cluster_resources, connect, count_gpus, is_private
from raysl.cluster.resources import WorkerShape, describe_bundles, run_bundles, worker_shape
from raysl.cluster.settings import use_settings
from raysl.cluster.waiting_for_nodes import wait_for_nodes
from raysl.config.arguments import instance, run_config, whole_number
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError, RunFailed, Stopped, StorageError, log
from raysl.plan.plan import TrainPlan
from raysl.process.cpus import Cpus, CpuTime
from raysl.process.environment import setting
from raysl.process.signals import Signals, handling_signals
from raysl.process.waiting import Waiting, waiting
from raysl.runs.begin import begin, claim_cpus
from raysl.runs.callbacks import tags_of
from raysl.runs.failures import FailureNotes, Outcome
from raysl.runs.folder import PROBE_FILE, STOP_FILE, RunFolder
from raysl.runs.follow import showing_progress
from raysl.runs.missing import MissingLines
from raysl.runs.ray_log import reporting_failures
from raysl.runs.stopping import Stopping, describe_stop, noting_end
from raysl.runs.trainer import UserCallback, run_workers, train_variables
from raysl.runs.worker import Job
from raysl.storage.folder import absolute, outlast
from raysl.storage.owner import Owner
from raysl.train.callbacks.corrupt_images import too_many
from raysl.train.callbacks.logs import read_metrics
from raysl.train.costs import CostCounter, counting_costs
from raysl.train.file_names import CORRUPT_FILE, STARTUP_FILE, parse_corrupt
from raysl.train.history import frame
from raysl.train.prepare import Measure, Prepared, continued, prepare

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A run after its training.

    Args:
        best: URI of the best checkpoint by the callback `checkpoint_keeper`, or None.
        metrics: the newest value of every logged number, and step and epoch of the checkpoint.
        history: a row for each logged line (`raysl.load_history`).
        is_done: whether the run has ended; False for a pause.
        counter: cost counter of this start; None for a run that was only read from its folder.
    """

    config: RunConfig
    folder: RunFolder
    checkpoint: str
    best: str | None
    metrics: dict[str, float]
    history: "pd.DataFrame"
    is_done: bool
    counter: CostCounter | None = None

    @classmethod
    def read(
        cls, config: RunConfig, is_done: bool, folder: RunFolder | None = None, counter: CostCounter | None = None
    ) -> "TrainedRun":
        """Read the logs and the newest checkpoint of a run, by default from the folder that its settings name.

        Raises:
            RunFailed: if no whole checkpoint is left.
        """
        folder = folder or RunFolder.of(config)
        lines = read_metrics(folder)
        metrics: dict[str, float] = {}
        for line in lines:
            metrics |= line
        newest = outlast(lambda: newest_whole(folder, ()))
        if newest.name is None:
            raise RunFailed(f"no whole checkpoint is left in {folder.uri}; start the same command again")
        # a run may pause at a step that has no logged line
        saved = newest.meta["metrics"]
        metrics |= {"step": newest.step} | {name: saved[name] for name in ("epoch",) if name in saved}
        best = outlast(lambda: Kept.read(folder).best_in(folder))
        return cls(
            config=config,
            folder=folder,
            checkpoint=folder.uri_of(newest.name),
            best=None if best is None else folder.uri_of(best),
            metrics=metrics,
            history=frame(lines),
            is_done=is_done,
            counter=counter,
        )


def train(config: RunConfig, measure: Measure | None = None) -> TrainedRun:
    """Train a run to its end and show nothing; see `training`."""
    with training(config, measure, show_progress=False, since=time.time()) as run:
        return run


@contextmanager
def training(
    config: RunConfig,
    measure: Measure | None = None,
    *,
    callbacks: Sequence[UserCallback] = (),
    show_progress: bool = True,
    until: int | None = None,
    stop: threading.Event | None = None,
    since: float | None = None,
) -> Iterator[TrainedRun]:
    """Train a run, then enter the block: there the folder is still locked, so that the run can be measured.

    Args:
        measure: function that checks the benchmarks and may add the online kNN; see `prepare`.
        callbacks, show_progress, stop: see `raysl.pretrain`.
        until: epochs after which training pauses.
        since: beginning of this start, in seconds since 1970; default: that of the command.
    """
    config = run_config(config)
    check_forked()
    if until is not None:
        until = whole_number(until, "until", 1, "an epoch to train to", f"1 to {config.train.epochs}, or nothing")
    if stop is not None:
        instance(stop, threading.Event, "stop", "a threading.Event, which another thread sets, or nothing")
    with handling_signals() as signals, waiting(show=show_progress) as waits:
        since = waits.since if since is None else since
        marks, cpu_time = {"command": since, "imports": time.time()}, CpuTime.now()
        waits.enter("reading the dataset")
        config = replace(config, storage=absolute(config.storage))
        folder = RunFolder.of(config)
        signals.left = f"it had not started yet; the same command starts it ({folder.uri})"
        config = folder.as_begun(config)
        # before the folder is made, so that wrong settings leave none behind
        run = prepare(config, measure)
        with folder.occupied() as owner:
            newest = begin(run, folder)
            with counting_costs(folder, since) as counter:
                run = continued(run, newest)
                signals.left = _describe_left(folder, newest.name)
                start = _Start(
                    run, folder, owner, newest, marks, cpu_time, callbacks, signals, waits, until, stop, counter
                )
                with noting_end(folder):
                    is_done = start.train()
                if is_done:
                    signals.left = "training is done; the same command goes on with the measurements"
                yield TrainedRun.read(run.setup.as_written, is_done, folder, counter)


@dataclass(frozen=True)
class _Start:
    """A start of a run: training from its newest checkpoint to its end, or to the epoch to pause at.

    Args:
        marks: times of this start's stages so far, in seconds since 1970, by name.
        cpu_time: CPU time used up to the beginning of this start.
    """

    run: Prepared
    folder: RunFolder
    owner: Owner | None
    newest: NewestCheckpoint
    marks: dict[str, float]
    cpu_time: CpuTime | None
    callbacks: Sequence[UserCallback]
    signals: Signals
    waits: Waiting
    until: int | None
    stop: threading.Event | None
    counter: CostCounter

    @property
    def plan(self) -> TrainPlan:
        """Steps, batches and epochs of the run."""
        return self.run.setup.plan

    @property
    def last(self) -> int:
        """Step at which this start ends."""
        epochs = self.until or self.run.config.train.epochs
        return min(self.plan.total_steps, epochs * self.plan.epoch_len)

    def train(self) -> bool:
        """Train the steps that are left, if any; return whether the run has ended."""
        folder, newest, total, name = self.folder, self.newest, self.plan.total_steps, self.run.config.name
        if newest.name is not None:
            _check_corrupt(self.run, folder, newest)
        # a run that a callback ended early stays ended, unless `train.extend` is set
        step, ended = newest.step, None if self.run.config.train.extend else newest.meta.get("ended")
        if step < self.last and ended is None:
            if step:
                log.info("resumed at step %d of %d", step, total)
            if self.stop is not None and self.stop.is_set():
                raise Stopped(describe_stop(step, total, newest.name, folder.uri))
            with setting(train_variables(self.run.config.train)):
                outcome = self._run_workers()
            step, ended = outcome.step, outcome.ended
            if step == total or ended is not None:
                self.folder.note(f"finished at step {step}" if ended is None else f"finished: {ended}", "finished")
        elif ended is not None:
            log.info("the run %s is finished: %s; train.extend=true goes on with it", name, ended)
        elif step == total:
            log.info("the run %s is finished: %d steps", name, total)
        self.waits.end()
        is_done = step == total or ended is not None
        if not is_done:
            log.info("the run %s pauses at step %d of %d", name, step, total)
        return is_done

    def _run_workers(self) -> Outcome:
        """Train on Ray's workers and return the outcome; raise an error if training failed or was stopped."""
        self.waits.enter("starting Ray")
        connect()
        use_settings(self.run.config.cluster)
        train, cluster = self.run.config.train, cluster_resources()
        shape = worker_shape(train, cluster)
        bundles = run_bundles(train, shape, cluster)
        wait_for_nodes(bundles, "workers", describe_bundles(bundles, train.least_workers))
        self.waits.enter("starting workers")
        job = self._job(shape)
        board = Board(job.board)
        # notes of an earlier start would stop the new workers, or announce their first step too early
        for note in (STOP_FILE, STARTUP_FILE):
            self.folder.remove(note)
        self.folder.write(PROBE_FILE, job.board.encode())
        with (
            showing_progress(self.folder, self.plan, self.waits, self.newest.step),
            reporting_failures(self.folder, board) as reporter,
            self.signals.saving(lambda: True),
            self.counter.holding(count_gpus(train)),
        ):
            notes, missing = FailureNotes(board), MissingLines(train, shape, self.folder.uri)
            request = Stopping(self.folder, board, self.signals, self.stop, self._describe_left)

            def poll() -> None:
                reporter.poll()
                missing.poll(notes.group()[1] == "waiting", time.monotonic())
                request.poll()

            outcome = run_workers(job, shape, self.callbacks, self.newest.step, poll)
        if outcome.failure is not None:
            raise self._failure(outcome)
        if request.is_requested or (outcome.step < self.last and outcome.ended is None):
            code = 128 + (self.signals.received or signal.SIGINT)
            saved, reason = _newest(self.folder), outlast(lambda: self.folder.read_if_there(STOP_FILE)).decode()
            raise Stopped(describe_stop(outcome.step, self.plan.total_steps, saved, self.folder.uri, reason), code)
        return outcome

    def _job(self, shape: WorkerShape) -> Job:
        augment_on, loader = self.run.config.data.augment_on, self.run.loader
        in_task = augment_on == "task" or (augment_on == "auto" and shape.device == "cpu")
        return Job(
            run=replace(self.run, loader=replace(loader, augment_in_task=in_task)),
            task_cpus=shape.task_cpus,
            board=uuid.uuid4().hex,
            owner=self.owner,
            marks=self.marks | {"ray": time.time()},
            resources=shape.resources,
            is_alone=is_private(),
            last=self.last,
            cpus=self._claim_cpus(shape),
            tags=tags_of(self.run.config, is_trial=cluster_resources().trials > 0),
        )

    def _claim_cpus(self, shape: WorkerShape) -> Cpus | None:
        """Return the numbers of CPUs that decide the run's threads; None if `train.threads` or the cluster decides.

        They are measured only when a run on CPUs begins in a private cluster. Elsewhere Ray shares out the CPUs.
        Trials of a sweep measure nothing, so that their numbers do not depend on how many run at a time.
        """
        if self.run.config.train.threads is not None:
            return None
        is_alone = shape.device == "cpu" and is_private() and cluster_resources().trials == 0
        return claim_cpus(self.folder, self.cpu_time if is_alone and self.newest.step == 0 else None)

    def _describe_left(self) -> str:
        """Describe what is kept if training ends now; do not wait for a storage that fails."""
        try:
            return _describe_left(self.folder, _last_good(newest_whole(self.folder, ()), self.newest))
        except StorageError:
            return f"the last checkpoint in {self.folder.uri} is kept; the same command goes on from there"

    def _failure(self, outcome: Outcome) -> Exception:
        assert outcome.failure is not None
        if outcome.is_input_wrong:
            return ConfigError(outcome.failure)
        saved = _newest(self.folder)
        left = f"the last good checkpoint is {self.folder.uri_of(saved)}" if saved else "no checkpoint was saved"
        return RunFailed(f"{outcome.failure}; {left}")


def _describe_left(folder: RunFolder, checkpoint: str | None) -> str:
    if checkpoint is None:
        return f"nothing was saved yet; the same command starts it again ({folder.uri})"
    return f"{folder.uri_of(checkpoint)} is the last checkpoint; the same command goes on from there"


def _last_good(last: NewestCheckpoint, first: NewestCheckpoint) -> str | None:
    """Return the name of the checkpoint that the next start takes, without hashing files again.

    Args:
        last: newest checkpoint that has a `meta.json`.
        first: checkpoint that this start went on from; its `passed_over` names the damaged ones.
    """
    is_damaged = any(reason.startswith(f"{last.name}:") for reason in first.passed_over)
    return first.name if is_damaged else last.name


def _newest(folder: RunFolder) -> str | None:
    """Return the name of the newest whole checkpoint."""
    return outlast(lambda: newest_whole(folder, ())).name


def _check_corrupt(run: Prepared, folder: RunFolder, newest: NewestCheckpoint) -> None:
    """Fail if the run has stopped for too many corrupt images and `data.max_corrupt` still forbids as many."""
    limit = run.setup.max_corrupt
    if newest.meta["metrics"].get("corrupt_images", 0) > limit:
        raise RunFailed(too_many(parse_corrupt(folder.read_if_there(CORRUPT_FILE)), limit))
