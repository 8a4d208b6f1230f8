"""The report of a checkpoint: written again where it differs from the stored one."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from raysl.benchmarks.report.assemble import Pictured, assemble, upload
from raysl.benchmarks.suite.fitting import MeasuredImages
from raysl.benchmarks.suite.results import Result
from raysl.benchmarks.suite.scores import scores_of
from raysl.checkpoint.backbone import Checkpoint
from raysl.redact import bare_uri, redact
from raysl.report.contents import RunReport, flat_metrics
from raysl.report.report_json import parse_report_json
from raysl.report.run_page import FILES
from raysl.storage.folder import Folder, outlast


class StoredReport:
    """The report of a checkpoint in its folder.

    Args:
        images: images that it was measured on.
        run: folder of its run.
        home: folder of the report.
    """

    def __init__(self, loaded: Checkpoint, images: MeasuredImages, run: Folder, home: Folder) -> None:
        self.loaded = loaded
        self.images = images
        self.run = run
        self.home = home

    @property
    def uri(self) -> str:
        """Its URI."""
        return self.home.uri_of("report.html")

    @cached_property
    def before(self) -> RunReport | None:
        """The stored report, if it is of this checkpoint."""
        content = outlast(lambda: self.home.read_if_there("report.json"))
        try:
            report = parse_report_json(content, self.home.uri) if content else None
        except (ValueError, KeyError, TypeError):
            return None
        return report if report is not None and bare_uri(report.checkpoint) == bare_uri(self.loaded.uri) else None

    def notes(self, keys: Sequence[str], left_out: Sequence[str], failures: Mapping[str, str]) -> list[str]:
        """Return what could not be measured now, with the notes of an earlier report on other benchmarks.

        Args:
            keys: keys of the benchmarks of this measurement.
            left_out: a line on each of them, or part of one, that the images do not allow.
            failures: reasons by the names of results.
        """
        # notes on these benchmarks begin with the key and one of these marks, and are made anew
        now = tuple(f"{key}{mark}" for key in keys for mark in ":@ ")
        earlier = [] if self.before is None else [note for note in self.before.notes if not note.startswith(now)]
        failed = [f"{name} failed: {reason}" for name, reason in failures.items()]
        return earlier + [redact(note) for note in [*left_out, *failed]]

    def differs(self, results: Sequence[Result], notes: Sequence[str]) -> bool:
        """Return whether the stored report shows something else, or one of its files is missing."""
        scores = scores_of(results)
        if not all(outlast(partial(self.home.exists, name)) for name in FILES):
            return True
        before = self.before
        if before is None or flat_metrics(before.scores) != flat_metrics(scores) or before.notes != notes:
            return True
        return [redact(score.note) for score in scores] != [score.note for score in before.scores]

    def write(self, results: Sequence[Result], notes: list[str], facts: dict[str, Any], pictured: Pictured) -> None:
        """Write it."""
        if self.before is not None:
            kept = {name: getattr(self.before, name) for name in ("times", "events", "command", "finished")}
            facts = kept | facts
        figures = {result.name: result.figures for result in results if result.figures}
        images = tuple(split.fingerprint for split in self.images.splits.values())
        # searches name images by number, which means something only among the report's own images
        same_images = [result.name for result in results if (result.basis.train, result.basis.test) == images]
        retrieved = {name: figures[name]["retrieved"] for name in same_images if "retrieved" in figures.get(name, {})}
        report = assemble(self.loaded, self.images, pictured, self.run, facts, retrieved)
        scores = scores_of(results)
        states = [self.images.state(name) for name in self.images.splits]
        digest = hashlib.sha256(json.dumps(states, sort_keys=True).encode()).hexdigest()[:12]
        upload(replace(report, scores=scores, notes=notes, figures=figures, measured_on=digest), self.home)
