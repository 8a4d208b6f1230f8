"""Several checkpoints measured alike, and a page that compares them; a run's checkpoints as they are saved."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from time import sleep
from typing import Any

from raysl.benchmarks.suite.evaluate import Report, benchmark, prepare
from raysl.benchmarks.suite.results import RESULTS_FOLDER
from raysl.checkpoint.checkpoint_folder import META_FILE, SETTINGS_FILE, checkpoint_names, newest, read_meta
from raysl.config.arguments import texts_or_paths
from raysl.config.load import load_dumped
from raysl.errors import ConfigError, log
from raysl.leaderboard.page.comparison import write_comparison
from raysl.plan.plan import TrainPlan
from raysl.report.report_json import parse_report_json
from raysl.storage.folder import Folder, cut, join, outlast

POLL_S = 10.0
"""Seconds between two looks for a new checkpoint."""


@dataclass(frozen=True)
class Comparison:
    """What benchmarks measured of several checkpoints.

    Args:
        reports: reports in the order of the checkpoints.
    """

    reports: list[Report]
    path: str

    def check(self) -> None:
        """Raise RunFailed with the reasons if a benchmark failed."""
        for report in self.reports:
            report.check()


def compare(
    checkpoints: Sequence[str | os.PathLike[str]],
    benchmarks: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
    out: str | None = None,
    trust_code: bool = False,
    again: bool = False,
    keep_features: bool = False,
    suite: str | Sequence[str] | None = None,
    root: str | None = None,
    download: bool = False,
) -> Comparison:
    """Measure several checkpoints alike and write one page with all of them.

    All are looked at before the first is measured. Each keeps its own results and report, see `raysl.benchmark`.

    >>> comparison = compare(["runs/mine", "runs/other"], ["knn"])
    >>> comparison.path.endswith("comparison.html")
    True

    Args:
        checkpoints: local paths or URIs of checkpoints, or of runs, whose newest ones are taken.
        benchmarks, overrides, trust_code, again, keep_features, suite, root, download: arguments of `raysl.benchmark`.
        out: folder of the page; default: `comparison` in the run that all of them are of, else `comparison_<hash>`
            beside the first one's run.

    Raises:
        ConfigError: as `raysl.benchmark`, and if a checkpoint is given twice, or none.
    """
    names = texts_or_paths(checkpoints, "checkpoints", "runs/mine")
    uris = [newest(checkpoint) for checkpoint in names]
    if twice := [uri for uri in uris if uris.count(uri) > 1]:
        raise ConfigError(f"{twice[0]} is given twice; give each checkpoint once")
    options: dict[str, Any] = {"trust_code": trust_code, "suite": suite, "root": root}
    for checkpoint in names:
        prepare(checkpoint, benchmarks, overrides, **options, download=download)
    options |= {"again": again, "keep_features": keep_features}
    reports = []
    for checkpoint in names:
        log.info("measuring %s", checkpoint)
        reports.append(benchmark(checkpoint, benchmarks, overrides, **options))
    if not out:
        runs = {cut(uri)[0] for uri in uris}
        digest = hashlib.sha256("\n".join(sorted(uris)).encode()).hexdigest()[:6]
        storage, _ = cut(cut(uris[0])[0])
        out = _page_of(runs.pop()) if len(runs) == 1 else join(storage, f"comparison_{digest}")
    return Comparison(reports, _write_page(reports, out))


def _write_page(reports: Sequence[Report], folder: str) -> str:
    """Write the page of reports that were written, and return its URI."""
    homes = [cut(report.path)[0] for report in reports]
    return write_comparison(
        [parse_report_json(Folder(home).read("report.json"), home) for home in homes], Folder(folder)
    )


def _page_of(run: str) -> str:
    """Return the folder of the page that compares checkpoints of one run."""
    return join(join(run, RESULTS_FOLDER), "comparison")


def watch(
    run: str,
    benchmarks: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
    trust_code: bool = False,
    suite: str | Sequence[str] | None = None,
    root: str | None = None,
) -> Comparison:
    """Measure each checkpoint that a run saves, until it is finished, and write one page with all of them.

    A checkpoint that the run removes before its turn is passed over; what was measured before is not measured again.
    The report of each lies beside its results, that of the run stays as it is.

    Args:
        run: local path or URI of its folder, which need not have a checkpoint yet.
        benchmarks, overrides, trust_code: arguments of `raysl.benchmark`.
        suite, root: arguments of `raysl.benchmark`.
    """
    folder = Folder(run)
    if not folder.exists():
        raise ConfigError(f"no run at {folder.uri}; start it first, raysl pretrain")
    options: dict[str, Any] = {"trust_code": trust_code, "suite": suite, "root": root}
    reports: dict[str, Report] = {}
    page = ""
    while True:
        # the meta file is written last
        names = outlast(lambda: [name for name in checkpoint_names(folder) if folder.child(name).exists(META_FILE)])
        new = [name for name in names if name not in reports]
        for name in new:
            uri = folder.uri_of(name)
            try:
                reports[name] = benchmark(uri, benchmarks, overrides, beside=True, **options)
            except ConfigError:
                if folder.exists(name):
                    raise
                log.warning(
                    "%s was removed by its run before it was measured; train.keep_checkpoints= keeps more", name
                )
                continue
            page = _write_page(list(reports.values()), _page_of(folder.uri))
        # measuring takes a while: look for new checkpoints again before asking whether the run has ended
        if new:
            continue
        if names and is_last(folder.child(names[-1]), trust_code):
            return Comparison(list(reports.values()), page)
        sleep(POLL_S)


def is_last(checkpoint: Folder, trust_code: bool = False) -> bool:
    """Return whether a checkpoint is the last that its run saves.

    Args:
        trust_code: whether the components that it names may be code that is not raysl's, which is then imported.
    """
    meta = read_meta(checkpoint)
    text = checkpoint.read(SETTINGS_FILE).decode()
    config = load_dumped(text, f"the checkpoint {checkpoint.uri}", trust_code)
    plan = TrainPlan.from_config(config, meta["data"]["num_samples"], config.train.most_workers)
    return meta.get("ended") is not None or meta["step"] >= plan.total_steps
