"""Measure a checkpoint by benchmarks, store each result as soon as it is measured, and write the report."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from raysl.benchmarks.benchmark import PIXELS, Benchmark, Side
from raysl.benchmarks.features.embedding import check_stages
from raysl.benchmarks.suite.fitting import Fitting, MeasuredImages, benchmark_class, group_left_out
from raysl.benchmarks.suite.measured import Measured, predictions_file
from raysl.benchmarks.suite.protocols import default_of, names_of, protocol_of
from raysl.benchmarks.suite.report import StoredReport
from raysl.benchmarks.suite.results import OTHER_CODE, RESULTS_FOLDER, Basis, Result, Results
from raysl.benchmarks.suite.scores import Report as Report
from raysl.benchmarks.suite.scores import of_other_code, score_of, scores_of
from raysl.benchmarks.suite.settings import dataset_tag, load_benchmarks, load_cluster, load_data, sort_overrides
from raysl.benchmarks.suite.suites import Suite, load_suites
from raysl.benchmarks.suite.suites import download as download_all
from raysl.benchmarks.suite.tasks import Task, Tasks, measure, measure_all, outlooks, sharing_features
from raysl.benchmarks.suite.workplace import workplace
from raysl.checkpoint.backbone import Checkpoint, load_checkpoint
from raysl.checkpoint.checkpoint_folder import checkpoint_names
from raysl.cluster.settings import use_settings
from raysl.config.arguments import words
from raysl.config.schema import BenchmarkConfig, DataConfig, RunConfig
from raysl.errors import ConfigError, Problems, RunFailed, Stopped, log
from raysl.process.screen import duration
from raysl.process.waiting import enter, narrow
from raysl.report.contents import flat_metrics
from raysl.storage.folder import PATIENCE_S, Folder, cut, outlast


def benchmark(
    checkpoint: str,
    benchmarks: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
    facts: dict[str, Any] | None = None,
    trust_code: bool = False,
    config: RunConfig | None = None,
    again: bool = False,
    keep_features: bool = False,
    beside: bool = False,
    out: str | None = None,
    suite: str | Sequence[str] | None = None,
    root: str | None = None,
    download: bool = False,
) -> Report:
    """Measure a checkpoint's backbone, its untrained network, and raw pixels; store the results and write the report.

    Features are extracted once for all benchmarks, which then run side by side on the cluster. Each result is a file
    in `<run>/benchmarks/<checkpoint>/`, and the report shows all results of the checkpoint. The report of a run's
    newest checkpoint on the run's own images is in the run's folder, any other report beside its results. A result of
    the same weights, images, settings and code is reused.

    >>> report = benchmark("runs/mine", ["knn"])
    >>> 0 <= report.metrics["knn/k20/top1"] <= 100
    True

    Args:
        checkpoint: local path or URI of a checkpoint, or of a run, whose newest checkpoint is taken.
        benchmarks: names of benchmarks; default: those of the run's settings, or `knn` and `low_shot` if it has none.
        overrides: settings of the benchmarks, `knn.k=[20,200]`, and of other images, `data=parquet`, `data.test=/b`.
        facts: times, events and command of the run, for its report; default: those of the stored report.
        trust_code: whether components that the checkpoint names may be code that is not raysl's.
        config: present settings of a run just trained; benchmarks that the images do not allow are then left out.
        again: whether to extract features and measure everything again.
        keep_features: whether to keep the features on disk for the next call, in `features/` beside the results; a
            call deletes its features if another call works on the same checkpoint at the same time.
        beside: whether to write the report beside the results even for the newest checkpoint, as for a run in training.
        out: folder for results and report; default: the run's.
        suite: suite of benchmarks on several datasets with an average (`transfer`, `vtab`, `dense`, or the path of a
            YAML file), or a list of suites. Missing datasets are left out and named. Without `benchmarks`, only the
            suites are measured.
        root: folder of the suite's datasets; default: `data.root`, else the variable RAYSL_DATA, else ~/data.
        download: whether torchvision downloads missing datasets that it knows.

    Returns:
        The numbers, the address of the report, and the benchmarks that failed.

    Raises:
        ConfigError: if the checkpoint, a name or a setting is wrong, the checkpoint names code that is not trusted, the
            images do not allow a required benchmark, or, without `config`, they allow none.
    """
    task = prepare(checkpoint, benchmarks, overrides, trust_code, config, beside, out, suite, root, download)
    return task.run(lambda: facts or {}, again, keep_features)


def prepare(
    checkpoint: str,
    benchmarks: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
    trust_code: bool = False,
    config: RunConfig | None = None,
    beside: bool = False,
    out: str | None = None,
    suite: str | Sequence[str] | None = None,
    root: str | None = None,
    download: bool = False,
) -> "Measurement":
    """Check the arguments of `benchmark` before anything is measured."""
    benchmarks = None if benchmarks is None else words(benchmarks, "benchmarks", "knn")
    of_images, of_cluster, rest = sort_overrides(words(overrides, "overrides", "knn.k=[20,200]"))
    patience_s = 0.0 if config is None else PATIENCE_S  # a run that has just been trained waits for its storage
    loaded = outlast(lambda: load_checkpoint(checkpoint, trust_code, config), patience_s=patience_s)
    _check_finite(loaded)
    problems = Problems()
    with problems.catching():
        cluster = load_cluster(loaded.config, of_cluster)
    with problems.catching():
        data = load_data(loaded.config, of_images)
    problems.check()
    suites = load_suites(suite, root, data)
    wanted = load_benchmarks(loaded.config, benchmarks, rest, suites)
    suite_defaults = load_benchmarks(loaded.config, None, (), suites) if suites else {}
    if download:
        download_all(suites, data)
    use_settings(cluster)
    images = MeasuredImages.of(data)
    fitting = images.fit(wanted, config is not None, {key: text for one in suites for key, text in one.files.items()})
    fitting.left_out.extend(note for one in suites for note in one.notes)
    if config is None:
        for line in group_left_out(fitting.left_out):
            log.warning(line)
        if not fitting.settings:
            raise ConfigError(f"nothing can be measured: {fitting.reasons}")
    return Measurement(
        loaded, fitting, images, *_folders(loaded, checkpoint, data, beside, out), suites, suite_defaults
    )


class Measurement:
    """A checkpoint and the benchmarks to measure.

    Args:
        run, results, home: folders of the run, of the results and of the report.
        suites: suites whose parts are among the benchmarks.
        suite_defaults: settings of these parts without the overrides of the command.
    """

    def __init__(
        self,
        loaded: Checkpoint,
        fitting: Fitting,
        images: MeasuredImages,
        run: Folder,
        results: Folder,
        home: Folder,
        suites: Sequence[Suite] = (),
        suite_defaults: Mapping[str, BenchmarkConfig] | None = None,
    ) -> None:
        self.loaded = loaded
        self.fitting = fitting
        self.images = images
        self.run_folder = run
        self.home = home
        self.results = Results(results)
        self.members = {key: member for suite in suites for key, member in suite.members.items()}
        self.requested = [*fitting.requested, *(key for suite in suites for key in suite.left_out)]
        for key, config in fitting.settings.items():
            kind = benchmark_class(config)
            check_stages(loaded.backbone, kind.stages(config), f"{loaded.uri} for {key}")
            _check_channels(key, kind, config, loaded)
            kind.check(config, loaded)
        self.names: dict[str, str] = {}  # of results
        self.score_names: dict[str, str] = {}  # of benchmarks in scores
        self.bases: dict[str, Basis] = {}
        for key, config in fitting.settings.items():
            of_run = (suite_defaults or {}).get(key) or _settings_of_run(loaded.config, key, config)
            self.names[key], self.score_names[key] = names_of(key, fitting.requested[key], of_run)
            self.bases[key] = Basis.of(loaded, config, fitting.images[key])
        self.kept = outlast(self.results.load)

    @property
    def missing(self) -> list[str]:
        """Benchmarks without a current result."""
        kept = {name: result.basis for name, result in self.kept.items()}
        return [key for key, basis in self.bases.items() if kept.get(self.names[key]) != basis]

    def run(self, facts: Callable[[], dict[str, Any]], again: bool = False, keep_features: bool = False) -> Report:
        """Measure the benchmarks without a current result, store the results and write the report.

        Args:
            facts: function that returns the fields of the report that only the caller knows.
            again: whether to measure all benchmarks again.
            keep_features: whether to keep the features on disk for the next call.
        """
        missing = list(self.bases) if again else self.missing
        self._log_reuse(missing)
        page = StoredReport(self.loaded, self.images, self.run_folder, self.home)
        results, failures = [] if missing else self._shown(), dict[str, str]()
        notes = page.notes(self.requested, self.fitting.left_out, failures)
        if missing or page.differs(results, notes):
            with workplace(self.results.folder) as work:
                if again:
                    work.begin_anew()
                maker = Tasks(self.loaded, self.fitting, self.images, self.names, work)
                tasks = list(maker.of(missing))
                with sharing_features(tasks):
                    self._measure(tasks, failures)
                    # other commands may have stored results of this checkpoint meanwhile
                    self.kept = outlast(self.results.load)
                    # a stored result of an earlier start must not stand in for a benchmark that failed now
                    for name in failures:
                        self.kept.pop(name, None)
                    results = self._shown(is_logged=True)
                    notes = page.notes(self.requested, self.fitting.left_out, failures)
                    enter("writing the report")
                    page.write(results, notes, facts(), maker.shown(tasks), lambda: maker.untrained)
                if not failures and not keep_features:
                    work.forget_features()
        scores = scores_of(results)
        return Report(flat_metrics(scores), page.uri, scores, failures, self.loaded.uri)

    def _log_reuse(self, missing: list[str]) -> None:
        """Log the results that are reused, and why others are measured again."""
        for key, basis in self.bases.items():
            name = self.names[key]
            if key not in missing:
                log.info("%s was measured before; --again measures it anew", name)
            elif name in self.kept and (changes := basis.changes_from(self.kept[name].basis)):
                log.info("%s is measured again: %s", name, ", ".join(changes))

    def _measure(self, tasks: list[Task], failures: dict[str, str]) -> None:
        """Measure tasks, and store each result as soon as all its sides are done."""
        open_sides = Counter(task.key for task in tasks)
        by_key: dict[str, dict[Side, tuple[Task, Measured]]] = {}
        for task, outcome in self._outcomes(tasks):
            name = self.names[task.key]
            if isinstance(outcome, Exception):
                if name not in failures:  # one network is enough: the others fail for the same reason
                    failures[name] = _describe_failure(name, outcome)
                self.kept.pop(name, None)
                continue
            by_key.setdefault(task.key, {})[task.context.side] = (task, outcome)
            # a result holds the trained network beside its rivals, so it waits for all of them
            if len(by_key[task.key]) == open_sides[task.key]:
                self._store_result(task.key, by_key[task.key])

    def _outcomes(self, tasks: list[Task]) -> Iterator[tuple[Task, Measured | Exception]]:
        """Yield tasks with their results or errors: first those on features, side by side, then those that train, one
        after another."""
        on_features = [task for task in tasks if not task.kind.trains]
        if on_features:
            enter(_measuring(on_features))
            from raysl.cluster.connection import cluster_resources, connect  # imports Ray, which only a worker needs

            connect()  # extraction connects too, but no features may have been extracted
            for line in outlooks(on_features, cluster_resources().cpus):
                log.info(line)
        running = list(on_features)
        for task, outcome in measure_all(on_features):
            running = [other for other in running if other is not task]
            if running:
                narrow(_measuring(running))
            yield task, outcome
        for task in tasks:
            if task.kind.trains:
                enter(f"training for {task.key}, the {task.context.side} backbone")
                try:
                    yield task, measure(task)
                except Stopped:  # requested by the user, so not a failure
                    raise
                except Exception as error:  # noqa: BLE001 - the other tasks go on after any error
                    yield task, error

    def _store_result(self, key: str, by_side: Mapping[Side, tuple[Task, Measured]]) -> None:
        name = self.names[key]
        sides = {side: measured for side, (_, measured) in by_side.items()}
        trained = sides["trained"]
        rivals = {side: sides[side].metrics if side in sides else {} for side in ("untrained", PIXELS)}
        protocol = protocol_of(self.fitting.settings[key])
        scores = [score_of(self.score_names[key], metric, rivals, protocol) for metric in trained.metrics.values()]
        seconds = round(sum(measured.seconds for measured in sides.values()), 2)
        result = Result(name, self.bases[key], scores, trained.figures, seconds, self.members.get(key))
        self.kept[name] = result
        task = by_side["trained"][0]
        rows = None if task.test is None else task.test.any
        predictions = predictions_file(trained, task.context.images.get("test"), rows, task.class_names)
        self.results.keep(result, self.fitting.images[key].data.name, predictions)
        for task, _ in by_side.values():
            if task.kind.trains:
                outlast(partial(task.costs_folder.remove_folder, ""))
        for note in dict.fromkeys(metric.note for metric in trained.metrics.values() if metric.note):
            log.warning("%s: %s", name, note)
        log.info("%s is measured and kept, in %s", name, duration(seconds))

    def _shown(self, is_logged: bool = False) -> list[Result]:
        """Return the results of this checkpoint on these images: first the requested ones, then all others."""
        if not self.bases:
            return []
        requested = {self.names[key]: basis for key, basis in self.bases.items()}
        members = {name: self.members[key] for key, name in self.names.items() if key in self.members}
        names = [*requested, *(name for name in sorted(self.kept) if name not in requested)]
        results = []
        for name in (name for name in names if name in self.kept):
            result = replace(self.kept[name], member=members.get(name, self.kept[name].member))
            changes = requested[name].changes_from(result.basis) if name in requested else self._changes_since(result)
            if not changes:
                results.append(result)
            # results that are not requested now stay on the page, with a note, if only code has changed
            elif name not in requested and changes == [OTHER_CODE]:
                results.append(replace(result, scores=[of_other_code(score) for score in result.scores]))
            elif is_logged:
                log.warning("%s is not shown: since it was measured there are %s", name, ", ".join(changes))
        return results

    def _changes_since(self, result: Result) -> list[str]:
        """Return the changes since a result was stored; the result is not among the requested ones."""
        try:
            now = result.basis.now(self.loaded, self.images)
        except ConfigError as error:
            return [f"images that cannot be read any more ({error})"]
        return now.changes_from(result.basis)


def _check_finite(loaded: Checkpoint) -> None:
    """Refuse a backbone whose weights or buffers are not all finite."""
    weights = loaded.backbone.state_dict()
    if bad := [name for name, value in weights.items() if not bool(value.isfinite().all())]:
        raise ConfigError(
            f"{len(bad)} of the {len(weights)} tensors of the backbone in {loaded.uri} have values that are not "
            f"finite, {bad[0]} first: its training went wrong; take an older checkpoint"
        )


def _folders(
    loaded: Checkpoint, checkpoint: str, data: DataConfig, beside: bool, out: str | None
) -> tuple[Folder, Folder, Folder]:
    """Return the folders of the run, of the results and of the report."""
    uri, name = cut(loaded.uri)
    run = Folder(uri)
    if out is not None:
        return run, Folder(out).child(RESULTS_FOLDER).child(name), Folder(out)
    results = run.child(RESULTS_FOLDER).child(name)
    if tag := dataset_tag(data, loaded.config.data):
        results = results.child(tag)
        return run, results, results
    is_newest = Folder(checkpoint).uri == run.uri or not any(other > name for other in checkpoint_names(run))
    return run, results, run if is_newest and not beside else results


def _check_channels(key: str, kind: type[Benchmark], config: BenchmarkConfig, loaded: Checkpoint) -> None:
    """Refuse a benchmark that brings its own RGB images, for a backbone of another number of channels."""
    num = loaded.backbone.in_channels
    if num != 3 and kind.needs(config).own_images:
        raise ConfigError(
            f"benchmarks.{key}: its images are red, green and blue, and the backbone takes {num} channels; leave it out"
        )


def _settings_of_run(config: RunConfig, key: str, wanted: BenchmarkConfig) -> BenchmarkConfig | None:
    """Return the run's settings of a benchmark, or the default ones if the run has none."""
    config_of_run = config.benchmarks.get(key)
    return config_of_run if config_of_run is not None and config_of_run.name == wanted.name else default_of(wanted)


def _measuring(tasks: Sequence[Task]) -> str:
    return f"measuring {', '.join(dict.fromkeys(task.key for task in tasks))}"


def _describe_failure(name: str, error: Exception) -> str:
    """Log and return why a benchmark failed; log the traceback too, unless the error was raised for the user."""
    is_for_user = isinstance(error, ValueError | RunFailed)
    log.error("the benchmark %s failed: %s", name, error, exc_info=None if is_for_user else error)
    return str(error) if is_for_user else f"{type(error).__name__}: {error}"
