"""Results of benchmarks, one file each beside the run: `<run>/benchmarks/<checkpoint>/knn.json`.

A result is of one checkpoint, of one choice of settings, and of one set of images; another of these makes another
result. Images that are not the run's own have a folder of their own in there.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from raysl.benchmarks.suite.digests import code_of, content_of, digests_of
from raysl.benchmarks.suite.fitting import MeasuredImages, benchmark_class
from raysl.benchmarks.suite.protocols import digest_of, settings_of_result
from raysl.benchmarks.suite.scores import Member
from raysl.checkpoint.backbone import Checkpoint
from raysl.components import ALIASES, only_own_components, resolve
from raysl.config.schema import BenchmarkConfig, DataConfig
from raysl.errors import log
from raysl.report.contents import Score
from raysl.report.report_json import parse_score, plain
from raysl.storage.folder import Folder, outlast
from raysl.storage.records import Damaged, from_record, read_record

FORMAT = 3
RESULTS_FOLDER = "benchmarks"
OTHER_CODE = "other code"


@dataclass(frozen=True)
class Basis:
    """Everything that a result depends on: it is measured again if one of these differs.

    Args:
        step: updates of the checkpoint.
        weights: SHA-256 of its backbone's file.
        train, test: fingerprints of the images; empty of a benchmark that has images of its own, which its settings
            name.
        image: size, normalisation and so on of the backbone's inputs.
        code: digest of the benchmark's code, see `raysl.benchmarks.suite.digests`.
        locations: digests of other files that its settings name, see `raysl.benchmarks.suite.digests`.
        content, written: digests of the training and test images beside their fingerprints, see `Split.content`
            and `Split.written`.
    """

    step: int
    weights: str
    settings: dict[str, Any]
    train: str
    test: str
    image: dict[str, Any]
    seed: int
    code: str
    locations: dict[str, str] = field(default_factory=dict)
    content: dict[str, dict[str, str]] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, loaded: Checkpoint, config: BenchmarkConfig, images: MeasuredImages) -> "Basis":
        """Return the basis of a new measurement."""
        settings = {"name": config.name, **settings_of_result(config)}
        kind = benchmark_class(config)
        measured = None if kind.needs(config).own_images else images
        return cls(
            step=loaded.meta["step"],
            weights=loaded.digest,
            settings=plain(settings),
            **_images_of(measured),
            image=image_settings(images.data),
            seed=loaded.config.seed,
            code=_code_of(kind, loaded, measured),
            locations=content_of(config),
        )

    def now(self, loaded: Checkpoint, images: MeasuredImages) -> "Basis":
        """Return the basis that the same measurement would have now.

        Raises:
            ConfigError: if images that the settings name cannot be looked at, or are of a source that is not raysl's.
        """
        with only_own_components(f"the result of {self.settings['name']}"):
            measured = images.with_data(self.settings.get("data")) if self.train else None
        is_ours = self.settings["name"] in ALIASES["benchmark"]
        return replace(
            self,
            step=loaded.meta["step"],
            weights=loaded.digest,
            **_images_of(measured),
            locations=digests_of({name: self.settings.get(name) for name in self.locations}),
            code=_code_of(resolve("benchmark", self.settings["name"]), loaded, measured) if is_ours else self.code,
        )

    def changes_from(self, other: "Basis") -> list[str]:
        """Say what differs; empty if the numbers may stand side by side."""
        changes = []
        if (self.step, self.weights) != (other.step, other.weights):
            changes.append("other weights")
        for name, images in (("train", "training images"), ("test", "test images")):
            if getattr(self, name) != getattr(other, name):
                changes.append(f"other {images}")
            elif parts := _differing(self.content.get(name, {}), other.content.get(name, {})):
                changes.append(f"other {images}: {' and '.join(parts)} changed")
            elif self.written.get(name) != other.written.get(name):
                changes.append(f"other {images}: files were modified")
        if names := _differing(self.locations, other.locations):
            changes.append(f"other files at {' and '.join(names)}")
        messages = {
            "settings": "other settings",
            "image": "other sizes or colours",
            "seed": "another seed",
            "code": OTHER_CODE,
        }
        return changes + [text for name, text in messages.items() if getattr(self, name) != getattr(other, name)]


def _differing(now: Mapping[str, str], before: Mapping[str, str]) -> list[str]:
    return [name for name in {**now, **before} if now.get(name) != before.get(name)]


def _images_of(images: MeasuredImages | None) -> dict[str, Any]:
    """Return the fields of a basis about images; None stands for a benchmark with images of its own."""
    states = {} if images is None else {name: images.state(name) for name in images.splits}
    prints = {name: states.get(name, {}).get("fingerprint", "") for name in ("train", "test")}
    return prints | {
        part: {name: state[part] for name, state in states.items() if part in state} for part in ("content", "written")
    }


def _code_of(kind: type[object], loaded: Checkpoint, images: MeasuredImages | None) -> str:
    splits = () if images is None else images.splits.values()
    return code_of(kind, type(loaded.backbone), *(reader for split in splits for reader in split.readers()))


_OF_AN_IMAGE = ("image_size", "eval_resize", "mean", "std", "channels", "background")


def image_settings(data: DataConfig) -> dict[str, Any]:
    """Return how images are shown to a backbone: size, normalisation and so on, in the types of JSON."""
    settings: dict[str, Any] = plain({name: getattr(data, name) for name in _OF_AN_IMAGE})
    return settings if data.value_range is None else {**settings, "value_range": list(data.value_range)}


@dataclass(frozen=True)
class Result:
    """The result of one benchmark.

    Args:
        name: name of the benchmark, with a mark where its settings are special.
        figures: data of its charts, in the types of JSON, see `Findings.figures`.
        seconds: time that it took, all sides together, without the extraction of features.
        member: the suite that it is a part of.
    """

    name: str
    basis: Basis
    scores: list[Score]
    figures: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    member: Member | None = None


class Results:
    """The results in a folder."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    def load(self) -> dict[str, Result]:
        """Read all results by the name of the benchmark; unreadable ones are logged and left out."""
        names = [name for name in self.folder.names() if name.endswith(".json") and name != "report.json"]
        results = {name: _parse(self.folder.read(name)) for name in names}
        for name, result in results.items():
            if result is None:
                where = self.folder.uri_of(name)
                log.warning("%s is damaged, or of another raysl: it counts as not measured", where)
        return {result.name: result for result in results.values() if result is not None}

    def keep(self, result: Result, dataset: str, predictions: bytes = b"") -> None:
        """Write a result in place of the one with its name.

        Args:
            predictions: a Parquet file of them, written first; empty: there are none.
        """
        content = {
            "format": FORMAT,
            **asdict(result),
            "dataset": dataset,
            "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        text = json.dumps(plain(content), indent=1, allow_nan=False) + "\n"
        outlast(self.folder.make)
        file = f"{_safe(result.name)}.predictions.parquet"
        if predictions:
            outlast(partial(self.folder.write, file, predictions))
        else:  # those of an earlier result are not of this one
            outlast(partial(self.folder.remove, file))
        # written last, so that a result that can be read is complete
        outlast(partial(self.folder.write, f"{_safe(result.name)}.json", text.encode()))


def _safe(name: str) -> str:
    safe = re.sub(r"[^\w@-]", "-", name)
    return safe if safe == name else f"{safe}-{digest_of(name)}"


def _parse(file: bytes) -> Result | None:
    try:
        content = read_record(file, "a result", _KINDS)
        if content["format"] != FORMAT:
            return None
        scores = [parse_score(score, "a result") for score in content["scores"]]
        basis = from_record(Basis, content["basis"], "a result")
        stored = content.get("member")
        member = None if stored is None else from_record(Member, stored, "a result")
        return Result(content["name"], basis, scores, content["figures"], content["seconds"], member)
    except Damaged:
        return None


_KINDS = {
    "format": int,
    "name": str,
    "basis": dict[str, Any],
    "scores": list[dict[str, Any]],
    "figures": dict[str, Any],
    "seconds": float,
}
