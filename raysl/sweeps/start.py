"""One start of a sweep: it runs the trials that are left, tells how they go, and keeps the leaderboard up to date."""

import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from raysl.cluster.connection import cluster_resources, connect
from raysl.cluster.resources import TRIAL_CPUS, most_trials, run_bundles, worker_shape
from raysl.cluster.settings import use_settings
from raysl.cluster.waiting_for_nodes import growth_now, wait_for_nodes
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError, Problems, Stopped, did_you_mean, log
from raysl.process.screen import console, counted, duration, warnings_named
from raysl.process.waiting import waiting
from raysl.report.contents import is_beside
from raysl.storage.folder import without_waiting
from raysl.sweeps.record import STARTING, Record
from raysl.sweeps.tuning import Ending, run_stage
from raysl.tune.trial import Note

if TYPE_CHECKING:
    from raysl.sweeps.run import SweepRun

QUICK_START_S = 15.0  # after which a trial that starts may be waiting for nodes


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
        self.ending = Ending()

    def run(self, signals: Any) -> None:
        """Run the trials that are left."""
        plan = self.plan
        with waiting() as waits:
            waits.enter("starting Ray")
            connect(with_state=True)
            self.concurrent, self.bases = self._room()
            waits.end()
        log.info(plan.progress.outlook(plan.trained, self.concurrent))
        self.view = SweepView(plan.sweep.objectives[0].metric)

        def save() -> bool:
            print("raysl: the trials save and stop; once more to end at once", file=sys.stderr, flush=True)
            self.ending.is_set = True
            return True

        plan.ledger.on_update = self._report
        try:
            with signals.saving(save), self.view.screen:
                with plan.ledger.following():
                    run_stage(self)
                if not self.ending.is_set and (further := plan.further_seeds()):
                    with plan.ledger.following():
                        run_stage(self, further)
        except Exception:
            self._write_stopped()
            raise
        if not self.ending.is_set or (self.problem is None and plan.progress.num_ended >= plan.progress.num_trials):
            return
        self._write_stopped()
        if self.problem is not None:
            raise self.problem
        raise Stopped(
            f"stopped after {counted(plan.progress.num_ended, 'trial')}; the same command runs those that are left",
            128 + (signals.received or 2),
        )

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
        bases, bundles, problems = {}, [], Problems()
        for name, base in self.plan.bases.items():
            with problems.catching(name), warnings_named(name):
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
        """Tell how the sweep goes, or that a trial has ended; called by the thread of the ledger."""
        progress, board = self.plan.progress, self.plan.board
        if record is not None:
            self._tell_end(record)
        rows, state = progress.running, progress.state()
        is_waiting = any(row.progress == STARTING and time.time() - row.began > QUICK_START_S for row in rows)
        if is_waiting and (growth := growth_now()):
            state += f"; {growth}"
        self.view.show(rows, state)
        board.write_now_and_then(force=record is not None)

    def _tell_end(self, record: Record) -> None:
        line = self.plan.progress.line(record)
        if record.failure is not None:
            log.warning("%s: %s; it is not tried again, and the others go on", line, record.failure)
            return
        log.info(line)
        early = self.plan.sweep.early.metric
        if record.status == "stopped" and early not in record.metrics and not self.has_warned:
            self.has_warned = True
            log.warning(
                "%s has logged no %s by epoch %g, so there is nothing to compare; log more often, train.log_every=1ep",
                record.trial.name,
                early,
                record.epoch or 0,
            )
        if record.note is not None and record.status == "finished" and not self.has_reported:
            self._check_reported(record.note)

    def _check_reported(self, note: Note) -> None:
        """End the sweep if the first trial that has ended lacks a number that ranks."""
        self.has_reported = True
        known = {name for name in (*note.metrics, *note.costs) if not is_beside(name)}
        missing = [each.metric for each in self.plan.sweep.objectives if each.metric not in known]
        if missing:
            hint = did_you_mean(missing[0], known)
            self.problem = ConfigError(
                f"metric: the first trial reported no {missing[0]!r}; {hint}it reported {', '.join(sorted(known))}; "
                "give one of them, and the trials that have ended are kept"
            )
            self.ending.is_set = True


EVERY_S = 60.0
MOST_NAMED = 8  # running trials in a plain line


class SweepView:
    """Shows the running trials and the state of the sweep, `with view.screen:`."""

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.shown_at = time.monotonic()
        is_terminal = (screen := console()).is_terminal
        self._live = Live(console=screen, refresh_per_second=2, transient=True, redirect_stdout=False)
        self.screen: AbstractContextManager[Any] = self._live if is_terminal else nullcontext()

    def show(self, rows: Sequence[Record], state: str) -> None:
        """Show the running trials, and the state of the sweep in words."""
        if self.screen is self._live:
            self._live.update(self.table(rows, state))
        elif time.monotonic() - self.shown_at >= EVERY_S:
            self.shown_at = time.monotonic()
            log.info(plain_line(rows, state))

    def table(self, rows: Sequence[Record], state: str) -> RenderableType:
        """Return the running trials in a table."""
        if not rows:
            return Text(state)
        table = Table(box=None, pad_edge=False, header_style="dim")
        has_nodes = len({node for row in rows for node in row.nodes}) > 1
        for name in ("trial", "settings", *(["nodes"] if has_nodes else []), "", "", "time"):
            table.add_column(name, no_wrap=name != "settings", overflow="ellipsis")
        for row in rows:
            nodes = [" ".join(row.nodes)] if has_nodes else []
            seconds = duration(time.time() - row.began)
            table.add_row(row.trial.name, row.trial.words(), *nodes, row.progress, row.describe(self.metric), seconds)
        return Group(table, Text(state))


def plain_line(rows: Sequence[Record], state: str) -> str:
    """Return the state of a sweep and its running trials in one line."""
    named = [
        f"{row.trial.name} ({row.progress}{' on ' + ', '.join(row.nodes) if row.nodes else ''})"
        for row in rows[:MOST_NAMED]
    ]
    more = [f"{len(rows) - MOST_NAMED} more"] if len(rows) > MOST_NAMED else []
    return f"{state}; running: {', '.join([*named, *more])}" if rows else state
