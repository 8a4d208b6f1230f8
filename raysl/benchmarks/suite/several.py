"""Several checkpoints measured alike, and a page that compares them; a run's checkpoints as they are saved."""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from raysl.benchmarks.suite.evaluate import Report, benchmark, prepare
from raysl.benchmarks.suite.results import RESULTS_FOLDER
from raysl.checkpoint.files import META_FILE, SETTINGS_FILE, checkpoint_names, newest, read_meta
from raysl.config.arguments import words
from raysl.config.load import load_dumped
from raysl.errors import ConfigError, log
from raysl.leaderboard.files import write_comparison
from raysl.plan.plan import TrainPlan
from raysl.report.contents import RunReport
from raysl.report.stored import parse_report_json
from raysl.storage.folder import Folder, cut, join, outlast

POLL_S = 10.0
"""Seconds between two looks for a new checkpoint."""


@dataclass(frozen=True)
class Comparison:
    """What benchmarks measured of several checkpoints.

    Args:
        reports: reports in the order of the checkpoints.
        path: address of `comparison.html`.
    """

    reports: list[Report]
    path: str

    def check(self) -> None:
        """Raise RunFailed with the reasons if a benchmark failed."""
        for report in self.reports:
            report.check()


def compare(
    checkpoints: Sequence[str],
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
        ConfigError: as `raysl.benchmark`, and if a checkpoint is given twice.
    """
    given = words(checkpoints, "checkpoints", "runs/mine")
    uris = [newest(checkpoint) for checkpoint in given]
    if twice := [uri for uri in uris if uris.count(uri) > 1]:
        raise ConfigError(f"{twice[0]} is given twice; give each checkpoint once")
    of_suites: dict[str, Any] = {"suite": suite, "root": root}
    for checkpoint in given:
        prepare(checkpoint, benchmarks, overrides, trust_code, **of_suites, download=download)
    reports = []
    for checkpoint in given:
        log.info("measuring %s", checkpoint)
        reports.append(
            benchmark(
                checkpoint,
                benchmarks,
                overrides,
                trust_code=trust_code,
                again=again,
                keep_features=keep_features,
                **of_suites,
            )
        )
    return Comparison(reports, write_page(reports, Folder(out or _home(uris))))


def write_page(reports: Sequence[Report], folder: Folder) -> str:
    """The page of reports that were written; its URI."""
    return write_comparison([_read(report) for report in reports], folder)


def _read(report: Report) -> RunReport:
    folder, _ = cut(report.path)
    return parse_report_json(Folder(folder).read("report.json"), folder)


def _home(uris: Sequence[str]) -> str:
    runs = {cut(uri)[0] for uri in uris}
    if len(runs) == 1:
        return _page_of(runs.pop())
    digest = hashlib.sha256("\n".join(sorted(uris)).encode()).hexdigest()[:6]
    storage, _ = cut(cut(uris[0])[0])
    return join(storage, f"comparison_{digest}")


def _page_of(run: str) -> str:
    """The folder of the page that compares checkpoints of one run."""
    return join(join(run, RESULTS_FOLDER), "comparison")


def watch(
    run: str,
    benchmarks: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
    trust_code: bool = False,
    sleep: Callable[[float], object] = time.sleep,
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
    reports: dict[str, Report] = {}
    page = ""
    while True:
        names = outlast(lambda: _whole(folder))
        new = [name for name in names if name not in reports]
        for name in new:
            report = _measured(folder, name, benchmarks, overrides, trust_code, suite, root)
            if report is not None:
                reports[name] = report
                page = write_page(list(reports.values()), Folder(_page_of(folder.uri)))
        if new:
            continue
        if names and is_last(folder.child(names[-1]), trust_code):
            return Comparison(list(reports.values()), page)
        sleep(POLL_S)


def _whole(run: Folder) -> list[str]:
    """Names of the checkpoints that were written to their end, oldest first."""
    return [name for name in checkpoint_names(run) if run.child(name).exists(META_FILE)]


def _measured(
    folder: Folder,
    name: str,
    benchmarks: Sequence[str] | None,
    overrides: Sequence[str],
    trust_code: bool,
    suite: str | Sequence[str] | None,
    root: str | None,
) -> Report | None:
    uri = folder.uri_of(name)
    try:
        return benchmark(uri, benchmarks, overrides, trust_code=trust_code, beside=True, suite=suite, root=root)
    except ConfigError:
        if folder.exists(name):
            raise
        log.warning("%s was removed by its run before it was measured; train.keep_checkpoints= keeps more", name)
        return None


def is_last(checkpoint: Folder, trust_code: bool = False) -> bool:
    """Whether a checkpoint is the last that its run saves.

    Args:
        trust_code: whether the components that it names may be code that is not raysl's, which is then imported.
    """
    meta = read_meta(checkpoint)
    text = checkpoint.read(SETTINGS_FILE).decode()
    config = load_dumped(text, f"the checkpoint {checkpoint.uri}", trust_code)
    plan = TrainPlan.from_config(config, meta["data"]["num_samples"], config.train.most_workers)
    return meta.get("ended") is not None or meta["step"] >= plan.total_steps
