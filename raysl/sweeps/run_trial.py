"""The process of a trial: its run, resumed where it stopped, and the note of its end."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from raysl.benchmarks.suite.evaluate import Report, benchmark
from raysl.checkpoint.files import newest_whole
from raysl.config.schema import RunConfig
from raysl.errors import CodeError, ConfigError, RunInUse, Stopped, StorageError, log
from raysl.leaderboard.logged import Logged
from raysl.pretraining import Result, pretrain
from raysl.process.code_errors import explaining_code
from raysl.report.contents import Score
from raysl.runs.folder import RunFolder
from raysl.storage.folder import Folder, outlast
from raysl.storage.records import Damaged, read_record
from raysl.sweeps.record import Note, measures_of
from raysl.train.callbacks.logs import parse_metrics
from raysl.train.callbacks.tensorboard import write_hparams
from raysl.train.costs import Costs, counting_costs
from raysl.train.files import METRICS_FILE


def run_trial(config: RunConfig, settings: Mapping[str, Any], until: int | None = None) -> Note:
    """Train a run, measure it at its end, and write its note.

    Args:
        settings: settings that vary, which TensorBoard shows.
        until: epoch to train to; default: its end.

    Raises:
        RunFailed: if training or a measurement failed, and may do better when it is tried again.
    """
    folder = RunFolder.of(config)
    folder.make()
    try:
        with explaining_code(of_users=True):
            result = _trained(config, until)
    except Stopped:
        note = _note(config, folder, "paused")
    except StorageError:
        raise  # it may work again: the trial is tried again
    except (ConfigError, CodeError) as error:
        note = _note(config, folder, "failed", reason=str(error))
    except Exception as error:
        # it may do better when it is tried again
        try:
            _note(config, folder, "paused", reason=str(error)).write(folder)
        except StorageError as full:
            log.warning("the note of %s is not written: %s", config.name, full)
        raise
    else:
        is_whole = result.report is not None or not config.benchmarks
        status = "finished" if until is None or (until >= config.train.epochs and is_whole) else "paused"
        note = _note(config, folder, status, result, done=until)
    note.write(folder)
    varied = {**settings, "seed": config.seed}
    write_hparams(folder, varied, note.metrics, round(note.epoch))
    return note


def measure_checkpoint(uri: str, config: RunConfig, settings: Mapping[str, Any]) -> Note:
    """Measure a checkpoint instead of training; results, report and note go to the trial's folder.

    Args:
        config: benchmarks, images and seed; name and storage are those of the trial.
        settings: settings that vary.
    """
    folder = RunFolder.of(config)
    folder.make()
    with counting_costs(folder) as counter:
        report = benchmark(uri, config=config, out=folder.uri)
        report.check()
    costs = counter.costs
    intervals, units = _measured(report)
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


def _trained(config: RunConfig, until: int | None) -> Result:
    """Return the result of a run, after waiting for another process that may run it."""
    while True:
        try:
            return pretrain(config, show_progress=False, until=until)
        except RunInUse:
            RunFolder.of(config).wait_until_free()


def _note(
    config: RunConfig,
    folder: RunFolder,
    status: Any,
    result: Result | None = None,
    reason: str = "",
    done: int | None = None,
) -> Note:
    lines = parse_metrics(outlast(partial(folder.read_if_there, METRICS_FILE)), folder.uri_of(METRICS_FILE))
    metrics: dict[str, float] = {}
    for line in lines:
        metrics |= line
    intervals: dict[str, tuple[float, float]] = {}
    units: dict[str, str] = {}
    if result is not None and result.report is not None:
        metrics |= result.report.metrics
        intervals, units = _measured(result.report)
    newest, costs = outlast(partial(newest_whole, folder, ())), outlast(partial(Costs.read, folder))
    return Note(
        status=status,
        until=config.train.epochs,
        epoch=_epoch(lines, newest, status, done),
        metrics={name: value for name, value in metrics.items() if name not in ("step", "epoch")},
        intervals=intervals,
        units=units,
        costs=costs.numbers() | Logged([line for line in lines if "epoch" in line]).costs(),
        reason=reason,
        measures=measures_of(config) if status == "finished" else {},
        checkpoint=None if newest.name is None else folder.uri_of(newest.name),
        started=costs.began,
        ended=time.time(),
    )


def _epoch(lines: Sequence[dict[str, float]], newest: Any, status: str, done: int | None) -> float:
    """Return the epochs of the newest checkpoint, or of the last line of a failed run.

    Args:
        lines: logged lines, which tell how many steps have how many epochs.
        done: whole epochs of training, where they are known.
    """
    if done is not None:
        return float(done)
    if status == "failed" and lines:
        return lines[-1].get("epoch", 0.0)
    if newest.name is None or not lines:
        return 0.0
    per_step = next((line["epoch"] / line["step"] for line in reversed(lines) if line.get("epoch")), 0.0)
    return float(round(newest.step * per_step, 6))


def _measured(report: Report) -> tuple[dict[str, tuple[float, float]], dict[str, str]]:
    """Return intervals and units of a report's metrics, by name."""
    intervals = {_name(score): score.interval for score in report.scores if score.interval is not None}
    return intervals, {_name(score): score.unit for score in report.scores}


def _name(score: Score) -> str:
    return f"{score.benchmark}/{score.metric}"


def failed_note(config: RunConfig, reason: str) -> Note:
    """Return the note of why a trial failed for good, with its costs and the numbers that it logged and measured."""
    folder = RunFolder.of(config)
    note = _note(config, folder, "failed", reason=reason)
    measured = _reported(folder)
    return replace(note, metrics={**note.metrics, **measured})


def _reported(folder: Folder) -> dict[str, float]:
    """Return the metrics of a report that an earlier try has left; a damaged one is passed over."""
    try:
        kinds = {"metrics": dict[str, float | None]}
        text = outlast(partial(folder.read_if_there, "report.json")) or b"{}"
        metrics = read_record(text, folder.uri_of("report.json"), optional=kinds).get("metrics", {})
    except Damaged as error:
        log.warning("passed over %s", error)
        return {}
    return {name: value for name, value in metrics.items() if value is not None}
