"""Sweeps: a search over pre-training runs, scheduled by Ray Tune, to one leaderboard.

Each trial is a whole run in `<storage>/<name>/trial_<hash of its settings>/`, with its checkpoints and its report, and
resumes like any other; trials with equal settings are one run. Tune's notes are in `<storage>/<name>/tune/`. Starting a
sweep of the same name again goes on where it stopped.
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ray import tune
from ray.train import UserCallback
from ray.tune import Tuner
from ray.tune.integration.ray_train import TuneReportCallback
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.basic_variant import BasicVariantGenerator

from raysl.addresses import absolute
from raysl.arguments import instance, run_config
from raysl.benchmarks.benchmark import Needs
from raysl.benchmarks.suite.fitting import MeasuredImages
from raysl.cluster import Resources, connect, worker_shape
from raysl.config.dump import dump, dump_all
from raysl.config.files import read
from raysl.config.load import apply_overrides
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError, RunInUse
from raysl.leaderboard import COSTS, Leaderboard, as_csv, once, ranked, shown
from raysl.redact import bare_tree, redact_tree, redact_uri
from raysl.sweep_space import SweepConfig, dump_sweep, examples, load_starts
from raysl.train.folder.run_folder import RunFolder
from raysl.train.prepare import prepare
from raysl.train.pretrain import Result, pretrain

log = logging.getLogger("raysl")

TRIAL_CPUS = 0.01  # of the process that drives a trial; its workers and data tasks have their own


def sweep(config: RunConfig, space: SweepConfig, starts: Mapping[str, RunConfig] | None = None) -> Leaderboard:
    """Run every trial of a sweep, or those that an earlier start of the same name left.

    Args:
        config: settings that the trials depart from; its `name` and `storage` are those of the sweep.
        space: what varies, how many trials, and what ranks them.
        starts: settings that the trials of a space with `configs` depart from in place of `config`, by the names of
            those; default: as they are in their files (`raysl.sweep_space.load_starts`).

    Raises:
        ConfigError: if a setting is wrong, or another sweep has this name.
    """
    instance(space, SweepConfig, "space", "the first of what raysl.sweep_space.load_sweep('sweep/quickstart') returns")
    config = run_config(config)
    base = replace(config, storage=absolute(config.storage))
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"  # a report before the first measurement lacks the metric
    if starts is None:
        starts = load_starts(space)
    bases = {name: _with_metric(start, space) for name, start in (starts or {_ALONE: base}).items()}
    for name, start in bases.items():
        with _named(name):
            _check(start, space)
    _warn_of_credentials(base, space)
    folder = RunFolder.of(base)
    folder.make()
    with folder.locked():
        _claim(folder, base.name, bases, space)
        connect(with_state=True)
        most = max(bases.values(), key=lambda start: start.train.workers)
        room = _room(space, most, worker_shape(most.train, Resources.of_cluster()))
        results = _tuner(folder, bases, space, base.seed, room).fit()
    rows = ranked(once([_row(folder, result, space, bases) for result in results]), space.metric, space.mode)
    content = as_csv(rows)
    folder.write("leaderboard.csv", content.encode())
    return Leaderboard(rows, folder.uri_of("leaderboard.csv"))


CONFIG = "config"  # column of the leaderboard: what a trial departs from, where there are several
_ALONE = ""  # the name of what all trials depart from, where that is one configuration


def _with_metric(start: RunConfig, space: SweepConfig) -> RunConfig:
    """Settings with the measurement that ranks the trials."""
    if space.metric != "knn_top1":
        return start
    return replace(start, train=replace(start.train, online_knn_every=start.train.checkpoint_every))


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Put the name of a configuration in front of what is wrong with it."""
    try:
        yield
    except ConfigError as error:
        if name == _ALONE:
            raise
        raise ConfigError("\n".join(f"{name}: {line}" for line in str(error).splitlines())) from error


def _check(start: RunConfig, space: SweepConfig) -> None:
    """Refuse what could not be tried; without anything that varies, a trial is known whole, and so are its images."""
    if space.metric == "knn_top1":
        _check_labels(start, space)
    for key, distribution in space.space.items():
        for value in examples(key, distribution):
            apply_overrides(start, [_setting(key, value)])
    if not space.space:
        prepare(start)


def _check_labels(base: RunConfig, space: SweepConfig) -> None:
    """Refuse to rank by the online kNN where the images, the same in all trials, do not allow it."""
    if any(key.split(".")[0] == "data" for key in space.space):
        return
    if missing := MeasuredImages.of(base.data).lacks(Needs()):
        raise ConfigError(
            f"metric: knn_top1 cannot be measured, {missing}; rank by another, such as metric=loss mode=min"
        )


def _warn_of_credentials(base: RunConfig, space: SweepConfig) -> None:
    """Say so where Tune's notes, which are pickles, get to hold credentials."""
    for key, value in {"storage": base.storage, **space.space}.items():
        if redact_tree(value) != value:
            log.warning("%s has credentials, which Ray Tune keeps in its notes; better give them by environment", key)


def _claim(folder: RunFolder, name: str, bases: Mapping[str, RunConfig], space: SweepConfig) -> None:
    ours = dump(bases[_ALONE]) if _ALONE in bases else dump_all(bases, "starts")
    text = dump_sweep(space) + "\n# departs from:\n" + ours
    before = folder.read_if_there("sweep.yaml").decode()
    if before and bare_tree(read(before, "sweep.yaml")) != bare_tree(read(text, "sweep.yaml")):
        raise ConfigError(
            f"another sweep named {name!r} is in {folder.uri} (see its sweep.yaml); give this one another name="
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


def _tuner(folder: RunFolder, bases: Mapping[str, RunConfig], space: SweepConfig, seed: int, concurrent: int) -> Tuner:
    def trial(settings: dict[str, Any]) -> None:
        run = _trial_config(bases, folder, settings)
        result = _pretrained(run, [TuneReportCallback()])
        numbers = {name: value for name, value in result.metrics.items() if name != "step"}
        if "step_s" in result.history:
            numbers["step_s"] = float(result.history["step_s"].median())
        tune.report({**numbers, "epoch": float(_base(bases, settings).train.epochs)})

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
    epochs = max(base.train.epochs for base in bases.values())
    if space.scheduler == "asha":
        scheduler = ASHAScheduler(
            time_attr="epoch",
            max_t=epochs + 1,  # asha would stop a trial that reaches max_t, before it is measured
            grace_period=min(space.grace_epochs, epochs),
            reduction_factor=space.reduction,
        )
    return Tuner(
        trainable,
        param_space={key: _distribution(values) for key, values in {**_starts(bases), **space.space}.items()},
        tune_config=tune.TuneConfig(
            metric=space.metric,
            mode=space.mode,
            num_samples=space.trials if space.space else 1,
            max_concurrent_trials=concurrent,
            search_alg=BasicVariantGenerator(max_concurrent=concurrent, random_state=seed),
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


def _starts(bases: Mapping[str, RunConfig]) -> dict[str, dict[str, Any]]:
    """The configuration as something that varies, where there are several."""
    return {} if _ALONE in bases else {CONFIG: {"grid": list(bases)}}


def _base(bases: Mapping[str, RunConfig], settings: dict[str, Any]) -> RunConfig:
    return bases[settings.get(CONFIG, _ALONE)]


def _trial_config(bases: Mapping[str, RunConfig], folder: RunFolder, settings: dict[str, Any]) -> RunConfig:
    varied = [_setting(key, value) for key, value in settings.items() if key != CONFIG]
    return replace(apply_overrides(_base(bases, settings), varied), storage=folder.uri, name=_trial_name(settings))


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
        settings = ", ".join(f"{key}={shown(value)}" for key, value in trial.config.items())
        log.info("%s starts: %s", _trial_name(trial.config), settings)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        value = (trial.last_result or {}).get(self.space.metric)
        ended = sum(other is trial or other.is_finished() for other in trials)
        log.info("%s ended: %s %s (%d so far)", _trial_name(trial.config), self.space.metric, shown(value), ended)


def _row(folder: RunFolder, result: Any, space: SweepConfig, bases: Mapping[str, RunConfig]) -> dict[str, Any]:
    metrics, settings = result.metrics or {}, result.config or {}
    name = _trial_name(settings)
    is_whole = metrics.get("epoch") == float(_base(bases, settings).train.epochs)
    numbers = {key: value for key, value in metrics.items() if key.count("/") == 1 and key != space.metric}
    costs = {key: metrics[key] for key in COSTS if key in metrics and key != space.metric}
    return {
        "rank": 0,
        "trial": name,
        "status": "failed" if result.error else "finished" if is_whole else "stopped",
        "draws": 1,
        "epoch": metrics.get("epoch"),
        space.metric: metrics.get(space.metric),
        **{key: metrics[key] for key in (f"{space.metric}/untrained",) if key in metrics},
        **redact_tree(settings),
        **dict(sorted(numbers.items())),
        **costs,
        "path": redact_uri(folder.uri_of(name)),
    }
