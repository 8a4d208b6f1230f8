"""One measurement: benchmarks of a checkpoint, stored one by one and then reported."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

from raysl.benchmarks.benchmark import PIXELS, Benchmark, Side
from raysl.benchmarks.features.extraction import check_stages
from raysl.benchmarks.metric import Metric, interval_of_difference
from raysl.benchmarks.report.stored_report import StoredReport
from raysl.benchmarks.suite.averages import scores_of
from raysl.benchmarks.suite.fitting import Fitting, MeasuredImages, benchmark_class
from raysl.benchmarks.suite.protocols import names_of, protocol_of
from raysl.benchmarks.suite.results import OTHER_CODE, Basis, Result, Results
from raysl.benchmarks.suite.side_by_side import (
    Measured,
    Task,
    measure,
    measure_all,
    predictions_file,
    sharing_features,
)
from raysl.benchmarks.suite.suites import Suite, members_of
from raysl.benchmarks.suite.tasks import Tasks, outlooks
from raysl.benchmarks.suite.workplace import workplace
from raysl.checkpoint.backbone import Checkpoint
from raysl.config.schema import BenchmarkConfig, RunConfig
from raysl.errors import ConfigError, RunFailed, Stopped, log
from raysl.process.screen import duration
from raysl.process.waiting import enter, narrow
from raysl.redact import redact_uri
from raysl.report.contents import DEFAULTS, Score, flat_metrics
from raysl.report.summary import score_html, score_table
from raysl.report.verdict import remarks
from raysl.storage.folder import Folder, outlast

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Report:
    """The results of a measurement.

    Args:
        metrics: `knn/k20/top1` is the trained backbone's; `/untrained`, `/pixels` and `/deviation` stand beside it.
        path: address of `report.html`.
        scores: the same as a table.
        failures: why benchmarks failed, by name.
        checkpoint: address of the measured checkpoint.
    """

    metrics: dict[str, float]
    path: str
    scores: list[Score] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    checkpoint: str = ""

    def check(self) -> None:
        """Raise RunFailed with the reasons if a benchmark failed."""
        if self.failures:
            reasons = "\n".join(f"the benchmark {name} failed: {reason}" for name, reason in self.failures.items())
            raise RunFailed(f"{reasons}\nall others were measured and stored; the next start measures what is missing")

    @property
    def frame(self) -> "pd.DataFrame":
        """`scores` as a pandas table with one row each."""
        import pandas as pd

        return pd.DataFrame([asdict(score) for score in self.scores], columns=[column.name for column in fields(Score)])

    def table(self) -> str:
        """`scores` as aligned text, as commands print them."""
        return score_table(self.scores)

    def __repr__(self) -> str:
        """The scores with verdicts, notes, failures and the address of the page, as a Python shell shows them."""
        failed = [f"{name} failed: {reason}" for name, reason in self.failures.items()]
        return "\n".join(line for line in (self.table(), *remarks(self.scores), *failed, redact_uri(self.path)) if line)

    def _repr_html_(self) -> str:
        """The same for a notebook."""
        failed = [f"{name} failed: {why}" for name, why in self.failures.items()]
        lines = "".join(f"<p>{escape(line)}</p>" for line in (*remarks(self.scores), *failed))
        return (score_html(self.scores) + lines) or "<p>nothing was measured</p>"


class Measurement:
    """A checkpoint and the benchmarks to measure.

    Args:
        images: those that the report shows.
        suites: suites whose parts are among the benchmarks.
        usual: settings of these parts before the changes of the command.
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
        usual: Mapping[str, BenchmarkConfig] | None = None,
    ) -> None:
        self.loaded = loaded
        self.fitting = fitting
        self.images = images
        self.run_folder = run
        self.home = home
        self.results = Results(results)
        self.members = members_of(suites)
        self.asked = [*fitting.asked, *(key for suite in suites for key in suite.left_out)]
        for key, config in fitting.settings.items():
            kind = benchmark_class(config)
            check_stages(loaded.backbone, kind.stages(config), f"{loaded.uri} for {key}")
            _check_channels(key, kind, config, loaded)
            kind.check(config, loaded)
        names = {
            key: names_of(key, fitting.asked[key], (usual or {}).get(key) or _own(loaded.config, key, config))
            for key, config in fitting.settings.items()
        }
        self.names = {key: name for key, (name, _) in names.items()}
        self.titles = {key: name for key, (_, name) in names.items()}
        self.bases = {key: Basis.of(loaded, config, fitting.images[key]) for key, config in fitting.settings.items()}
        self.kept = outlast(self.results.load)

    @property
    def lacking(self) -> list[str]:
        """Benchmarks without a current result."""
        return [key for key in self.bases if not self._has(key)]

    def run(self, facts: Callable[[], dict[str, Any]], again: bool = False, keep_features: bool = False) -> Report:
        """Measure what has no current result, store it and write the report.

        Args:
            facts: returns the fields of the report that only the caller knows, when it is written.
            again: measure all anew.
            keep_features: leave the features on disk, for the next start.
        """
        lacking = list(self.bases) if again else self.lacking
        self._tell(lacking)
        page = StoredReport(self.loaded, self.images, self.run_folder, self.home)
        results, failures = [] if lacking else self._shown(), dict[str, str]()
        notes = page.notes(self.asked, self.fitting.left_out, failures)
        if lacking or page.differs(results, notes):
            with workplace(self.results.folder) as work:
                if again:
                    work.begin_anew()
                made = Tasks(self.loaded, self.fitting, self.images, self.names, work)
                tasks = list(made.of(lacking))
                with sharing_features(tasks):
                    self._measure(tasks, failures)
                    self._look_again(failures)
                    results = self._shown(is_logged=True)
                    notes = page.notes(self.asked, self.fitting.left_out, failures)
                    enter("writing the report")
                    page.write(results, notes, facts(), made.shown(tasks))
                if not failures and not keep_features:
                    work.forget_features()
        scores = scores_of(results)
        return Report(flat_metrics(scores), page.uri, scores, failures, self.loaded.uri)

    def _look_again(self, failures: Mapping[str, str]) -> None:
        """Read results that other commands have stored in the meantime."""
        self.kept = outlast(self.results.load)
        for name in failures:
            self.kept.pop(name, None)

    def _has(self, key: str) -> bool:
        name = self.names[key]
        return name in self.kept and self.kept[name].basis == self.bases[key]

    def _tell(self, lacking: list[str]) -> None:
        """Log which results are reused, and why others are measured again."""
        for key, basis in self.bases.items():
            name = self.names[key]
            if key not in lacking:
                log.info("%s was measured before; --again measures it anew", name)
            elif name in self.kept and (changes := basis.changes_from(self.kept[name].basis)):
                log.info("%s is measured again: %s", name, ", ".join(changes))

    def _measure(self, tasks: list[Task], failures: dict[str, str]) -> None:
        """Measure tasks, and store each result as soon as all its sides are done."""
        open_sides = {task.key: 0 for task in tasks}
        for task in tasks:
            open_sides[task.key] += 1
        by_key: dict[str, dict[Side, tuple[Task, Measured]]] = {}
        for task, outcome in self._outcomes(tasks):
            name = self.names[task.key]
            if isinstance(outcome, Exception):
                if name not in failures:  # its other networks say the same
                    failures[name] = _describe_failure(name, outcome)
                self.kept.pop(name, None)
                continue
            by_key.setdefault(task.key, {})[task.context.side] = (task, outcome)
            if len(by_key[task.key]) == open_sides[task.key]:
                self._keep(task.key, by_key[task.key])

    def _outcomes(self, tasks: list[Task]) -> Iterator[tuple[Task, Measured | Exception]]:
        """Yield tasks with their outcomes: first those on features, side by side, then those that start workers, one by
        one."""
        on_features = [task for task in tasks if not task.kind.trains]
        if on_features:
            enter(_measuring(on_features))
            from raysl.cluster.connection import cluster_resources, connect  # Ray, which a worker needs

            connect()  # where no features were extracted, it has not begun
            for line in outlooks(on_features, cluster_resources().cpus):
                log.info(line)
        left = list(on_features)
        for task, outcome in measure_all(on_features):
            left = [other for other in left if other is not task]
            if left:
                narrow(_measuring(left))
            yield task, outcome
        for task in tasks:
            if task.kind.trains:
                enter(f"training for {task.key}, the {task.context.side} backbone")
                try:
                    yield task, measure(task)
                except Stopped:  # the user's wish, not a failure
                    raise
                except Exception as error:  # noqa: BLE001 - whatever it is costs the others nothing
                    yield task, error

    def _keep(self, key: str, by_side: Mapping[Side, tuple[Task, Measured]]) -> None:
        name = self.names[key]
        sides = {side: measured for side, (_, measured) in by_side.items()}
        trained = sides["trained"]
        rivals = {side: sides[side].metrics if side in sides else {} for side in ("untrained", PIXELS)}
        protocol = protocol_of(self.fitting.settings[key])
        scores = [_score(self.titles[key], metric, rivals, protocol) for metric in trained.metrics.values()]
        seconds = sum(measured.seconds for measured in sides.values())
        result = Result(
            name,
            self.bases[key],
            scores,
            trained.figures,
            seconds,
            self.members.get(key),
        )
        self.kept[name] = result
        self.results.keep(result, self.fitting.images[key].data.name, predictions_file(*by_side["trained"]))
        for task, _ in by_side.values():
            if task.kind.trains:
                outlast(partial(task.costs_folder.remove_folder, ""))
        for note in dict.fromkeys(metric.note for metric in trained.metrics.values() if metric.note):
            log.warning("%s: %s", name, note)
        log.info("%s is measured and kept, in %s", name, duration(seconds))

    def _shown(self, is_logged: bool = False) -> list[Result]:
        """Return results of this checkpoint on these images: first the requested ones, then all others."""
        if not self.bases:
            return []
        asked = {self.names[key]: basis for key, basis in self.bases.items()}
        members = {name: self.members[key] for key, name in self.names.items() if key in self.members}
        names = [*asked, *(name for name in sorted(self.kept) if name not in asked)]
        results = []
        for name in names:
            if name not in self.kept:
                continue
            result = replace(self.kept[name], member=members.get(name, self.kept[name].member))
            changes = asked[name].changes_from(result.basis) if name in asked else self._changes_since(result)
            if not changes:
                results.append(result)
            elif name not in asked and changes == [OTHER_CODE]:
                results.append(replace(result, scores=[_of_other_code(score) for score in result.scores]))
            elif is_logged:
                log.warning("%s is not shown: since it was measured there are %s", name, ", ".join(changes))
        return results

    def _changes_since(self, result: Result) -> list[str]:
        """Return what has changed since a result was stored that is not requested now."""
        try:
            now = result.basis.now(self.loaded, self.images)
        except ConfigError as error:
            return [f"images that cannot be looked at again ({error})"]
        return now.changes_from(result.basis)


def _check_channels(key: str, kind: type[Benchmark], config: BenchmarkConfig, loaded: Checkpoint) -> None:
    """Refuse benchmarks with images of their own, of red, green and blue, for a backbone that takes others."""
    num = loaded.backbone.in_channels
    if num != 3 and kind.needs(config).own_images:
        raise ConfigError(
            f"benchmarks.{key}: its images are red, green and blue, and the backbone takes {num} channels; leave it out"
        )


def _own(config: RunConfig, key: str, wanted: BenchmarkConfig) -> BenchmarkConfig | None:
    """Return the settings of the run for a benchmark, or the default ones."""
    config_of_run = config.benchmarks.get(key)
    if config_of_run is not None and config_of_run.name == wanted.name:
        return config_of_run
    try:
        return type(wanted)(name=wanted.name)
    except TypeError:  # a setting without a default
        return None


def _measuring(tasks: Sequence[Task]) -> str:
    return f"measuring {', '.join(dict.fromkeys(task.key for task in tasks))}"


def _describe_failure(name: str, error: Exception) -> str:
    """Log and return why a benchmark failed, with a traceback if the reason is not for users."""
    is_reason = isinstance(error, ValueError | RunFailed)
    log.error("the benchmark %s failed: %s", name, error, exc_info=None if is_reason else error)
    return str(error) if is_reason else f"{type(error).__name__}: {error}"


def _score(benchmark: str, metric: Metric, rivals: Mapping[str, Mapping[str, Metric]], protocol: str) -> Score:
    """Make a score of the trained network beside those of its rivals.

    Args:
        rivals: the metrics of `untrained` and `pixels`, by name.
        protocol: see `Score.protocol`.
    """
    beside: dict[str, Any] = {}
    for name, metrics in rivals.items():
        if (other := metrics.get(metric.name)) is not None:
            beside |= {name: other.value, f"over_{name}": interval_of_difference(metric, other)}
    score = Score(
        benchmark=benchmark,
        metric=metric.name,
        trained=metric.value,
        **beside,
        deviation=metric.deviation,
        interval=metric.interval,
        unit=metric.unit,
        title=metric.title,
        is_headline=metric.is_headline,
        is_lower_better=metric.is_lower_better,
        note=metric.note,
        protocol=protocol,
    )
    notes = [] if score.is_own else [protocol or DEFAULTS]
    notes += [metric.note] if metric.note else []
    if score.is_saturated:
        notes.append("raw pixels nearly solve this one already")
    return replace(score, note="; ".join(notes))


def _of_other_code(score: Score) -> Score:
    """Return a score with a note that it was measured by other code."""
    return replace(score, note="; ".join(filter(None, (score.note, "measured by other code than this raysl's"))))
