"""Pre-training from settings to a measured checkpoint: what the driver does."""

import json
import logging
import shlex
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
import ray.train
from ray.train import FailureConfig, ScalingConfig
from ray.train.v2.api.exceptions import TrainingFailedError

from raysl.benchmarks.suite.evaluate import Report, benchmark
from raysl.checkpoint.files import SETTINGS_FILE, Found, Kept, newest_whole
from raysl.cluster.connection import cluster_resources, connect, disconnect
from raysl.cluster.resources import worker_shape
from raysl.config.arguments import run_config
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError, RunFailed
from raysl.errors import Stopped as Stopped
from raysl.process.signals import Signals, heeding
from raysl.process.waiting import Waiting, waiting
from raysl.redact import redact, redact_uri
from raysl.report.summary import score_table
from raysl.report.verdict import remarks
from raysl.runs.begin import begin
from raysl.runs.folder import PROBE_FILE, STOP_FILE, RunFolder
from raysl.runs.follow import events_of, progress_of
from raysl.runs.history import frame
from raysl.runs.prepare import Prepared, prepare
from raysl.runs.stopping import how_to_go_on, stopping
from raysl.runs.trainer import Trainer
from raysl.runs.worker import Job, Outcome, max_corrupt, train_worker
from raysl.storage.addresses import absolute, join
from raysl.storage.folder import outlast
from raysl.storage.owner import Owner
from raysl.train.callbacks.corrupt_images import too_many
from raysl.train.callbacks.metrics_log import parse_metrics
from raysl.train.expected import check_expected
from raysl.train.files import CORRUPT_FILE, METRICS_FILE, STARTUP_FILE

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("raysl")


@dataclass(frozen=True, eq=False)
class Result:
    """What a run came to.

    Args:
        checkpoint: URI of the newest checkpoint.
        metrics: the numbers logged last, and those of the benchmarks.
        history: what was logged, a row for each line and a column for each number (`raysl.load_history`).
        path: URI of the run's folder.
        best: URI of the best checkpoint by the callback `checkpoint_keeper`, or None where none is kept.
        report: the benchmarks, or None where none were asked for.
    """

    checkpoint: str
    metrics: dict[str, float]
    history: "pd.DataFrame"
    path: str
    report: Report | None
    best: str | None = None


def pretrain(
    config: RunConfig,
    *,
    callbacks: Sequence[ray.train.UserCallback] = (),
    show_progress: bool = True,
    until: int | None = None,
    stop: threading.Event | None = None,
) -> Result:
    """Train, measure and report; a run of this name that was interrupted goes on where its newest checkpoint is.

    Args:
        config: the run's settings.
        callbacks: observers of Ray Train's, called in its controller (Ray Tune's reporting, for one).
        show_progress: whether to show how training goes, and in the end where the run lies.
        until: epochs to be done when this call returns, with a checkpoint and nothing measured; a later call goes on
            from there. Default, and from `train.epochs` on: to the end.
        stop: when another thread sets it, the run saves a checkpoint and stops, as at a signal.

    Returns:
        Where the run lies and what it measured.

    Raises:
        ConfigError: if the settings cannot work; found before any worker starts.
        RunFailed: if the loss became NaN, workers were lost too often, or a result is out of `train.expect`.
        Stopped: if the process was asked to end, by Ctrl-C or SIGTERM, or the run by `stop`; one that has made a step
            has saved a checkpoint. At a signal its message has been shown.
    """
    config = run_config(config)
    if until is not None and until < 1:
        raise ConfigError(f"until={until} is no epoch to train to; give 1 to {config.train.epochs}, or nothing")
    with heeding() as signals, waiting(show=show_progress) as waits:
        result, is_done = _pretrain(config, callbacks, signals, waits, until, stop)
        if show_progress:
            _print(result)
        if result.report is not None:
            result.report.check()
        if is_done:
            check_expected(config, result.metrics)
        return result


def _pretrain(
    config: RunConfig,
    callbacks: Sequence[ray.train.UserCallback],
    signals: Signals,
    waits: Waiting,
    until: int | None,
    stop: threading.Event | None,
) -> tuple[Result, bool]:
    """The result, and whether the run is at its end."""
    marks = {"command": waits.since, "imports": time.time()}
    waits.enter("reading the dataset")
    config = replace(config, storage=absolute(config.storage))
    run = prepare(config)
    folder, plan = RunFolder.of(config), run.setup.plan
    folder.make()
    with folder.locked() as owner:
        found = begin(run, folder)
        if found.name is not None:
            _check_corrupt(run, folder, found)
            signals.left = f"{folder.uri_of(found.name)} is the last checkpoint; the same command goes on from there"
        ended = None if config.train.extend else found.meta.get("ended")
        step, last = found.step, min(plan.total_steps, (until or config.train.epochs) * plan.epoch_len)
        if step < last and ended is None:
            if step:
                log.info("resumed at step %d of %d", step, plan.total_steps)
            if stop is not None and stop.is_set():
                raise Stopped(how_to_go_on(step, plan.total_steps, found.name, folder.uri))
            step, ended = _train(run, owner, folder, marks, callbacks, signals, waits, step, last, stop)
        elif ended is not None:
            log.info("the run %s is finished: %s; train.extend=true goes on with it", config.name, ended)
        elif step == plan.total_steps:
            log.info("the run %s is finished: %d steps", config.name, plan.total_steps)
        waits.end()
        is_done = step == plan.total_steps or ended is not None
        if not is_done:
            log.info("the run %s pauses at step %d of %d", config.name, step, plan.total_steps)
            return _result(folder, None), False
        signals.left = "training is done; the same command goes on with the measurements"
        report = benchmark(folder.uri, facts=_facts(folder, marks), config=config) if config.benchmarks else None
    return _result(folder, report), True


def _check_corrupt(run: Prepared, folder: RunFolder, found: Found) -> None:
    """Have a run that stopped for too many broken images fail at every start, until more of them are allowed."""
    limit = max_corrupt(run.setup)
    if found.meta["metrics"].get("corrupt_images", 0) > limit:
        lines = folder.read_if_there(CORRUPT_FILE).decode().splitlines()
        raise RunFailed(too_many([json.loads(line)["image"] for line in lines], limit))


def _train(
    run: Prepared,
    owner: Owner | None,
    folder: RunFolder,
    marks: dict[str, float],
    callbacks: Sequence[ray.train.UserCallback],
    signals: Signals,
    waits: Waiting,
    first: int,
    last: int,
    stop: threading.Event | None,
) -> tuple[int, str | None]:
    """Updates done, and why a callback ended the run for good, where one did."""
    waits.enter("starting Ray")
    connect()
    waits.enter("starting workers")
    train, plan, augment_on = run.config.train, run.setup.plan, run.config.data.augment_on
    shape = worker_shape(train, cluster_resources())
    in_task = augment_on == "task" or (augment_on == "auto" and shape.device == "cpu")
    job = Job(
        run=replace(run, loader=replace(run.loader, augment_in_task=in_task)),
        task_cpus=shape.task_cpus,
        probe=uuid.uuid4().hex,
        owner=owner,
        marks=marks | {"ray": time.time()},
        last=last,
    )
    for note in (STOP_FILE, STARTUP_FILE):
        folder.remove(note)
    folder.write(PROBE_FILE, job.probe.encode())
    with (
        tempfile.TemporaryDirectory(prefix="raysl_ray_") as notes,  # of Ray's own: it is not asked where to resume
        progress_of(folder, plan, waits, first),
        stopping(folder, signals, stop) as asked,
    ):
        trainer = Trainer(
            train_worker,
            train_loop_config={"job": ray.cloudpickle.dumps(job)},  # Ray Train's controller need not import it
            scaling_config=ScalingConfig(
                num_workers=train.workers, use_gpu=shape.device == "cuda", resources_per_worker=shape.resources
            ),
            run_config=ray.train.RunConfig(
                name=job.config.name.encode("ascii", "replace").decode().replace("?", "_"),  # Ray takes no others
                storage_path=notes,
                failure_config=FailureConfig(max_failures=train.max_failures),
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
    if outcome.failure is not None and outcome.is_input_wrong:
        raise ConfigError(outcome.failure)
    if outcome.failure is not None:
        kept = _newest(folder)
        raise RunFailed(
            f"{outcome.failure}; " + (f"the last good checkpoint is {folder.uri_of(kept)}" if kept else "no checkpoint")
        )
    if asked() or (outcome.step < last and outcome.ended is None):
        code = 128 + (signals.asked or signal.SIGINT)
        raise Stopped(how_to_go_on(outcome.step, plan.total_steps, _newest(folder), folder.uri), code)
    return outcome.step, outcome.ended


def _newest(folder: RunFolder) -> str | None:
    """Name of the newest whole checkpoint."""
    return outlast(lambda: newest_whole(folder, ())).name


def _root_cause(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[-1] if text else type(error).__name__


def _facts(folder: RunFolder, marks: dict[str, float]) -> dict[str, Any]:
    startup = json.loads(folder.read_if_there(STARTUP_FILE) or b"{}")
    total = time.time() - marks["command"]
    times = {f"start: {name}": seconds for name, seconds in startup.items() if name != "total"}
    return {
        "times": {**times, "start to first step": startup.get("total", 0.0), "total": total},
        "events": events_of(folder, with_saves=False),
        "command": redact(shlex.join(_command(folder))),
    }


def _command(folder: RunFolder) -> list[str]:
    """What starts the run again: the words given to the shell; from Python, as in a trial, the settings kept with it,
    where they are a file; else nothing."""
    program = Path(sys.argv[0]).name
    if program == "raysl":
        return [program, *sys.argv[1:]]
    return ["raysl", "pretrain", folder.uri_of(SETTINGS_FILE)] if folder.is_local else []


def _result(folder: RunFolder, report: Report | None) -> Result:
    lines = parse_metrics(outlast(lambda: folder.read_if_there(METRICS_FILE)))
    newest: dict[str, float] = {}
    for line in lines:
        newest |= line
    name = _newest(folder)
    if name is None:
        raise RunFailed(f"no whole checkpoint is left in {folder.uri}; start the same command again")
    checkpoint = folder.uri_of(name)
    best = outlast(lambda: Kept.read(folder).best_in(folder))
    metrics = newest | (report.metrics if report else {})
    return Result(checkpoint, metrics, frame(lines), folder.uri, report, None if best is None else folder.uri_of(best))


def _print(result: Result) -> None:
    if result.report is not None:
        if result.report.scores:
            print(score_table(result.report.scores), *remarks(result.report.scores), sep="\n")
        print(f"report      {redact_uri(result.report.path)}")
    if num_broken := result.metrics.get("corrupt_images"):
        listed = redact_uri(join(result.path, CORRUPT_FILE))
        print(f"data        {num_broken:.0f} broken images were replaced; {listed} lists them")
    print(f"checkpoint  {redact_uri(result.checkpoint)}")
    if result.best is not None:
        print(f"best        {redact_uri(result.best)}")
    print(f"run         {redact_uri(result.path)}", flush=True)
