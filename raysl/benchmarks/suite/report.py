"""The report of a checkpoint: gathered from the run, its images and its results, and written where it differs."""

import hashlib
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from raysl.benchmarks.suite.fitting import MeasuredImages
from raysl.benchmarks.suite.pictures import (
    Pictured,
    embeddings,
    neighbours,
    patches,
    reconstructions,
    retrieved_images,
    views,
)
from raysl.benchmarks.suite.results import Result
from raysl.benchmarks.suite.scores import scores_of
from raysl.checkpoint.backbone import Checkpoint
from raysl.checkpoint.lineage import read_parents
from raysl.config.docs import describe
from raysl.config.dump import plain, to_dict
from raysl.nn.backbones.backbone import Backbone
from raysl.process.environment import version_of
from raysl.process.temporary import temporary_folder
from raysl.redact import bare_uri, redact
from raysl.report.contents import RunReport, flat_metrics
from raysl.report.report_json import parse_report_json
from raysl.report.run_page import FILES, write_report
from raysl.storage.folder import Folder, outlast
from raysl.train.callbacks.logs import parse_metrics
from raysl.user_files import short_name


@dataclass(frozen=True)
class StoredReport:
    """The report of a checkpoint in its folder.

    Args:
        images: images that it was measured on.
        run: folder of its run.
        home: folder of the report.
    """

    loaded: Checkpoint
    images: MeasuredImages
    run: Folder
    home: Folder

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

    def write(
        self,
        results: Sequence[Result],
        notes: list[str],
        facts: dict[str, Any],
        pictured: Pictured,
        untrained: Callable[[], Backbone],
    ) -> None:
        """Write it.

        Args:
            facts: fields of the report that only the caller knows: times, events, command, the time of its end.
            pictured: the images that it shows.
            untrained: returns the network with the initial weights of the run's seed.
        """
        if self.before is not None:
            kept = {name: getattr(self.before, name) for name in ("times", "events", "command", "finished")}
            facts = kept | facts
        facts = {"finished": datetime.now(UTC).isoformat(timespec="seconds"), **facts}
        figures = {result.name: result.figures for result in results if result.figures}
        images, data, config = self.images, self.images.data, self.loaded.config
        prints = tuple(split.fingerprint for split in images.splits.values())
        # searches name images by number, which means something only among the report's own images
        same_images = [result.name for result in results if (result.basis.train, result.basis.test) == prints]
        retrieved = {name: figures[name]["retrieved"] for name in same_images if "retrieved" in figures.get(name, {})}
        states = [images.state(name) for name in images.splits]
        num_test = "no" if images.test is None else f"{images.test.num_samples:,}"
        history = self.run.read_if_there("metrics.jsonl")
        report = RunReport(
            name=config.name,
            method=short_name(config.method.name),
            backbone=_backbone_title(self.loaded),
            dataset=f"{data.name}, {images.train.num_samples:,} training and {num_test} test images",
            config=to_dict(config),
            config_docs={row.key: row.line for row in describe(config)},
            environment=_environment(),
            history=parse_metrics(history, self.run.uri_of("metrics.jsonl")) if history else [],
            embeddings=embeddings(pictured, data),
            neighbours=neighbours(pictured, data),
            views=views(self.loaded, images.train),
            retrieved=retrieved_images(retrieved, images),
            patches=patches(self.loaded, pictured, data, untrained),
            reconstructions=reconstructions(self.run, self.loaded.meta["step"]),
            parents=[str(parent) for parent in read_parents(self.run)],
            checkpoint=self.loaded.uri,
            step=self.loaded.meta["step"],
            scores=scores_of(results),
            notes=notes,
            figures=figures,
            measured_on=hashlib.sha256(json.dumps(states, sort_keys=True).encode()).hexdigest()[:12],
            **facts,
        )
        outlast(self.home.make)
        with temporary_folder("report") as draft:
            write_report(report, Path(draft))
            for name in FILES:
                outlast(partial(self.home.upload, Path(draft) / name, name))


def _backbone_title(loaded: Checkpoint) -> str:
    num_weights = sum(p.numel() for p in loaded.backbone.parameters())
    settings = plain(loaded.config.backbone)
    kinds = [f"{key} {settings[key]}" for key in ("model", "size", "depth") if settings.get(key) is not None]
    return f"{', '.join([short_name(settings['name']), *kinds[:1]])} ({num_weights / 1e6:.2f} M weights)"


def _environment() -> dict[str, str]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    versions = {name: version_of(name) or "-" for name in ("raysl", "torch", "torchvision", "ray", "numpy")}
    return {"python": platform.python_version(), **versions, "system": platform.platform(), "device": device}
