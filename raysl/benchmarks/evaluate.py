"""From a checkpoint to numbers and a report: the benchmarks on its features, beside what needs no training."""

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from raysl.benchmarks.benchmark import Benchmark, FeatureSet
from raysl.benchmarks.features import RawPixels, extract_sets
from raysl.checkpoint import Checkpoint, load_checkpoint
from raysl.components import resolve
from raysl.config.arguments import words
from raysl.config.schema import BenchmarkConfig, ConfigError, RunConfig
from raysl.config.stored import load_benchmarks
from raysl.data.source import Split
from raysl.report.assemble import assemble
from raysl.report.contents import Score, flat_metrics
from raysl.storage import PATIENCE_S, Folder, cut, outlast

log = logging.getLogger("raysl")

SATURATED = 97.0


@dataclass(frozen=True)
class Report:
    """What benchmarks measured.

    Args:
        metrics: `knn/top1` is the trained backbone's; `knn/top1/untrained`, `/pixels` and `/deviation` stand beside it.
        path: of `report.html`.
        scores: the same as a table.
    """

    metrics: dict[str, float]
    path: str
    scores: list[Score] = field(default_factory=list)


def benchmark(
    checkpoint: str,
    benchmarks: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
    facts: dict[str, Any] | None = None,
    trust_code: bool = False,
    config: RunConfig | None = None,
) -> Report:
    """Measure a checkpoint's backbone, the same one untrained, and raw pixels; write the report.

    Args:
        checkpoint: local path or URI of a checkpoint, or of a run, whose newest one is taken.
        benchmarks: names; default: those of the run's settings, or all where it has none.
        overrides: settings of the benchmarks, `knn.k=[20,200]`.
        facts: what the caller knows of the run for its report (times, events, command).
        trust_code: whether components that the checkpoint names may be code that is not raysl's.
        config: the run's settings as they are in use, where the caller has them.

    Returns:
        The numbers, and where the report lies: in the run's folder.

    Raises:
        ConfigError: if the checkpoint, a name or a setting is wrong, it names code that is not trusted, or the images
            have no labels or several each.
    """
    benchmarks = None if benchmarks is None else words(benchmarks, "benchmarks", "knn")
    overrides = words(overrides, "overrides", "knn.k=[20,200]")
    patience_s = 0.0 if config is None else PATIENCE_S  # a run that has just been trained waits for its storage
    loaded = outlast(lambda: load_checkpoint(checkpoint, trust_code, config), patience_s=patience_s)
    chosen = load_benchmarks(loaded.config, benchmarks, overrides)
    data = loaded.config.data
    source = resolve("source", data.name)(data)
    train, test = source.required("train"), source.required("test")
    if not train.classes:
        raise ConfigError(f"the images of {data.name!r} have no labels, and every benchmark needs them")
    if train.is_multilabel:
        raise ConfigError(f"the images of {data.name!r} have several labels each, which no benchmark measures yet")
    models = {"trained": loaded.backbone, "untrained": loaded.untrained(), "pixels": RawPixels()}
    train_sets = extract_sets(models, train, data)
    test_sets = extract_sets(models, test, data)
    scores = [
        score
        for config in chosen.values()
        for score in _scores(config, train_sets, test_sets, len(train.classes), loaded.config.seed)
    ]
    path = _write(loaded, scores, train, test, test_sets["trained"], train_sets["trained"], facts or {})
    return Report(flat_metrics(scores), path, scores)


def _scores(
    config: BenchmarkConfig,
    train: dict[str, FeatureSet],
    test: dict[str, FeatureSet],
    num_classes: int,
    seed: int,
) -> list[Score]:
    measure: Benchmark = resolve("benchmark", config.name)(config)
    found = {name: measure.run(train[name], test[name], num_classes, seed) for name in train}
    scores = []
    for metric, value in found["trained"].items():
        if metric.endswith("_std"):
            continue
        pixels = found["pixels"].get(metric)
        is_saturated = config.name == "knn" and pixels is not None and pixels >= SATURATED
        scores.append(
            Score(
                benchmark=config.name,
                metric=metric,
                trained=value,
                untrained=found["untrained"].get(metric),
                pixels=pixels,
                deviation=found["trained"].get(f"{metric}_std"),
                note="raw pixels nearly solve this one already" if is_saturated else "",
            )
        )
    return scores


def _write(
    loaded: Checkpoint,
    scores: list[Score],
    train: Split,
    test: Split,
    test_features: FeatureSet,
    train_features: FeatureSet,
    facts: dict[str, Any],
) -> str:
    from raysl.report.page import write_report  # matplotlib, which no start of a training should wait for

    folder = Folder(cut(loaded.uri)[0])
    report = assemble(loaded, scores, train, test, train_features, test_features, folder, facts)
    with tempfile.TemporaryDirectory(prefix="raysl_report_") as draft:
        write_report(report, Path(draft))
        for name in ("report.json", "report.html"):
            outlast(partial(folder.upload, Path(draft) / name, name))
    return folder.uri_of("report.html")
