"""Sweeps: a search over pre-training runs, scheduled by Ray Tune, to one leaderboard.

Each trial is a whole run in `<storage>/<name>/trial_<hash of its settings>/`, with its checkpoints and its report, and
resumes like any other; trials with equal settings are one run. Tune's notes are in `<storage>/<name>/tune/`. Starting a
sweep of the same name again goes on where it stopped.
"""

import csv
import hashlib
import io
import json
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ray import tune
from ray.train import UserCallback
from ray.tune import Tuner
from ray.tune.integration.ray_train import TuneReportCallback
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.basic_variant import BasicVariantGenerator

from raysl.addresses import absolute
from raysl.arguments import instance, run_config
from raysl.benchmarks.fitting import MeasuredImages
from raysl.cluster import Resources, connect, worker_shape
from raysl.components import resolve
from raysl.config.dump import dump
from raysl.config.files import read
from raysl.config.load import apply_overrides
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError, RunInUse
from raysl.redact import bare_tree, redact_tree, redact_uri
from raysl.sweep_space import SweepConfig, dump_sweep, examples
from raysl.train.folder.run_folder import RunFolder
from raysl.train.pretrain import Result, pretrain

log = logging.getLogger("raysl")

TRIAL_CPUS = 0.01  # of the process that drives a trial; its workers and data tasks have their own


@dataclass(frozen=True)
class Leaderboard:
    """Trials, the best first.

    Args:
        rows: an object a run: rank, trial, status, draws (trials with these settings), epoch, the metric, the varied
            settings, other numbers, path.
        path: of `leaderboard.csv`, which holds the same.
    """

    rows: list[dict[str, Any]]
    path: str

    def table(self) -> str:
        """The rows as aligned text, without the paths."""
        names = [name for name in self.rows[0] if name != "path"]
        cells = [names, *([_text(row.get(name)) for name in names] for row in self.rows)]
        widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
        )


def sweep(config: RunConfig, space: SweepConfig) -> Leaderboard:
    """Run every trial of a sweep, or those that an earlier start of the same name left.

    Args:
        config: settings that the trials depart from; its `name` and `storage` are those of the sweep.
        space: what varies, how many trials, and what ranks them.

    Raises:
        ConfigError: if a setting is wrong, or another sweep has this name.
    """
    instance(space, SweepConfig, "space", "the first of what raysl.sweep_space.load_sweep('sweep/quickstart') returns")
    base = replace(run_config(config), storage=absolute(config.storage))
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"  # a report before the first measurement lacks the metric
    if space.metric == "knn_top1":
        base = replace(base, train=replace(base.train, online_knn_every=base.train.checkpoint_every))
        _check_labels(base, space)
    for key, distribution in space.space.items():
        for value in examples(key, distribution):
            apply_overrides(base, [_setting(key, value)])
    _warn_of_credentials(base, space)
    folder = RunFolder.of(base)
    folder.make()
    with folder.locked():
        _claim(folder, base, space)
        connect(with_state=True)
        shape = worker_shape(base.train, Resources.of_cluster())
        results = _tuner(folder, base, space, _room(space, base, shape)).fit()
    rows = _rank(_once([_row(folder, result, space, base.train.epochs) for result in results]), space)
    content = _csv(rows)
    folder.write("leaderboard.csv", content.encode())
    return Leaderboard(rows, folder.uri_of("leaderboard.csv"))


def _check_labels(base: RunConfig, space: SweepConfig) -> None:
    """Refuse to rank by the online kNN where the images, the same in all trials, do not allow it."""
    if any(key.split(".")[0] == "data" for key in space.space):
        return
    source = resolve("source", base.data.name)(base.data)
    if missing := MeasuredImages(base.data, source.required("train"), source.optional("test")).missing:
        raise ConfigError(
            f"metric: knn_top1 cannot be measured, {missing}; rank by another, such as metric=loss mode=min"
        )


def _warn_of_credentials(base: RunConfig, space: SweepConfig) -> None:
    """Say so where Tune's notes, which are pickles, get to hold credentials."""
    for key, value in {"storage": base.storage, **space.space}.items():
        if redact_tree(value) != value:
            log.warning("%s has credentials, which Ray Tune keeps in its notes; better give them by environment", key)


def _claim(folder: RunFolder, base: RunConfig, space: SweepConfig) -> None:
    text = dump_sweep(space) + "\n# departs from:\n" + dump(base)
    before = folder.read_if_there("sweep.yaml").decode()
    if before and bare_tree(read(before, "sweep.yaml")) != bare_tree(read(text, "sweep.yaml")):
        raise ConfigError(
            f"another sweep named {base.name!r} is in {folder.uri} (see its sweep.yaml); give this one another name="
        )
    folder.write("sweep.yaml", text.encode())


def _room(space: SweepConfig, base: RunConfig, shape: Any) -> int:
    """How many trials to run at a time."""
    if space.concurrent is not None:
        return space.concurrent
    have = Resources.of_cluster()
    by_cpus = have.cpus // (base.train.workers * shape.cpus + shape.task_cpus)
    by_gpus = have.gpus // base.train.workers if shape.device == "cuda" else by_cpus
    return max(1, int(min(by_cpus, by_gpus)))


def _tuner(folder: RunFolder, base: RunConfig, space: SweepConfig, concurrent: int) -> Tuner:
    def trial(settings: dict[str, Any]) -> None:
        result = _pretrained(_trial_config(base, folder, settings), [TuneReportCallback()])
        numbers = {name: value for name, value in result.metrics.items() if name != "step"}
        tune.report({**numbers, "epoch": float(base.train.epochs)})

    trainable = tune.with_resources(trial, {"CPU": TRIAL_CPUS})
    notes = f"{folder.path}/tune"
    if Tuner.can_restore(notes, storage_filesystem=folder.system):
        log.info("the sweep goes on")
        return Tuner.restore(
            notes,
            trainable=trainable,
            resume_unfinished=True,
            resume_errored=True,
            storage_filesystem=folder.system,
        )
    scheduler = None
    if space.scheduler == "asha":
        scheduler = ASHAScheduler(
            time_attr="epoch",
            max_t=base.train.epochs + 1,  # asha would stop a trial that reaches max_t, before it is measured
            grace_period=min(space.grace_epochs, base.train.epochs),
            reduction_factor=space.reduction,
        )
    return Tuner(
        trainable,
        param_space={key: _distribution(values) for key, values in space.space.items()},
        tune_config=tune.TuneConfig(
            metric=space.metric,
            mode=space.mode,
            num_samples=space.trials,
            max_concurrent_trials=concurrent,
            search_alg=BasicVariantGenerator(max_concurrent=concurrent, random_state=base.seed),
            scheduler=scheduler,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=folder.path,
            storage_filesystem=folder.system,
            callbacks=[_Announce(space)],
            verbose=0,
        ),
    )


def _pretrained(run: RunConfig, callbacks: Sequence[UserCallback] = ()) -> Result:
    """The result of a trial's run. Equal draws are one run: the second waits until the first has ended.

    A finished run then gives its result at once; one that was cut off is gone on with, as in a sweep started again.
    """
    while True:
        try:
            return pretrain(run, callbacks=callbacks, show_progress=False)
        except RunInUse:
            log.info("%s waits for a trial with equal settings", run.name)
            _wait_for(RunFolder.of(run))


def _wait_for(folder: RunFolder) -> None:
    """Return when nobody works in a run's folder."""
    while True:
        try:
            with folder.locked():
                return
        except RunInUse:
            time.sleep(0.5 if folder.is_local else 5.0)


def _trial_config(base: RunConfig, folder: RunFolder, settings: dict[str, Any]) -> RunConfig:
    run = apply_overrides(base, [_setting(key, value) for key, value in settings.items()])
    return replace(run, storage=folder.uri, name=_trial_name(settings))


def _trial_name(settings: dict[str, Any]) -> str:
    """The same for the same settings, whatever Tune calls the trial."""
    return "trial_" + hashlib.sha256(json.dumps(bare_tree(settings), sort_keys=True).encode()).hexdigest()[:8]


def _setting(key: str, value: Any) -> str:
    return f"{key}={json.dumps(value)}"


def _distribution(distribution: dict[str, Any]) -> Any:
    ((name, values),) = distribution.items()
    if name in ("choice", "grid"):
        return tune.choice(values) if name == "choice" else tune.grid_search(values)
    return getattr(tune, name)(*values)


class _Announce(tune.Callback):
    """Says when a trial starts and ends."""

    def __init__(self, space: SweepConfig) -> None:
        self.space = space

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        settings = ", ".join(f"{key}={_text(value)}" for key, value in trial.config.items())
        log.info("%s starts: %s", _trial_name(trial.config), settings)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        value = (trial.last_result or {}).get(self.space.metric)
        ended = sum(other is trial or other.is_finished() for other in trials)
        log.info("%s ended: %s %s (%d so far)", _trial_name(trial.config), self.space.metric, _text(value), ended)


def _row(folder: RunFolder, result: Any, space: SweepConfig, epochs: int) -> dict[str, Any]:
    metrics, settings = result.metrics or {}, result.config or {}
    name = _trial_name(settings)
    is_whole = metrics.get("epoch") == float(epochs)
    numbers = {key: value for key, value in metrics.items() if key.count("/") == 1 and key != space.metric}
    return {
        "rank": 0,
        "trial": name,
        "status": "failed" if result.error else "finished" if is_whole else "stopped",
        "draws": 1,
        "epoch": metrics.get("epoch"),
        space.metric: metrics.get(space.metric),
        **redact_tree(settings),
        **dict(sorted(numbers.items())),
        "path": redact_uri(folder.uri_of(name)),
    }


def _once(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row a run, of the trial that came furthest; `draws` counts the trials that had it."""
    by_run: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_run.setdefault(row["trial"], []).append(row)
    return [
        {**max(equal, key=lambda row: (row["status"] == "finished", row["epoch"] or 0)), "draws": len(equal)}
        for equal in by_run.values()
    ]


def _rank(rows: list[dict[str, Any]], space: SweepConfig) -> list[dict[str, Any]]:
    sign = -1.0 if space.mode == "max" else 1.0

    def key(row: dict[str, Any]) -> tuple[bool, float]:
        value = row[space.metric]
        return value is None, 0.0 if value is None else sign * value

    return [{**row, "rank": rank} for rank, row in enumerate(sorted(rows, key=key), 1)]


def _csv(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)
