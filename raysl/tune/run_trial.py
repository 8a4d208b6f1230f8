"""The process of a trial: its run, resumed where it stopped, and the note of its end."""

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from raysl.benchmarks.suite.evaluate import benchmark
from raysl.checkpoint.checkpoint_folder import newest_whole
from raysl.config.schema import RunConfig
from raysl.errors import CodeError, ConfigError, RunInUse, Stopped, StorageError, log
from raysl.leaderboard.logged import Logged
from raysl.pretraining import Result, pretrain
from raysl.process.code_errors import explaining_code
from raysl.report.contents import intervals_and_units
from raysl.runs.folder import RunFolder
from raysl.storage.folder import outlast
from raysl.storage.records import Damaged, read_record
from raysl.train.callbacks.logs import read_metrics
from raysl.train.callbacks.tensorboard import write_hparams
from raysl.train.costs import Costs, counting_costs
from raysl.tune.trial import Note, measures_of


def run_trial(config: RunConfig, settings: Mapping[str, Any], stop: threading.Event | None = None) -> Note:
    """Train a run, measure it at its end, and write its note.

    Args:
        stop: once set, the run saves and stops.

    Raises:
        Stopped: if it was asked to stop.
        RunFailed: if training or a measurement failed, and may do better when it is tried again.
        ConfigError: if a setting is wrong.
    """
    folder = RunFolder.of(config)
    folder.make()
    try:
        with explaining_code(of_users=True):
            result = _trained(config, stop)
    except (StorageError, Stopped):
        raise  # the storage may work again; and who has stopped it says why
    except Exception as error:
        is_over = isinstance(error, ConfigError | CodeError)  # of its settings: nothing else comes of another try
        try:
            make_note(config, "failed" if is_over else "paused", reason=str(error)).write(folder)
        except StorageError as full:
            log.warning("the note of %s is not written: %s", config.name, full)
        raise
    note = make_note(config, "finished", result)
    note.write(folder)
    write_hparams(folder, {**settings, "seed": config.seed}, note.metrics, round(note.epoch))
    return note


def measure_checkpoint(uri: str, config: RunConfig, settings: Mapping[str, Any]) -> Note:
    """Measure a checkpoint instead of training; results, report and note go to the trial's folder.

    Args:
        config: benchmarks, images and seed; name and storage are those of the trial.
    """
    folder = RunFolder.of(config)
    folder.make()
    with counting_costs(folder) as counter:
        report = benchmark(uri, config=config, out=folder.uri)
        report.check()
    costs = counter.costs
    intervals, units = intervals_and_units(report.scores)
    note = Note(
        status="finished",
        until=0,
        metrics=report.metrics,
        intervals=intervals,
        units=units,
        costs=costs.numbers(),
        measures=measures_of(config),
        checkpoint=report.checkpoint or uri,
        started=costs.began,
        ended=time.time(),
    )
    note.write(folder)
    write_hparams(folder, {**settings, "seed": config.seed}, note.metrics)
    return note


def _trained(config: RunConfig, stop: threading.Event | None) -> Result:
    """Return the result of a run, after waiting for another process that may run it."""
    while True:
        try:
            return pretrain(config, show_progress=False, stop=stop)
        except RunInUse:
            if not RunFolder.of(config).wait_until_free(stop):
                raise Stopped(f"another process works on {config.name}") from None


def make_note(
    config: RunConfig,
    status: Literal["finished", "stopped", "paused", "failed"],
    result: Result | None = None,
    reason: str = "",
    until: float = math.inf,
) -> Note:
    """Return the note of a run by what is in its folder.

    Args:
        until: epoch whose numbers are the newest that count.
    """
    folder = RunFolder.of(config)
    lines = [line for line in read_metrics(folder) if "epoch" in line]
    logged = Logged([line for line in lines if line["epoch"] <= until])
    metrics = logged.newest()
    intervals: dict[str, tuple[float, float]] = {}
    units: dict[str, str] = {}
    if result is not None:
        metrics |= {name: value for name, value in result.metrics.items() if name not in ("step", "epoch")}
        if result.report is not None:
            intervals, units = intervals_and_units(result.report.scores)
    newest, costs = outlast(partial(newest_whole, folder, ())), outlast(partial(Costs.read, folder))
    return Note(
        status=status,
        until=config.train.epochs,
        epoch=logged.reached,
        metrics=metrics,
        intervals=intervals,
        units=units,
        costs=costs.numbers() | Logged(lines).costs(),
        reason=reason,
        measures=measures_of(config) if status == "finished" else {},
        checkpoint=None if newest.name is None else folder.uri_of(newest.name),
        started=costs.began,
        ended=time.time(),
    )


def failed_note(config: RunConfig, reason: str) -> Note:
    """Return the note of why a trial failed for good, with its costs and the numbers that it logged and measured."""
    note, folder = make_note(config, "failed", reason=reason), RunFolder.of(config)
    try:
        # the report that an earlier try has left
        text = outlast(partial(folder.read_if_there, "report.json")) or b"{}"
        kinds = {"metrics": dict[str, float | None]}
        measured = read_record(text, folder.uri_of("report.json"), optional=kinds).get("metrics", {})
    except Damaged as error:
        log.warning("passed over %s", error)
        measured = {}
    return replace(note, metrics=note.metrics | {name: value for name, value in measured.items() if value is not None})
