"""One start of a sweep: it runs the trials that are left, tells how they go, and keeps the leaderboard up to date."""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from raysl.cluster.connection import cluster_resources, connect
from raysl.cluster.resources import TRIAL_CPUS, most_trials, run_bundles, worker_shape
from raysl.cluster.settings import use_settings
from raysl.cluster.waiting_for_nodes import growth_now, wait_for_nodes
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError, Stopped, log
from raysl.process.screen import counted
from raysl.process.waiting import waiting
from raysl.storage.folder import without_waiting
from raysl.sweeps.checks import check_reported
from raysl.sweeps.problems import ProblemsByName
from raysl.sweeps.record import Note, Record
from raysl.sweeps.run_trial import failed_note
from raysl.sweeps.stage import Stage
from raysl.sweeps.tuning import run_all
from raysl.sweeps.view import STARTING, SweepView

if TYPE_CHECKING:
    from raysl.sweeps.run import SweepRun

QUICK_START_S = 15.0
"""Seconds after which a trial that starts may be waiting for nodes."""


class SweepStart:
    """One start of a sweep.

    Attributes:
        problem: error that ends the sweep.
    """

    def __init__(self, plan: "SweepRun") -> None:
        self.plan = plan
        self.problem: ConfigError | None = None
        self.has_warned = False
        self.has_reported = len(plan.bases) > 1  # what some configurations report, others need not

    def run(self, signals: Any) -> None:
        """Run the trials that are left."""
        plan = self.plan
        with waiting() as waits:
            waits.enter("starting Ray")
            connect(with_state=True)
            self.concurrent, bases = self._room()
            waits.end()
        log.info(plan.progress.outlook(plan.trained, self.concurrent))
        self.stage = stage = Stage(plan.replay, bases, plan.folder, self.concurrent, self._report)
        self.view = SweepView()

        def save() -> bool:
            print("raysl: the trials save and stop; once more to end at once", file=sys.stderr, flush=True)
            stage.is_ending = True
            return True

        try:
            with signals.saving(save), self.view:
                run_all(stage, plan.sweep.retries, plan.sweep.checkpoints)
        except Exception:
            self._write_stopped()
            raise
        if not stage.is_ending or (self.problem is None and self._is_done()):
            return
        self._write_stopped()
        if self.problem is not None:
            raise self.problem
        raise Stopped(
            f"stopped after {counted(plan.progress.num_ended, 'trial')}; the same command runs those that are left",
            128 + (signals.received or 2),
        )

    def _is_done(self) -> bool:
        """Whether no trial is left of a sweep that was asked to end, as where that came during the last one."""
        replay, progress = self.plan.replay, self.plan.progress
        if self.plan.sweep.scheduler == "population" and progress.num_ended < progress.num_trials:
            return False  # drawing the next part would fork a run
        try:
            with without_waiting():
                return replay.next() is None and replay.is_done()
        except ConfigError as error:
            log.debug("whether a trial is left is not known: %s", error)
            return False

    def _write_stopped(self) -> None:
        """Write the leaderboard of a sweep that ends before its end; log a storage that fails."""
        try:
            with without_waiting():
                self.plan.board.write("stopped")
        except ConfigError as error:
            log.warning("the leaderboard is not written: %s; the next start of the sweep writes it", error)

    def _room(self) -> tuple[int, dict[str, RunConfig]]:
        use_settings(self.plan.base.cluster)
        have = cluster_resources()
        sweep = self.plan.sweep
        num = sweep.concurrent or min(most_trials(base.train, have) for base in self.plan.bases.values())
        bases, bundles, problems = {}, [], ProblemsByName()
        for name, base in self.plan.bases.items():
            with problems.catching(name):
                share = worker_shape(base.train, have.shared(num))
                bundles.append([*run_bundles(base.train, share, have.shared(num)), {"CPU": TRIAL_CPUS}])
                bases[name] = replace(base, train=replace(base.train, cpus_per_worker=share.cpus))
        problems.check()
        wait_for_nodes(bundles[0], "the first trial")  # room for one is enough: the others start as nodes come
        is_greedy = any(base.train.threads is None and base.train.device != "cuda" for base in bases.values())
        if num > 1 and is_greedy and have.gpus == 0:
            log.info("each of %d trials at a time takes a thread a core of its machine; try train.threads=1", num)
        return num, bases

    def _report(self, record: Record | None) -> None:
        """Tell how the sweep goes, or that a trial has ended; called by the thread that runs the stage."""
        progress, board = self.plan.progress, self.plan.board
        if record is not None:
            self._tell_end(record)
        rows, state = progress.rows(self.stage), progress.state(self.concurrent, self.stage.begun)
        is_waiting = any(row.phase == STARTING and row.seconds > QUICK_START_S for row in rows)
        if is_waiting and (growth := growth_now()):
            state += f"; {growth}"
        self.view.show(rows, state)
        board.write_now_and_then(force=record is not None)

    def _tell_end(self, record: Record) -> None:
        line = self.plan.progress.line(record, self.concurrent, self.stage.begun)
        if record.failure is not None:
            log.warning("%s: %s; it is not tried again, and the others go on", line, record.failure)
            self._note_failure(record)
            return
        log.info(line)
        if record.verdict is not None and not record.course.values and not self.has_warned:
            self.has_warned = True
            log.warning(
                "%s has logged no %s by epoch %g, so there is nothing to compare; log more often, train.log_every=1ep",
                record.trial.name,
                self.plan.sweep.early.metric,
                record.verdict.epoch,
            )
        if record.note is not None and not self.has_reported:
            self._check_reported(record, record.note)

    def _check_reported(self, record: Record, note: Note) -> None:
        """End the sweep if the first trial that has ended lacks the numbers that rank."""
        self.has_reported = True
        sweep = self.plan.sweep
        wanted = sweep.objectives if record.trial.until is None else [sweep.early]
        try:
            check_reported(wanted, {**note.metrics, **note.costs})
        except ConfigError as error:
            self.problem = error
            self.stage.is_ending = True

    def _note_failure(self, record: Record) -> None:
        """Note why a trial failed for good, for the leaderboard now and in its folder as soon as that takes it."""
        name, plan, reason = record.trial.name, self.plan, record.failure or ""
        config = record.trial.run_of(plan.bases, plan.folder.uri)
        try:
            with without_waiting():
                note = failed_note(config, reason)
        except ConfigError:
            note = Note("failed", record.epochs, record.logged.reached, record.logged.newest(), reason=reason)
        record.note = record.last = note
        folder = plan.folder.child(name)

        def write() -> None:
            folder.make()
            note.write(folder)

        self.stage.outbox.put(f"the note of {name}", write)
