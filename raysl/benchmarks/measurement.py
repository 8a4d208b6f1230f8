"""One measurement: some benchmarks of one checkpoint on one set of images, kept one by one and then reported."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from raysl.benchmarks.benchmark import Benchmark, FeatureSet, by_name, metrics_of
from raysl.benchmarks.features import extract_sets
from raysl.benchmarks.fitting import MeasuredImages
from raysl.benchmarks.results import Basis, Result, Results, label_of
from raysl.checkpoint import Checkpoint
from raysl.components import resolve
from raysl.config.schema import BenchmarkConfig, RunConfig
from raysl.data.source import Split
from raysl.data.sources.subset import even_share
from raysl.errors import RunFailed
from raysl.nn.pixels import RawPixels
from raysl.redact import bare_uri, redact
from raysl.report.contents import RunReport, Score, flat_metrics, parse_report_json
from raysl.storage import Folder, outlast

log = logging.getLogger("raysl")

MOST_SHOWN = 5000
"""Images that the pictures of a report are chosen from where no benchmark has the features of all of them."""


@dataclass(frozen=True)
class Report:
    """What benchmarks measured.

    Args:
        metrics: `knn/top1` is the trained backbone's; `knn/top1/untrained`, `/pixels` and `/deviation` stand beside it.
        path: of `report.html`.
        scores: the same as a table.
        failures: what kept a benchmark from giving a number, by its name.
    """

    metrics: dict[str, float]
    path: str
    scores: list[Score] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Fail where a benchmark has.

        Raises:
            RunFailed: with the reason of each.
        """
        if self.failures:
            reasons = "\n".join(f"the benchmark {name} failed: {reason}" for name, reason in self.failures.items())
            raise RunFailed(f"{reasons}\nall else was measured and kept; the next start measures what is missing")


class Measurement:
    """One checkpoint, some images, and the benchmarks that are wanted of them.

    Args:
        loaded: the checkpoint.
        wanted: settings of benchmarks, by their keys.
        images: what they are measured on.
        run: folder of the run.
        results: folder of the results.
        home: folder of the report.

    Raises:
        ConfigError: if the images do not allow a benchmark that is required.
    """

    def __init__(
        self,
        loaded: Checkpoint,
        wanted: Mapping[str, BenchmarkConfig],
        images: MeasuredImages,
        run: Folder,
        results: Folder,
        home: Folder,
    ) -> None:
        self.loaded = loaded
        self.wanted = wanted
        self.images = images
        self.run_folder = run
        self.home = home
        self.results = Results(results)
        self.fitting = images.fit(wanted)
        self.labels = {
            key: label_of(key, wanted[key], _own(loaded.config, key, wanted[key])) for key in self.fitting.settings
        }

    def run(self, facts: dict[str, Any], only_missing: bool) -> Report:
        """Measure, keep, report.

        Args:
            facts: fields of the report that only the caller knows, for a checkpoint that has no report yet.
            only_missing: leave alone what was measured before, and the report where nothing is missing.
        """
        kept = outlast(self.results.load)
        bases = {key: Basis.of(self.loaded, config, self.images) for key, config in self.fitting.settings.items()}
        lacking = [key for key, basis in bases.items() if not only_missing or not self._has(kept, key, basis)]
        failures: dict[str, str] = {}
        shown_features: FeatureSet | None = None
        if lacking:
            train_sets, test_sets = self._extract()
            shown_features = test_sets["trained"]
            for key in lacking:
                name, special = self.labels[key]
                kept.pop(name, None)
                try:
                    scores = self._measure(key, train_sets, test_sets)
                except Exception as error:  # noqa: BLE001 - whatever it is costs the others nothing
                    failures[name] = _told(name, error)
                else:
                    kept[name] = Result(name, bases[key], [_named(score, name, special) for score in scores])
                    self.results.keep(kept[name], self.images.data.name)
        scores = self._shown(kept, bases)
        path = self.home.uri_of("report.html")
        before = self._report_before()
        notes = self._notes(before, failures)
        if lacking or before is None or flat_metrics(before.scores) != flat_metrics(scores) or before.notes != notes:
            self._write(scores, notes, facts, before, shown_features)
        return Report(flat_metrics(scores), path, scores, failures)

    def _has(self, kept: Mapping[str, Result], key: str, basis: Basis) -> bool:
        name, _ = self.labels[key]
        return name in kept and kept[name].basis == basis

    def _extract(self) -> tuple[dict[str, FeatureSet], dict[str, FeatureSet]]:
        """Features of the training and of the test images, by what made them."""
        assert self.images.test is not None
        models: dict[str, nn.Module] = {
            "trained": self.loaded.backbone,
            "untrained": self.loaded.untrained(),
            "pixels": RawPixels(),
        }
        train = extract_sets(models, self.images.train, self.images.data)
        return train, extract_sets(models, self.images.test, self.images.data)

    def _measure(self, key: str, train: dict[str, FeatureSet], test: dict[str, FeatureSet]) -> list[Score]:
        config = self.fitting.settings[key]
        measure: Benchmark = resolve("benchmark", config.name)(config)
        num_classes, seed = len(self.images.train.classes), self.loaded.config.seed
        found = {name: by_name(metrics_of(measure.run(train[name], test[name], num_classes, seed))) for name in train}
        rivals = {side: {name: metric.value for name, metric in found[side].items()} for side in found}
        return [
            Score(
                benchmark=key,
                metric=metric.name,
                trained=metric.value,
                untrained=rivals["untrained"].get(metric.name),
                pixels=rivals["pixels"].get(metric.name),
                deviation=metric.deviation,
                unit=metric.unit,
                title=metric.title,
                is_headline=metric.is_headline,
                is_lower_better=metric.is_lower_better,
            )
            for metric in found["trained"].values()
        ]

    def _shown(self, kept: Mapping[str, Result], bases: Mapping[str, Basis]) -> list[Score]:
        """Scores of this checkpoint on these images: first those that were asked for now, then all others."""
        if not bases:
            return []
        asked = {self.labels[key][0]: basis for key, basis in bases.items()}
        any_basis = next(iter(bases.values()))
        names = [*asked, *(name for name in sorted(kept) if name not in asked)]
        scores = []
        for name in names:
            if name not in kept:
                continue
            basis = kept[name].basis
            if basis == asked[name] if name in asked else basis.is_of_the_same_images_and_weights(any_basis):
                scores += kept[name].scores
            else:
                log.warning("%s was measured on other images or weights; it is not shown", name)
        return scores

    def _notes(self, before: RunReport | None, failures: Mapping[str, str]) -> list[str]:
        """What could not be measured now, and what an earlier report says so of other benchmarks."""
        now = tuple(f"{key}{mark}" for key in self.wanted for mark in ":@ ")
        kept = [] if before is None else [note for note in before.notes if not note.startswith(now)]
        failed = [f"{name} failed: {reason}" for name, reason in failures.items()]
        return kept + [redact(note) for note in self.fitting.left_out + failed]

    def _report_before(self) -> RunReport | None:
        """The report that is there, if it is of this checkpoint."""
        content = outlast(lambda: self.home.read_if_there("report.json")).decode()
        try:
            report = parse_report_json(content, self.home.uri) if content else None
        except (ValueError, KeyError, TypeError):
            return None
        return report if report is not None and bare_uri(report.checkpoint) == bare_uri(self.loaded.uri) else None

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
            features = extract_sets({"trained": self.loaded.backbone}, shown, self.images.data)["trained"]
        if before is not None:
            facts = {name: getattr(before, name) for name in ("times", "events", "command", "finished")}
        pictured = Pictured(shown, features, is_held_out=self.images.test is not None)
        report = assemble(self.loaded, self.images, pictured, self.run_folder, facts)
        upload(replace(report, scores=scores, notes=notes), self.home)


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
