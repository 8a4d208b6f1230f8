"""Measuring a checkpoint: benchmarks to results to a report."""

import re
from collections.abc import Sequence
from typing import Any

from raysl.benchmarks.suite.fitting import MeasuredImages, group_left_out
from raysl.benchmarks.suite.measurement import Measurement
from raysl.benchmarks.suite.measurement import Report as Report
from raysl.benchmarks.suite.results import RESULTS_FOLDER
from raysl.benchmarks.suite.settings import dataset_tag, load_benchmarks, load_cluster, load_data
from raysl.benchmarks.suite.suites import download as download_all
from raysl.benchmarks.suite.suites import load_suites
from raysl.checkpoint.backbone import Checkpoint, load_checkpoint
from raysl.checkpoint.files import checkpoint_names
from raysl.cluster.settings import use_settings
from raysl.config.arguments import words
from raysl.config.schema import DataConfig, RunConfig
from raysl.errors import ConfigError, Problems, log
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
    """Measure a checkpoint's backbone, the same one untrained, and raw pixels; keep the results and write the report.

    Features are extracted once for all benchmarks, which then run side by side on the cluster. Results are kept one
    file each in `<run>/benchmarks/<checkpoint>/`, and the report shows all that were measured of the checkpoint. That
    of a run's newest checkpoint on its own images lies in the run's folder, any other beside its results. What was
    measured before of the same weights, images, settings and code is not measured again.

    >>> report = benchmark("runs/mine", ["knn"])
    >>> 0 <= report.metrics["knn/k20/top1"] <= 100
    True

    Args:
        checkpoint: local path or URI of a checkpoint, or of a run, whose newest one is taken.
        benchmarks: names; default: those of the run's settings, or `knn` and `low_shot` where it has none.
        overrides: settings of the benchmarks, `knn.k=[20,200]`, and of other images, `data=parquet`, `data.test=/b`.
        facts: times, events and command of the run, for its report; default: those that the report has.
        trust_code: whether components that the checkpoint names may be code that is not raysl's.
        config: the settings of a run that was trained, as they are in use, whose benchmarks may be left out where the
            images do not allow them.
        again: measure everything again, with features that are computed again.
        keep_features: leave the features on disk for the next call, in `features/` beside the results; not those of a
            call beside which another one is at work on the checkpoint.
        beside: write the report beside the results, of the newest checkpoint too, as of a run that goes on saving.
        out: folder for results and report in place of the run's.
        suite: benchmarks on several datasets with their average: `transfer`, `vtab`, `dense`, the path of a YAML file,
            or a list of them. Datasets that are not there are left out and named. Without `benchmarks`, suites alone
            are measured.
        root: folder of their datasets; default: `data.root`, or else the variable RAYSL_DATA, or ~/data.
        download: whether torchvision fetches those of its datasets that are not there.

    Returns:
        The numbers, where the report lies, and which benchmarks failed.

    Raises:
        ConfigError: if the checkpoint, a name or a setting is wrong, it names code that is not trusted, or the images
            do not allow a benchmark that is required, or, without `config`, any.
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
) -> Measurement:
    """Check everything that can be checked before `benchmark` measures."""
    benchmarks = None if benchmarks is None else words(benchmarks, "benchmarks", "knn")
    overrides = words(overrides, "overrides", "knn.k=[20,200]")
    patience_s = 0.0 if config is None else PATIENCE_S  # a run that has just been trained waits for its storage
    loaded = outlast(lambda: load_checkpoint(checkpoint, trust_code, config), patience_s=patience_s)
    _check_finite(loaded)
    of_images = [word for word in overrides if re.match(r"data[.=]", word)]
    of_cluster = [word for word in overrides if word.startswith("cluster.")]
    rest = [word for word in overrides if word not in (*of_images, *of_cluster)]
    problems = Problems()
    with problems.catching():
        cluster = load_cluster(loaded.config, of_cluster)
    with problems.catching():
        data = load_data(loaded.config, of_images) if of_images else loaded.config.data
    problems.check()
    suites = load_suites(suite, root, data)
    wanted = load_benchmarks(loaded.config, benchmarks, rest, suites)
    usual = load_benchmarks(loaded.config, None, (), suites) if suites else {}
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
    return Measurement(loaded, fitting, images, *_folders(loaded, checkpoint, data, beside, out), suites, usual)


def _check_finite(loaded: Checkpoint) -> None:
    """Refuse a backbone whose features are all NaN or infinite."""
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
