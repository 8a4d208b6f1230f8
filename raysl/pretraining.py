"""Pre-training from settings to a measured checkpoint."""

import shlex
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

from raysl.benchmarks.suite.evaluate import Report, prepare
from raysl.benchmarks.suite.fitting import check_benchmarks
from raysl.checkpoint.checkpoint_folder import SETTINGS_FILE
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError, log
from raysl.errors import Stopped as Stopped
from raysl.redact import redact, redact_uri
from raysl.report.contents import Score, online_names
from raysl.report.summary import readable, score_table
from raysl.report.verdict import remarks
from raysl.runs.folder import RunFolder
from raysl.runs.follow import read_events
from raysl.runs.run import TrainedRun, training
from raysl.runs.trainer import UserCallback
from raysl.storage.addresses import join
from raysl.train.expected import check_expected
from raysl.train.file_names import CORRUPT_FILE, STARTUP_FILE, parse_startup

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """Checkpoint and numbers of a run.

    Args:
        checkpoint: URI of the newest checkpoint.
        metrics: the newest value of every logged number, step and epoch of the checkpoint, and the numbers of the
            benchmarks.
        history: a row for each logged line and a column for each number (`raysl.load_history`).
        path: URI of the run's folder.
        best: URI of the best checkpoint by the callback `checkpoint_keeper`, or None where none is kept.
        report: the benchmarks, or None where none were measured.
    """

    checkpoint: str
    metrics: dict[str, float]
    history: "pd.DataFrame"
    path: str
    report: Report | None
    best: str | None = None

    def __repr__(self) -> str:
        """The step, the loss, the scores, and where the run is, in a few lines."""
        names = [name for name in ("loss", *online_names(self.metrics)) if name in self.metrics]
        numbers = [f"{name} {readable(self.metrics[name])}" for name in names]
        lines = [f"step {self.metrics.get('step', 0):.0f}  {'  '.join(numbers)}".rstrip()]
        lines += [f"{score.benchmark}/{score.metric}  {score.trained:.4g} {score.unit}" for score in self._scores()]
        lines += [f"run  {redact_uri(self.path)}"]
        return "\n".join(lines)

    def _scores(self) -> list[Score]:
        """The first score of each benchmark."""
        scores = self.report.scores if self.report else []
        return [
            score for turn, score in enumerate(scores) if score.benchmark not in {s.benchmark for s in scores[:turn]}
        ]


def pretrain(
    config: RunConfig,
    *,
    callbacks: Sequence[UserCallback] = (),
    show_progress: bool = True,
    until: int | None = None,
    stop: threading.Event | None = None,
    **unknown: Never,
) -> Result:
    """Train, measure and report; an interrupted run of this name goes on from its newest checkpoint.

    >>> import raysl
    >>> config = raysl.load_config("quickstart", ["train.epochs=1", "benchmarks={}"])
    >>> pretrain(config, show_progress=False).metrics["step"]
    22

    Args:
        config: the run's settings.
        callbacks: observers of Ray Train's, called in its controller (Ray Tune's reporting, for one).
        show_progress: whether to show how training goes, and finally the results and where they are.
        until: epochs to be done when this call returns, with a checkpoint and nothing measured; a later call goes on
            from there. Default, and from `train.epochs` on: to the end.
        stop: when another thread sets it, the run saves a checkpoint and stops, as at a signal.
        unknown: refused with the way to give settings.

    Returns:
        URIs and numbers of the run.

    Raises:
        ConfigError: if the settings cannot work; no worker has started then.
        RunFailed: if the loss became NaN, workers were lost too often, or a result is out of `train.expect`.
        Stopped: if the process was asked to end, by Ctrl-C or SIGTERM, or the run by `stop`; one that has made a step
            has saved a checkpoint. At a signal its message has been shown.
    """
    if unknown:
        words = [f"{key}=..." for key in unknown]
        raise ConfigError(
            f"{', '.join(unknown)}: pretrain has no such argument; settings belong to the configuration, as in "
            f"raysl.pretrain(raysl.load_config('simclr', {words}))"
        )
    _check_callbacks(callbacks)
    with training(
        config, check_benchmarks, callbacks=callbacks, show_progress=show_progress, until=until, stop=stop
    ) as run:
        report = None
        if run.is_done and run.config.benchmarks:
            measurement = prepare(run.folder.uri, config=run.config)
            if show_progress:
                names = ", ".join(measurement.missing)
                log.info("training is done; %s", f"measuring {names}" if names else "nothing is left to measure")
            report = measurement.run(partial(_facts, run))
        metrics = run.metrics | (report.metrics if report else {})
        result = Result(run.checkpoint, metrics, run.history, run.folder.uri, report, run.best)
        # before the checks below, which may raise
        if show_progress:
            _print(result)
        if report is not None:
            report.check()
        if run.is_done:
            check_expected(run.config, metrics)
        return result


def _facts(run: TrainedRun) -> dict[str, Any]:
    """Return what a report tells of the run beside its settings."""
    assert run.counter is not None
    startup = parse_startup(run.folder.read_if_there(STARTUP_FILE))
    times = {f"start: {name}": seconds for name, seconds in startup.items() if name != "total"}
    return {
        "times": {**times, "start to first step": startup["total"], "total": run.counter.costs.seconds},
        "events": read_events(run.folder, with_saves=False),
        "command": redact(shlex.join(_command(run.folder))),
    }


def _command(folder: RunFolder) -> list[str]:
    """Return the words that start a run again: those of this command, or from Python the stored settings where they are
    a local file; else none."""
    program = Path(sys.argv[0]).name
    if program == "raysl":
        return [program, *sys.argv[1:]]
    return ["raysl", "pretrain", folder.uri_of(SETTINGS_FILE)] if folder.is_local else []


def _check_callbacks(callbacks: object) -> None:
    """Refuse raysl's own callbacks, which belong to the settings."""
    rule = "Ray Train's UserCallback observe a run here; raysl's own belong to the settings: callbacks=[windows]"
    if not isinstance(callbacks, list | tuple):
        raise ConfigError(f"callbacks={callbacks!r} is no list; {rule}")
    if wrong := [callback for callback in callbacks if not isinstance(callback, UserCallback)]:
        raise ConfigError(f"callbacks: {wrong[0]!r} is no UserCallback; objects of {rule}")


def _print(result: Result) -> None:
    if result.report is not None:
        if result.report.scores:
            print(score_table(result.report.scores), *remarks(result.report.scores), sep="\n")
        print(f"report      {redact_uri(result.report.path)}")
    if num_broken := result.metrics.get("corrupt_images"):
        listed = redact_uri(join(result.path, CORRUPT_FILE))
        what = "1 broken image was" if num_broken == 1 else f"{num_broken:.0f} broken images were"
        print(f"data        {what} replaced; see {listed}")
    print(f"checkpoint  {redact_uri(result.checkpoint)}")
    if result.best is not None:
        print(f"best        {redact_uri(result.best)}")
    print(f"run         {redact_uri(result.path)}", flush=True)
