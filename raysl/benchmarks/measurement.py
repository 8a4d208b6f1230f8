"""One measurement: some benchmarks of one checkpoint, kept one by one and then reported."""

import io
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import nn

from raysl.benchmarks.benchmark import FEATURES, PIXELS, Context, FeatureSet, Side
from raysl.benchmarks.features.extraction import Wanted, check_stages, feature_sets
from raysl.benchmarks.features.stored import StoredSet
from raysl.benchmarks.fitting import Fitting, MeasuredImages, benchmark_class
from raysl.benchmarks.results import Basis, Result, Results, label_of, weights_of
from raysl.benchmarks.side_by_side import Measured, Task, measure, measure_all
from raysl.checkpoint import Checkpoint
from raysl.config.schema import BenchmarkConfig, RunConfig
from raysl.data.source import Split
from raysl.data.sources.subset import even_share
from raysl.errors import RunFailed, Stopped
from raysl.nn.pixels import RawPixels
from raysl.redact import bare_uri, redact
from raysl.report.contents import RunReport, Score, flat_metrics, parse_report_json
from raysl.screen import duration
from raysl.storage import Folder, outlast

log = logging.getLogger("raysl")

MOST_SHOWN = 5000
"""Images that the pictures of a report are chosen from where no benchmark has the features of all of them."""
FEATURES_FOLDER, WORK_FOLDER = "features", "work"


@dataclass(frozen=True)
class Report:
    """What benchmarks measured.

    Args:
        metrics: `knn/top1` is the trained backbone's; `knn/top1/untrained`, `/pixels` and `/deviation` stand beside it.
        path: of `report.html`.
        scores: the same as a table.
        failures: what kept a benchmark from giving a number, by its name.
        checkpoint: that was measured.
    """

    metrics: dict[str, float]
    path: str
    scores: list[Score] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    checkpoint: str = ""

    def check(self) -> None:
        """Fail where a benchmark has.

        Raises:
            RunFailed: with the reason of each.
        """
        if self.failures:
            reasons = "\n".join(f"the benchmark {name} failed: {reason}" for name, reason in self.failures.items())
            raise RunFailed(f"{reasons}\nall else was measured and kept; the next start measures what is missing")


class Measurement:
    """One checkpoint, and the benchmarks that are wanted of it.

    Args:
        loaded: the checkpoint.
        fitting: the benchmarks, as their images allow them.
        images: those that the report shows.
        run: folder of the run.
        results: folder of the results.
        home: folder of the report.

    Raises:
        ConfigError: if the backbone has not the stages that a benchmark asks for, or does not allow its settings.
    """

    def __init__(
        self, loaded: Checkpoint, fitting: Fitting, images: MeasuredImages, run: Folder, results: Folder, home: Folder
    ) -> None:
        self.loaded = loaded
        self.fitting = fitting
        self.images = images
        self.run_folder = run
        self.home = home
        self.results = Results(results)
        for key, config in fitting.settings.items():
            kind = benchmark_class(config)
            check_stages(loaded.backbone, kind.stages(config), f"{loaded.uri} for {key}")
            kind.check(config, loaded)
        self.labels = {
            key: label_of(key, fitting.asked[key], _own(loaded.config, key, config))
            for key, config in fitting.settings.items()
        }
        self.bases = {key: Basis.of(loaded, config, fitting.images[key]) for key, config in fitting.settings.items()}
        self.kept = outlast(self.results.load)

    @property
    def lacking(self) -> list[str]:
        """Benchmarks without a result of this content."""
        return [key for key in self.bases if not self._has(key)]

    def run(self, facts: dict[str, Any], again: bool = False, keep_features: bool = False) -> Report:
        """Measure what has no result yet, keep, report.

        Args:
            facts: fields of the report that only the caller knows, for a checkpoint that has no report yet.
            again: measure all anew.
            keep_features: leave the features on disk, for the next start.
        """
        lacking = list(self.bases) if again else self.lacking
        self._tell(lacking)
        if again:
            outlast(lambda: self.results.folder.remove_folder(WORK_FOLDER))
        failures: dict[str, str] = {}
        shown_features: FeatureSet | None = None
        if lacking:
            tasks = list(self._tasks(lacking))
            self._measure(tasks, failures)
            shown_features = self._shown_features(tasks)
        scores = self._shown()
        path = self.home.uri_of("report.html")
        before = self._report_before()
        notes = self._notes(before, failures)
        if lacking or before is None or flat_metrics(before.scores) != flat_metrics(scores) or before.notes != notes:
            self._write(scores, notes, facts, before, shown_features)
        if not failures and not keep_features:
            outlast(lambda: self.results.folder.remove_folder(FEATURES_FOLDER))
        return Report(flat_metrics(scores), path, scores, failures, self.loaded.uri)

    def _has(self, key: str) -> bool:
        name, _ = self.labels[key]
        return name in self.kept and self.kept[name].basis == self.bases[key]

    def _tell(self, lacking: list[str]) -> None:
        """Say what is taken from an earlier start, and why what is measured again is."""
        for key, basis in self.bases.items():
            name, _ = self.labels[key]
            if key not in lacking:
                log.info("%s was measured before; --again measures it anew", name)
            elif name in self.kept and (changes := basis.changes_from(self.kept[name].basis)):
                log.info("%s is measured again: another %s", name, ", ".join(changes))

    @cached_property
    def _networks(self) -> dict[Side, nn.Module]:
        return {"trained": self.loaded.backbone, "untrained": self.loaded.untrained(), "pixels": RawPixels()}

    def _tasks(self, keys: list[str]) -> Iterator[Task]:
        """A task for each benchmark and each of its sides; features are extracted once for all of them."""
        asked = {key: benchmark_class(config).stages(config) for key, config in self.fitting.settings.items()}
        stored: dict[tuple[int, str], dict[str, StoredSet]] = {}
        for images in {id(self.fitting.images[key]): self.fitting.images[key] for key in keys}.values():
            own = [key for key in keys if self.fitting.images[key] is images and asked[key]]
            for name, split in images.splits.items() if own else ():
                stored[id(images), name] = self._extract(own, asked, split, images, name)
        for key in keys:
            config, images = self.fitting.settings[key], self.fitting.images[key]
            for side in self._sides(key):
                sets = {name: stored.get((id(images), name), {}).get(side) for name in ("train", "test")}
                if asked[key] and sets["train"] is None:
                    continue  # pixels have no stages
                yield Task(
                    key=key,
                    kind=benchmark_class(config),
                    config=config,
                    context=self._context(key, side),
                    stages=asked[key],
                    train=sets["train"] if asked[key] else None,
                    test=sets["test"] if asked[key] else None,
                    class_names=images.train.classes,
                )

    def _sides(self, key: str) -> list[Side]:
        rivals = self.fitting.settings[key].rivals
        return [side for side in self._networks if side == "trained" or side in rivals]

    def _extract(
        self, keys: list[str], asked: Mapping[str, tuple[str, ...]], split: Split, images: MeasuredImages, name: str
    ) -> dict[str, StoredSet]:
        sides = [side for side in self._networks if any(side in self._sides(key) for key in keys)]
        stages = tuple(dict.fromkeys([FEATURES, *(stage for key in keys for stage in asked[key])]))
        digest = weights_of(self.loaded)
        wanted = Wanted(
            networks={side: self._networks[side] for side in sides},
            weights={side: PIXELS if side == PIXELS else f"{side} {digest}" for side in sides},
            stages=stages,
        )
        folder = self.results.folder.child(FEATURES_FOLDER)
        if images is not self.images:
            folder = folder.child(split.fingerprint.replace("/", "-")[:40] or "other")
        return feature_sets(wanted, split, images.data, folder.child(name))

    def _context(self, key: str, side: Side) -> Context:
        images = self.fitting.images[key]
        name, _ = self.labels[key]
        return Context(
            side=side,
            network=self._networks[side],
            checkpoint=self.loaded,
            data=images.data,
            images=images.splits,
            train=None,
            test=None,
            num_classes=images.num_classes,
            seed=self.loaded.config.seed,
            folder=self.results.folder.child(WORK_FOLDER).child(f"{name}.{side}"),
        )

    def _measure(self, tasks: list[Task], failures: dict[str, str]) -> None:
        """Measure all, and keep each result as soon as all its sides are there."""
        open_sides = {task.key: 0 for task in tasks}
        log.info("measuring %s ...", ", ".join(open_sides))
        for task in tasks:
            open_sides[task.key] += 1
        found: dict[str, dict[Side, tuple[Task, Measured]]] = {}
        for task, outcome in self._outcomes(tasks):
            name, _ = self.labels[task.key]
            if isinstance(outcome, Exception):
                if name not in failures:  # its other networks say the same
                    failures[name] = _told(name, outcome)
                self.kept.pop(name, None)
                continue
            found.setdefault(task.key, {})[task.context.side] = (task, outcome)
            if len(found[task.key]) == open_sides[task.key]:
                self._keep(task.key, found[task.key])

    def _outcomes(self, tasks: list[Task]) -> Iterator[tuple[Task, Measured | Exception]]:
        """First those on features, side by side; then those that start workers, one after another."""
        yield from measure_all([task for task in tasks if not task.kind.trains])
        for task in tasks:
            if task.kind.trains:
                log.info("%s of the %s backbone ...", task.key, task.context.side)
                try:
                    yield task, measure(task)
                except Stopped:  # the user's wish, not a failure
                    raise
                except Exception as error:  # noqa: BLE001 - whatever it is costs the others nothing
                    yield task, error

    def _keep(self, key: str, found: Mapping[Side, tuple[Task, Measured]]) -> None:
        name, special = self.labels[key]
        sides = {side: measured for side, (_, measured) in found.items()}
        trained = sides["trained"]
        rivals = {
            side: {metric.name: metric.value for metric in sides[side].metrics.values()} if side in sides else {}
            for side in ("untrained", PIXELS)
        }
        scores = [
            Score(
                benchmark=key,
                metric=metric.name,
                trained=metric.value,
                untrained=rivals["untrained"].get(metric.name),
                pixels=rivals[PIXELS].get(metric.name),
                deviation=metric.deviation,
                interval=metric.interval,
                unit=metric.unit,
                title=metric.title,
                is_headline=metric.is_headline,
                is_lower_better=metric.is_lower_better,
            )
            for metric in trained.metrics.values()
        ]
        seconds = sum(measured.seconds for measured in sides.values())
        result = Result(
            name, self.bases[key], [_named(score, name, special) for score in scores], trained.figures, seconds
        )
        self.kept[name] = result
        self.results.keep(result, self.fitting.images[key].data.name, _predictions(*found["trained"]))
        log.info("%s is measured and kept, in %s", name, duration(seconds))

    def _shown(self) -> list[Score]:
        """Scores of this checkpoint on these images: first those that were asked for now, then all others."""
        return [score for result in self._shown_results() for score in result.scores]

    def _shown_results(self) -> list[Result]:
        if not self.bases:
            return []
        asked = {self.labels[key][0]: basis for key, basis in self.bases.items()}
        any_basis = next(iter(self.bases.values()))
        names = [*asked, *(name for name in sorted(self.kept) if name not in asked)]
        results = []
        for name in names:
            if name not in self.kept:
                continue
            basis = self.kept[name].basis
            if basis == asked[name] if name in asked else basis.may_stand_beside(any_basis):
                results.append(self.kept[name])
            else:
                log.warning("%s was measured on other images or weights; it is not shown", name)
        return results

    def _notes(self, before: RunReport | None, failures: Mapping[str, str]) -> list[str]:
        """What could not be measured now, and what an earlier report says so of other benchmarks."""
        now = tuple(f"{key}{mark}" for key in self.fitting.asked for mark in ":@ ")
        kept = [] if before is None else [note for note in before.notes if not note.startswith(now)]
        failed = [f"{name} failed: {reason}" for name, reason in failures.items()]
        return kept + [redact(note) for note in self.fitting.left_out + failed]

    def _report_before(self) -> RunReport | None:
        """The report that is there, if it is of this checkpoint."""
        content = outlast(lambda: self.home.read_if_there("report.json"))
        try:
            report = parse_report_json(content.decode(), self.home.uri) if content else None
        except (ValueError, KeyError, TypeError):
            return None
        return report if report is not None and bare_uri(report.checkpoint) == bare_uri(self.loaded.uri) else None

    def _shown_features(self, tasks: list[Task]) -> FeatureSet | None:
        """Features of the images that the report shows, where a benchmark has them."""
        for task in tasks:
            is_own = self.fitting.images[task.key] is self.images and task.context.side == "trained"
            if is_own and task.test is not None:
                return task.test.load((FEATURES,))
        return None

    def _write(
        self,
        scores: list[Score],
        notes: list[str],
        facts: dict[str, Any],
        before: RunReport | None,
        features: FeatureSet | None,
    ) -> None:
        from raysl.report.assemble import Pictured, assemble, upload  # matplotlib, which no start should wait for

        shown: Split = self.images.train if self.images.test is None else self.images.test
        if features is None:
            shown = even_share(shown, MOST_SHOWN)
            wanted = Wanted({"trained": self.loaded.backbone}, {"trained": f"trained {weights_of(self.loaded)}"})
            folder = self.results.folder.child(FEATURES_FOLDER).child("shown")
            features = feature_sets(wanted, shown, self.images.data, folder)["trained"].load((FEATURES,))
        if before is not None:
            facts = {name: getattr(before, name) for name in ("times", "events", "command", "finished")}
        pictured = Pictured(shown, features, is_held_out=self.images.test is not None)
        results = self._shown_results()
        figures = {result.name: result.figures for result in results if result.figures}
        here = tuple(split.fingerprint for split in self.images.splits.values())
        own = [result.name for result in results if (result.basis.train, result.basis.test) == here]
        retrieved = {name: figures[name]["retrieved"] for name in own if "retrieved" in figures.get(name, {})}
        report = assemble(self.loaded, self.images, pictured, self.run_folder, facts, retrieved)
        upload(replace(report, scores=scores, notes=notes, figures=figures), self.home)


def _predictions(task: Task, measured: Measured) -> bytes:
    """What each test image was taken for, as a Parquet file; empty of a benchmark that does not classify them."""
    test = task.context.images.get("test")
    if measured.predicted is None or test is None or test.num_samples != len(measured.predicted):
        return b""
    predicted, index = measured.predicted.numpy(), np.arange(test.num_samples)
    rows = None if task.test is None else task.test.any  # which need not read the images for their names
    labels = test.labels_of(index) if rows is None else rows.labels.numpy()
    columns = {
        "index": index,
        "name": pa.array([redact(name) for name in test.names_of(index)] if rows is None else rows.names, pa.string()),
        "prediction": predicted,
        "class": pa.array([task.class_names[place] if place >= 0 else None for place in predicted], pa.string()),
    }
    if measured.confidence is not None:
        columns["score"] = measured.confidence.numpy()
    if labels.ndim == 1:
        columns["label"] = labels
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def _own(config: RunConfig, key: str, wanted: BenchmarkConfig) -> BenchmarkConfig | None:
    """The settings that a run has for a benchmark, or the default ones."""
    own = config.benchmarks.get(key)
    if own is not None and own.name == wanted.name:
        return own
    try:
        return type(wanted)(name=wanted.name)
    except TypeError:  # a setting without a default: what was given is what it is
        return None


def _told(name: str, error: Exception) -> str:
    """Why a benchmark gave no number; the place in the code, too, where it is no reason that a user can read."""
    is_reason = isinstance(error, ValueError | RunFailed)
    log.error("the benchmark %s failed: %s", name, error, exc_info=None if is_reason else error)
    return str(error) if is_reason else f"{type(error).__name__}: {error}"


def _named(score: Score, name: str, special: str) -> Score:
    """A score under the name of its result, with what is to be known of it; special settings do not open the page."""
    notes = [special] if special else []
    if score.is_saturated:
        notes.append("raw pixels nearly solve this one already")
    if special:
        score = replace(score, title=f"{score.heading} ({special})", is_headline=False)
    return replace(score, benchmark=name, note="; ".join(notes))
